"""Sentences a second of MiniLM-L6 in PyTorch fp16: base (eager, compiled), one LoRA, and 24 mixed in a batch with PEFT's
`adapter_names`. The same figures of this crate: the example `embed_speed`. Weights are random: only the shape matters.

    python3 benches/peers/embed.py [SECONDS A FIGURE]      needs torch, transformers and peft, and one NVIDIA GPU

Prints JSON lines: what, batch, sentences a second. `no-compile` as the second argument leaves out what is compiled.
"""

import json
import random
import sys
import time

import torch
from transformers import BertConfig, BertModel

SECONDS = float(sys.argv[1]) if len(sys.argv) > 1 else 2.0
COMPILE = "no-compile" not in sys.argv
LENGTH, ADAPTERS = 128, 24
CONFIG = BertConfig(vocab_size=30522, hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)
MODULES = ["query", "key", "value", "attention.output.dense", "intermediate.dense", "output.dense"]


def embed(model, ids, mask, **more):
    """Mean of the last hidden states over the unmasked tokens, divided by its L2 norm."""
    states = model(input_ids=ids, attention_mask=mask, **more).last_hidden_state
    weight = mask.unsqueeze(-1).to(states.dtype)
    return torch.nn.functional.normalize((states * weight).sum(1) / weight.sum(1), dim=-1)


def rate(what, batch, work):
    with torch.inference_mode():
        for _ in range(3):
            work()
        torch.cuda.synchronize()
        start, runs = time.perf_counter(), 0
        while time.perf_counter() - start < SECONDS:
            work()
            torch.cuda.synchronize()
            runs += 1
    seconds = (time.perf_counter() - start) / runs
    print(json.dumps({"what": what, "batch": batch, "sentences_per_second": round(batch / seconds)}), flush=True)


def tokens(batch):
    ids = torch.randint(1000, 30000, (batch, LENGTH), device="cuda")
    lengths = torch.randint(8, 100, (batch,), device="cuda")
    ragged = (torch.arange(LENGTH, device="cuda")[None] < lengths[:, None]).long()
    return ids, torch.ones_like(ids), ragged


def main():
    torch.manual_seed(0)
    random.seed(0)
    base = BertModel._from_config(CONFIG, attn_implementation="sdpa").half().cuda().eval()
    for batch in (32, 256, 1024):
        ids, full, ragged = tokens(batch)
        rate("base, eager", batch, lambda: embed(base, ids, full))
        rate("base, eager, lengths 8 to 100 padded to 128", batch, lambda: embed(base, ids, ragged))
    try:
        mixed(batches=(32, 256, 1024))
    except ImportError as error:
        print(json.dumps({"skipped": f"PEFT: {error}"}))
    if COMPILE:
        compiled = torch.compile(base, mode="max-autotune")
        for batch in (1024, 256):
            ids, full, _ = tokens(batch)
            rate("base, compiled with max-autotune", batch, lambda: embed(compiled, ids, full))


def mixed(batches):
    from peft import LoraConfig, get_peft_model

    def config():
        return LoraConfig(r=8, lora_alpha=16, target_modules=MODULES)

    model = get_peft_model(BertModel._from_config(CONFIG, attn_implementation="sdpa"), config(), adapter_name="a0")
    for number in range(1, ADAPTERS):
        model.add_adapter(f"a{number}", config())
    model = model.half().cuda().eval()
    model.set_adapter("a0")
    for batch in batches:
        ids, full, _ = tokens(batch)
        rate("PEFT, one adapter", batch, lambda: embed(model, ids, full))
        names = [f"a{random.randrange(ADAPTERS)}" for _ in range(batch)]
        rate(f"PEFT, {ADAPTERS} adapters mixed", batch, lambda: embed(model, ids, full, adapter_names=names))


if __name__ == "__main__":
    main()
