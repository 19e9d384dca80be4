"""Reads LoRA adapters in the layout that PEFT writes, for the other scripts. NumPy and safetensors only."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import safetensors

PREFIX = "base_model.model."
_NUMPY = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "I64": np.int64, "I32": np.int32}


class Lora(NamedTuple):
    """One projection of one adapter, in float64: the weight changes by `scaling * b @ a`."""

    a: np.ndarray  # [r, d_in]
    b: np.ndarray  # [d_out, r]
    scaling: float

    def delta(self) -> np.ndarray:
        """The change of the weight, [d_out, d_in]."""
        return self.scaling * (self.b @ self.a)


def read_tensors(path: Path) -> dict[str, np.ndarray]:
    """Every tensor of a safetensors file. bfloat16, which NumPy lacks, is widened to float32."""
    tensors = {}
    for name, tensor in safetensors.deserialize(Path(path).read_bytes()):
        dtype, shape, data = tensor["dtype"], tensor["shape"], tensor["data"]
        if dtype == "BF16":
            array = (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
        elif dtype in _NUMPY:
            array = np.frombuffer(data, _NUMPY[dtype])
        else:
            raise ValueError(f"{path}: tensor {name}: dtype {dtype} is not one of {sorted(_NUMPY)} or BF16")
        tensors[name] = array.reshape(shape)
    return tensors


def read_adapter(folder: Path) -> dict[str, Lora]:
    """The projections of an adapter by module path (`encoder.layer.0.attention.self.query`)."""
    folder = Path(folder)
    config = json.loads((folder / "adapter_config.json").read_text())
    if config.get("use_dora") or config.get("fan_in_fan_out"):
        raise ValueError(f"{folder}: use_dora and fan_in_fan_out are not supported here")
    tensors = read_tensors(folder / "adapter_model.safetensors")
    adapter = {}
    for name in sorted(tensors):
        if not name.endswith(".lora_A.weight"):
            if not name.endswith(".lora_B.weight"):
                raise ValueError(f"{folder}: tensor {name} is neither lora_A nor lora_B")
            continue
        stem = name[: -len(".lora_A.weight")]
        path = stem[len(PREFIX) :] if stem.startswith(PREFIX) else stem
        a = tensors[name].astype(np.float64)
        b = tensors[stem + ".lora_B.weight"].astype(np.float64)
        rank = _pattern(config.get("rank_pattern"), path, config["r"])
        if a.shape[0] != rank or b.shape[1] != rank:
            raise ValueError(f"{folder}: {path}: r = {rank}, but lora_A is {a.shape} and lora_B {b.shape}")
        alpha = _pattern(config.get("alpha_pattern"), path, config["lora_alpha"])
        adapter[path] = Lora(a, b, alpha / (math.sqrt(rank) if config.get("use_rslora") else rank))
    return adapter


def _pattern(patterns: dict | None, path: str, default: float) -> float:
    """The value of the first pattern that fits the end of a module path, as PEFT looks it up."""
    for pattern, value in (patterns or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", path):
            return value
    return default


def find_adapters(root: Path) -> dict[str, Path]:
    """Every adapter folder in or below `root`, by its path relative to `root` (its own name, if `root` is one)."""
    root = Path(root)
    if (root / "adapter_config.json").is_file():
        return {root.resolve().name: root}
    found = {
        config.parent.relative_to(root).as_posix(): config.parent for config in sorted(root.rglob("adapter_config.json"))
    }
    if not found:
        raise FileNotFoundError(f"{root}: no folder in it has an adapter_config.json")
    return found
