#!/usr/bin/env python3
"""Proves that PEFT itself loads adapter folders, and that its output with them is that of the NumPy forward pass.

For each adapter folder in FOLDER: `PeftModel.from_pretrained` on the base model; every tensor of the file must have arrived,
value for value, and no LoRA weight of the model may be without one; then embeddings of seeded passages through PEFT and
through `minilm_activations.py` must agree. Exit status: 0 all right, 1 not.

Needs torch, peft and transformers beside requirements.txt; nothing is fetched:

  check_peft.py FOLDER [--model .minilm]
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from pathlib import Path

# Read when the libraries are imported: both folders are local, and nothing is to be looked up elsewhere.
os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
from peft import PeftModel, get_peft_model_state_dict
from transformers import BertModel
from transformers.utils import logging

from minilm_activations import Bert, Passage
from peft_folder import find_adapters, read_adapter, read_tensors

# Two float32 forward passes that sum in different orders; embeddings have norm 1.
LIMIT = 2e-6


def passages(count: int, seed: int) -> list[Passage]:
    """Passages of random words between [CLS] (101) and [SEP] (102), each of another length."""
    rng = np.random.default_rng(seed)
    words = [rng.integers(1000, 30000, 5 + 7 * i) for i in range(count)]
    return [Passage(str(i), "random", "a", np.concatenate([[101], ids, [102]])) for i, ids in enumerate(words)]


def embed(model: torch.nn.Module, texts: list[Passage]) -> np.ndarray:
    """Embeddings through torch, in one padded batch with its mask."""
    length = max(len(text.ids) for text in texts)
    ids = torch.zeros(len(texts), length, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, text in enumerate(texts):
        ids[row, : len(text.ids)] = torch.from_numpy(text.ids)
        mask[row, : len(text.ids)] = 1
    with torch.no_grad():
        hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
    mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    return torch.nn.functional.normalize(mean, dim=-1).numpy()


def faults_of_loading(model: PeftModel, folder: Path) -> list[str]:
    """What of the file did not arrive in the model, and what of the model is not in the file."""
    loaded = get_peft_model_state_dict(model, save_embedding_layers=False)
    file = read_tensors(folder / "adapter_model.safetensors")
    faults = [f"{name}: only in the file" for name in file.keys() - loaded.keys()]
    faults += [f"{name}: the file has none, PEFT made it up" for name in loaded.keys() - file.keys()]
    for name in file.keys() & loaded.keys():
        if not np.array_equal(loaded[name].float().numpy(), file[name].astype(np.float32)):
            faults.append(f"{name}: PEFT holds other values than the file")
    return sorted(faults)[:10]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="an adapter folder, or a folder of them")
    parser.add_argument("--model", type=Path, default=Path(".minilm"), help="folder of the base model (default .minilm)")
    options = parser.parse_args()
    logging.disable_progress_bar()
    warnings.filterwarnings("ignore", category=FutureWarning)
    texts = passages(12, seed=0)
    reference = Bert(options.model / "model.safetensors")
    base = reference.embed(texts)
    wrong = 0
    print(f"{'adapter':<24} {'tensors':>7}  {'PEFT - NumPy':>12}  {'adapter - base':>14}")
    for name, folder in find_adapters(options.folder).items():
        bert = BertModel.from_pretrained(options.model, dtype=torch.float32, local_files_only=True).eval()
        with warnings.catch_warnings(record=True) as warned:
            model = PeftModel.from_pretrained(bert, folder, local_files_only=True).eval()
        # PEFT only warns of keys that are missing or that it does not know; here that is a failure.
        faults = [str(w.message)[:200] for w in warned if "keys" in str(w.message)]
        faults += faults_of_loading(model, folder)
        try:
            reference.set_adapter(read_adapter(folder))
        except (KeyError, ValueError) as error:
            faults.append(str(error))
        found, expected = embed(model, texts), reference.embed(texts)
        difference, effect = np.abs(found - expected).max(), np.abs(found - base).max()
        if not difference <= LIMIT:
            faults.append(f"embeddings differ by {difference:.1e}, more than {LIMIT:.0e}")
        count = len(read_tensors(folder / "adapter_model.safetensors"))
        print(f"{name:<24} {count:>7}  {difference:>12.1e}  {effect:>14.1e}  {'WRONG' if faults else 'right'}")
        for fault in faults:
            print(f"  {fault}")
        wrong += bool(faults)
    print("every folder loads in PEFT and gives what it says" if not wrong else f"{wrong} folders are wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
