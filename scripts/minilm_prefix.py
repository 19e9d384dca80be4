#!/usr/bin/env python3
"""Writes query, key and value of one layer of all-MiniLM-L6-v2 for one passage: real activations of a shared prefix,
for tests that compress a cache. `q`, `k` and `v` are [tokens, heads, head_dim] in fp16.

    scripts/minilm_prefix.py --text PAIRS --output crates/cli/data/prefix.safetensors [--layer 3] [--tokens 112]

PAIRS is as in minilm_activations.py. The passage is the first of at least that many tokens, cut to them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from minilm_activations import HEADS, Bert, read_text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path(".minilm"), help="folder of the base model (default .minilm)")
    parser.add_argument("--text", type=Path, required=True, metavar="PAIRS", help="passages, JSON lines")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE")
    parser.add_argument("--layer", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=112)
    options = parser.parse_args()

    passages = read_text(options.text, options.model / "tokenizer.json")
    passage = next((p for p in passages if len(p.ids) >= options.tokens), None)
    if passage is None:
        raise SystemExit(f"no passage has {options.tokens} tokens; lower --tokens")
    bert = Bert(options.model / "model.safetensors")
    modules = {f"encoder.layer.{options.layer}.attention.self.{name}": name[0] for name in ("query", "key", "value")}
    tensors = {}

    def observe(path: str, x: np.ndarray) -> None:
        if path in modules:
            y = bert.linear(path, x, None)[0]
            tensors[modules[path]] = np.ascontiguousarray(y.reshape(len(y), HEADS, -1), np.float16)

    bert.hidden(passage.ids[None, : options.tokens], observe)
    metadata = {"base_model": "sentence-transformers/all-MiniLM-L6-v2", "layer": str(options.layer), "pair": passage.pair}
    save_file(tensors, options.output, metadata)
    print(f"{options.output}: {options.tokens} tokens of {passage.pair}, {options.output.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
