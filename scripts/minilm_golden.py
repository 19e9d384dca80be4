#!/usr/bin/env python3
"""Writes reference embeddings of all-MiniLM-L6-v2, with and without adapters, computed in float64 by NumPy from the
definition, independent of the crate: what `crates/cli/tests/model` holds the encoder against.

    scripts/get_minilm.sh
    python3 -m pip install -r scripts/requirements.txt
    python3 scripts/minilm_golden.py tests/golden/minilm.safetensors

`input_ids` and `attention_mask` [sentences, length] int64, padded with 0; `emb.base` and `emb.POPULATION.NAME` for
adapters of crates/cli/data, [sentences, 384], rounded once to float32. The sentences are in the metadata, as a JSON list.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer

from minilm_activations import MAX_TOKENS, Bert, Passage
from peft_folder import read_adapter

ADAPTERS = ("A.rust", "A.apache_french", "C.r4_rust")
SENTENCES = (
    "A graph that was captured once is replayed as often as its shapes come back.",
    "Wind.",
    "Zoë's café — naïve, façade, Übermut: accents go, and case with them.",
    "1,024 tokens; 3.5e-4 off; [brackets] and {braces} and (parentheses)?!",
    "L'adaptateur de chaque phrase est le sien, et le lot n'en sait rien.",
    "東京 and 北京 are split at every character.",
    "unaffable antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis",
    "The harbour was quiet when the ferry came in. Two men on the quay took its ropes, and a woman with a red suitcase waited "
    "until the ramp was down. Nobody else got off. She looked at the clock above the ticket office, which had stopped at ten past "
    "four years before, and then walked up the hill towards the town without turning round.",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--model", type=Path, default=Path(".minilm"), help="folder of the base model (default .minilm)")
    options = parser.parse_args()

    tokenizer = Tokenizer.from_file(str(options.model / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_TOKENS)
    ids = [np.array(tokenizer.encode(text).ids, np.int64) for text in SENTENCES]
    longest = max(map(len, ids))
    tensors = {
        "input_ids": np.stack([np.pad(row, (0, longest - len(row))) for row in ids]),
        "attention_mask": np.stack([np.pad(np.ones_like(row), (0, longest - len(row))) for row in ids]),
    }
    passages = [Passage(str(number), "golden", "a", row) for number, row in enumerate(ids)]
    bert = Bert(options.model / "model.safetensors", np.float64)
    data = Path(__file__).parent.parent / "crates/cli/data/adapters"
    for name in (None, *ADAPTERS):
        bert.set_adapter(read_adapter(data / name.replace(".", "/")) if name else None)
        tensors[f"emb.{name or 'base'}"] = bert.embed(passages).astype(np.float32)
    save_file(tensors, options.output, {"sentences": json.dumps(SENTENCES, ensure_ascii=False)})
    print(f"{options.output}: {len(ids)} sentences of up to {longest} tokens, {options.output.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
