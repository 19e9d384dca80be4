"""How fast PyTorch reads prompts and writes answers with a decoder whose projections are whole or factored: the peer of
`trifuse eval --suite speed --drawn CONFIG`, whose options these are, and whose report this is.

    python3 benches/peers/factored.py CONFIG.json [CONFIG.json...] -o THEIRS.json --batch 1,16 --prompt 512 --answer 64

Needs PyTorch and one NVIDIA GPU. CONFIG has `low_rank.ranks` where projections are factored (benches/peers/factored_config.py); `stored` where these are padded. Weights and
prompts are drawn. Projections are F.linear, two for each that is factored, as the models of compressors have them; norms are F.rms_norm, attention is
scaled_dot_product_attention over a cache of its own, and greedy tokens are drawn.

A step of all requests is one CUDA graph, which no launch waits for the host in: that of the middle of the answer. Of --steps replays the median
counts. Prompts are read without a graph, as many at once as --budget has room for, and the median of three runs counts; the first token of each is in it.
"""

import argparse
import gc
import importlib.metadata
import json
import pathlib
import platform
import statistics
import sys
import time

import torch
import torch.nn.functional as F

from stored import write
from timing import captured

DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16}
RUNS, WARM = 3, 3


class Projection:
    """A matrix, or two factors of it."""

    def __init__(self, shape: tuple[int, int], rank: int | None, dtype: torch.dtype):
        d_out, d_in = shape
        sizes = [(d_out, d_in)] if rank is None else [(rank, d_in), (d_out, rank)]
        self.weights = [drawn(size, dtype) for size in sizes]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        for weight in self.weights:
            x = F.linear(x, weight)
        return x


def drawn(size: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
    """Even numbers with a variance of one over the columns, so that states keep their size."""
    spread = (3 / size[1]) ** 0.5
    return torch.empty(size, dtype=dtype, device="cuda").uniform_(-spread, spread)


class Decoder:
    """A decoder of Llama's family with drawn weights, and a cache for `batch` requests of `length` tokens."""

    def __init__(self, config: dict, dtype: torch.dtype, batch: int, length: int):
        self.hidden, self.layers, self.eps = config["hidden_size"], config["num_hidden_layers"], config["rms_norm_eps"]
        self.heads, self.dtype = config["num_attention_heads"], dtype
        self.kv_heads = config.get("num_key_value_heads") or self.heads
        self.size = config.get("head_dim") or self.hidden // self.heads
        wide, narrow, between = self.heads * self.size, self.kv_heads * self.size, config["intermediate_size"]
        shapes = {
            "self_attn.q_proj": (wide, self.hidden),
            "self_attn.k_proj": (narrow, self.hidden),
            "self_attn.v_proj": (narrow, self.hidden),
            "self_attn.o_proj": (self.hidden, wide),
            "mlp.gate_proj": (between, self.hidden),
            "mlp.up_proj": (between, self.hidden),
            "mlp.down_proj": (self.hidden, between),
        }
        low_rank = config.get("low_rank") or {}
        ranks = low_rank.get("ranks", {}) | low_rank.get("stored", {})
        self.projections = [
            {path.rsplit(".", 1)[1]: Projection(shape, ranks.get(f"model.layers.{layer}.{path}"), dtype) for path, shape in shapes.items()}
            for layer in range(self.layers)
        ]
        self.norm = torch.ones(self.hidden, dtype=dtype, device="cuda")
        self.table, self.head = (drawn((config["vocab_size"], self.hidden), dtype) for _ in range(2))
        turns = config.get("rope_theta", 1e4) ** -(torch.arange(0, self.size, 2, device="cuda") / self.size)
        angles = torch.outer(torch.arange(length, device="cuda").float(), turns).repeat(1, 2)
        self.cos, self.sin = angles.cos().to(dtype), angles.sin().to(dtype)
        self.cache = torch.zeros(self.layers, 2, batch, self.kv_heads, length, self.size, dtype=dtype, device="cuda")

    def turned(self, x: torch.Tensor, positions: slice) -> torch.Tensor:
        half = self.size // 2
        return x * self.cos[positions] + torch.cat((-x[..., half:], x[..., :half]), -1) * self.sin[positions]

    def __call__(self, ids: torch.Tensor, requests: slice, positions: slice) -> torch.Tensor:
        """The greedy token behind the last of `ids`, `[requests, tokens]`, which stand at these positions of these requests."""
        batch, tokens = ids.shape
        x = F.embedding(ids, self.table)
        for layer, project in enumerate(self.projections):
            rows = F.rms_norm(x, (self.hidden,), self.norm, self.eps)
            q, k, v = (project[name](rows).view(batch, tokens, -1, self.size).transpose(1, 2) for name in ("q_proj", "k_proj", "v_proj"))
            keys, values = (self.cache[layer, kind, requests] for kind in range(2))
            keys[:, :, positions] = self.turned(k, positions)
            values[:, :, positions] = v
            seen = slice(0, positions.stop)
            rows = F.scaled_dot_product_attention(
                self.turned(q, positions), keys[:, :, seen], values[:, :, seen], is_causal=tokens > 1, enable_gqa=self.kv_heads < self.heads
            )
            x = x + project["o_proj"](rows.transpose(1, 2).reshape(batch, tokens, -1))
            rows = F.rms_norm(x, (self.hidden,), self.norm, self.eps)
            x = x + project["down_proj"](F.silu(project["gate_proj"](rows)) * project["up_proj"](rows))
        return F.linear(F.rms_norm(x[:, -1], (self.hidden,), self.norm, self.eps), self.head).argmax(-1)


def between(work) -> float:
    """Seconds of work on the device, the host's part in it."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def measure(model: str, decoder: Decoder, vocabulary: int, batch: int, arguments: argparse.Namespace) -> dict:
    """One row of the report."""
    prompt, answer = arguments.prompt, arguments.answer
    ids = torch.randint(vocabulary, (batch, prompt), device="cuda")
    together = max(1, arguments.budget // prompt)

    def read() -> None:
        for first in range(0, batch, together):
            requests = slice(first, min(first + together, batch))
            decoder(ids[requests], requests, slice(0, prompt))

    read()
    seconds = statistics.median(between(read) for _ in range(RUNS))
    at, last = prompt + answer // 2, ids[:, -1:].contiguous()
    step = captured(lambda: decoder(last, slice(0, batch), slice(at, at + 1)))
    for _ in range(WARM):
        step()
    # Each by the device's own clock, with the next one in the queue behind it.
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(arguments.steps + 1)]
    marks[0].record()
    for mark in marks[1:]:
        step()
        mark.record()
    torch.cuda.synchronize()
    steps = sorted(first.elapsed_time(last) for first, last in zip(marks, marks[1:]))
    median = statistics.median(steps)
    return {
        "model": model,
        "batch": batch,
        "adapters": 0,
        "prompt": prompt,
        "answer": answer,
        "prefill_seconds": seconds,
        "prefill_tokens_per_second": batch * prompt / seconds,
        "decode_steps": len(steps),
        "step_ms_p50": median,
        "step_ms_p95": steps[int((len(steps) - 1) * 0.95)],
        "decode_tokens_per_second": 1e3 * batch / median,
    }


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def asked_for() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=pathlib.Path, nargs="+", help="a config.json")
    parser.add_argument("-o", "--output", required=True, help="where the report goes")
    parser.add_argument("--batch", type=numbers, default=[1, 16], metavar="N,N")
    parser.add_argument("--prompt", type=int, default=512, metavar="N")
    parser.add_argument("--answer", type=int, default=64, metavar="N")
    parser.add_argument("--budget", type=int, default=2048, metavar="N", help="tokens of prompts that are read at once, at most")
    parser.add_argument("--steps", type=int, default=50, metavar="N", help="steps that are timed")
    parser.add_argument("--dtype", choices=DTYPES, default="f16")
    arguments = parser.parse_args()
    if min(*arguments.batch, arguments.prompt, arguments.answer - 1, arguments.budget, arguments.steps) < 1:
        parser.error("expected batches, prompts, budgets and steps from 1, answers from 2")
    return arguments


@torch.inference_mode()
def main() -> None:
    arguments = asked_for()
    boot = pathlib.Path("/proc/sys/kernel/random/boot_id")
    environment = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cublas": next((importlib.metadata.version(name) for name in installed() if name.startswith("nvidia-cublas")), None),
        "platform": f"{platform.system().lower()} {platform.machine()}",
        "boot": boot.read_text(encoding="utf-8").strip() if boot.exists() else None,
    }
    report = {"format": "trifuse.llm-eval/1", "model": str(arguments.config[0]), "backend": "torch", "dtype": arguments.dtype}
    report |= {"device": {"name": torch.cuda.get_device_name()}, "environment": environment, "ppl": [], "speed": []}
    for path in arguments.config:
        began = time.perf_counter()
        config = json.loads(path.read_text(encoding="utf-8"))
        decoder = Decoder(config, DTYPES[arguments.dtype], max(arguments.batch), arguments.prompt + arguments.answer)
        for batch in arguments.batch:
            report["speed"].append(measure(str(path), decoder, config["vocab_size"], batch, arguments))
            write(report, arguments.output)
        del decoder
        gc.collect()
        torch.cuda.empty_cache()
        print(f"{path}: {time.perf_counter() - began:.1f} s", file=sys.stderr, flush=True)


def installed() -> list[str]:
    return [distribution.metadata["Name"] for distribution in importlib.metadata.distributions() if distribution.metadata["Name"]]


if __name__ == "__main__":
    main()
