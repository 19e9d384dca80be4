#!/usr/bin/env python3
"""Trains 24 LoRA adapters for SmolLM2-135M-Instruct with PEFT: six texts, ranks 4 and 8, each from a start of its own and from a common one.

    scripts/study_texts.py .texts -o texts
    scripts/train_smollm2_adapters.py MODEL texts -o adapters
    scripts/train_smollm2_adapters.py MODEL texts -o adapters --part 1/3 &      a third of them, for three processes at once

MODEL is a folder of the Hugging Face libraries; `trifuse shrink .smollm2 -o MODEL --keep 1 --factors svd --leave . --dense` makes one of the GGUF
file. TEXTS holds train/NAME.txt and held-out/NAME.txt. A common start is one draw of the input factors, of which rank 4 takes the first rows; so
twelve adapters share what they began with. All seven projections, alpha twice the rank. The adapters of a run are the same for the same machine,
libraries and options; nothing is downloaded. OUT/NAME is a PEFT folder in f16, OUT/NAME.json tells its losses. Needs PyTorch, transformers and peft.
"""

import argparse
import contextlib
import hashlib
import json
import math
import os
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")

import peft
import torch
import transformers
from torch.nn.functional import cross_entropy

TEXTS = ("kjv", "wiki", "c4", "code", "technical", "tiny")
PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
BASE = "HuggingFaceTB/SmolLM2-135M-Instruct"
COMMON = "common"


def adapters():
    """Each adapter's name, text, rank and start. Those of one text come one after another, so that parts of a run share few texts."""
    return [(f"{text}-r{rank}-{start}", text, rank, start) for text in TEXTS for rank in (8, 4) for start in (COMMON, "own")]


def seed_of(*parts):
    return int.from_bytes(hashlib.sha256(" ".join(parts).encode()).digest()[:6], "little")


def begin(model, name, start):
    """Draws the input factors, as PEFT does: uniform up to 1/√d_in. Rank 4 of a common start has the first rows of rank 8."""
    for path, module in model.named_modules():
        if isinstance(module, peft.tuners.lora.LoraLayer):
            weight = module.lora_A["default"].weight
            draw = torch.Generator().manual_seed(seed_of(COMMON if start == COMMON else name, path))
            drawn = (2 * torch.rand(8, weight.shape[1], generator=draw) - 1) / math.sqrt(weight.shape[1])
            weight.data.copy_(drawn[: weight.shape[0]])
            module.lora_B["default"].weight.data.zero_()


def tokens(tokenizer, path, lines):
    """The tokens of a text; with `lines` those of as many lines at once, on all cores."""
    text = path.read_bytes().decode("utf-8")
    every = text.splitlines(keepends=True)
    parts = ["".join(every[at : at + lines]) for at in range(0, len(every), lines)] if lines else [text]
    return [token for ids in tokenizer(parts, add_special_tokens=False).input_ids for token in ids]


def loss_of(model, ids):
    """The mean loss of all tokens but the first of each row."""
    logits = model(input_ids=ids).logits[:, :-1]
    return cross_entropy(logits.float().reshape(-1, logits.shape[-1]), ids[:, 1:].reshape(-1))


def train(model, name, ids, options):
    """Trains an adapter; the losses of the steps."""
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    rule = torch.optim.AdamW(learned, lr=options.rate, betas=(0.9, 0.99), weight_decay=0.0, fused=options.device == "cuda")
    draw = torch.Generator().manual_seed(seed_of("windows", name))
    losses = []
    for step in range(options.steps):
        share = min((step + 1) / max(options.steps // 10, 1), 0.55 + 0.45 * math.cos(math.pi * step / options.steps))
        for group in rule.param_groups:
            group["lr"] = options.rate * share
        starts = torch.randint(len(ids) - options.length, (options.batch,), generator=draw)
        rows = ids[starts[:, None] + torch.arange(options.length)].to(options.device, non_blocking=True)
        loss = loss_of(model, rows)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learned, 1.0)
        rule.step()
        rule.zero_grad(set_to_none=True)
        losses.append(loss.detach())
    return [round(loss, 4) for loss in torch.stack(losses).tolist()]


def held_out(model, ids, options):
    """The mean loss over the first windows of what is held out."""
    windows = ids[: len(ids) // options.length * options.length].reshape(-1, options.length)[: options.held_out]
    with torch.no_grad():
        losses = [loss_of(model, rows.to(options.device)).item() * len(rows) for rows in windows.split(options.batch)]
    return sum(losses) / len(windows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("texts", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--part", default="1/1", metavar="K/N", help="the K-th of N parts of the adapters")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="these adapters alone")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--held-out", type=int, default=12, metavar="N", help="windows of the held-out text that are measured on")
    parser.add_argument("--until", type=float, default=math.inf, metavar="SECONDS", help="begin no adapter later than this after the start")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    began = time.monotonic()
    part, parts = map(int, options.part.split("/"))
    every = adapters()
    chosen = [one for one in every[(part - 1) * len(every) // parts : part * len(every) // parts] if not options.only or one[0] in options.only]

    tokenizer = transformers.AutoTokenizer.from_pretrained(options.model)
    tokenizer.model_max_length = 10**9
    base = transformers.AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.bfloat16 if options.device == "cuda" else torch.float32)
    base.to(options.device).eval()
    base.name_or_path = base.config._name_or_path = BASE
    options.output.mkdir(parents=True, exist_ok=True)
    texts, before = {}, {}
    for name, text, rank, start in chosen:
        if time.monotonic() - began > options.until:
            print(f"{name}: no time left", flush=True)
            continue
        if text not in texts:
            texts[text] = [torch.tensor(tokens(tokenizer, options.texts / folder / f"{text}.txt", lines)) for folder, lines in (("train", 200), ("held-out", None))]
        ids, kept = texts[text]
        config = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=PROJECTIONS, task_type="CAUSAL_LM", base_model_name_or_path=BASE)
        started = time.monotonic()
        model = peft.get_peft_model(base, config)
        begin(model, name, start)
        # Factors in f32, products in bf16: PEFT would widen every input first, in vain.
        as_it_is = peft.helpers.disable_input_dtype_casting(model) if hasattr(peft.helpers, "disable_input_dtype_casting") else contextlib.nullcontext()
        # Without the cache: it would keep the factors of the first step.
        with torch.autocast(options.device, torch.bfloat16, cache_enabled=False), as_it_is:
            if text not in before:
                before[text] = held_out(model, kept, options)
            losses = train(model, name, ids, options)
            after = held_out(model, kept, options)
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.half()
        model.save_pretrained(options.output / name, save_embedding_layers=False)
        (options.output / name / "README.md").unlink(missing_ok=True)
        base = model.unload()
        told = {"name": name, "text": text, "rank": rank, "start": start, "tokens": len(ids), "steps": options.steps, "batch": options.batch,
                "length": options.length, "rate": options.rate, "device": torch.cuda.get_device_name() if options.device == "cuda" else "cpu",
                "losses": losses, "held_out_nats_before": before[text], "held_out_nats": after, "seconds": round(time.monotonic() - started, 2)}
        (options.output / f"{name}.json").write_text(json.dumps(told))
        print(f"{name}: {losses[0]:.3f} to {losses[-1]:.3f}; held out {before[text]:.4f} to {after:.4f}; {told['seconds']} s", flush=True)


if __name__ == "__main__":
    main()
