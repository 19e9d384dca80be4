"""A LoRA adapter whose values are drawn, as PEFT stores one: the values of `trifuse eval --drawn-adapters`, which say nothing and take the time of
real ones. Needs no package."""

import json
import pathlib
import struct

# The values repeat after so many.
PERIOD = 1021
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")


def shapes(config: dict, targets: list[str]) -> dict[str, tuple[int, int]]:
    """`(d_out, d_in)` of each projection of a layer that an adapter changes, by its path in the layer."""
    hidden, wide, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    head = config.get("head_dim") or hidden // heads
    query, key = heads * head, config.get("num_key_value_heads", heads) * head
    all_of = {"q_proj": (query, hidden), "k_proj": (key, hidden), "v_proj": (key, hidden), "o_proj": (hidden, query)}
    all_of |= {"gate_proj": (wide, hidden), "up_proj": (wide, hidden), "down_proj": (hidden, wide)}
    if strange := [name for name in targets if name not in all_of]:
        raise SystemExit(f"--targets: expected some of {', '.join(all_of)}; found {', '.join(strange)}")
    return {f"{'self_attn' if name in ATTENTION else 'mlp'}.{name}": all_of[name] for name in targets}


def values(count: int) -> bytes:
    """So many numbers in f16, small enough that states keep their size."""
    period = b"".join(struct.pack("<e", (at * 2_654_435_761) % PERIOD / PERIOD / 64 - 1 / 128) for at in range(PERIOD))
    return (period * (count // PERIOD + 1))[: 2 * count]


def write(folder: pathlib.Path, config: dict, rank: int, targets: list[str]) -> None:
    """Makes the folder."""
    header, parts, end = {}, [], 0
    for layer in range(config["num_hidden_layers"]):
        for path, (d_out, d_in) in shapes(config, targets).items():
            for name, shape in (("lora_A", [rank, d_in]), ("lora_B", [d_out, rank])):
                parts.append(values(shape[0] * shape[1]))
                place = [end, end + len(parts[-1])]
                header[f"base_model.model.model.layers.{layer}.{path}.{name}.weight"] = {"dtype": "F16", "shape": shape, "data_offsets": place}
                end = place[1]
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(header).encode()
    with open(folder / "adapter_model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.writelines(parts)
    told = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": rank, "target_modules": targets, "bias": "none", "lora_dropout": 0.0}
    (folder / "adapter_config.json").write_text(json.dumps(told), encoding="utf-8")
