"""How fast vLLM's engine reads prompts and writes answers, by the requests that run at once and their adapters: the peer of
`trifuse eval --suite speed --drawn CONFIG`, whose options these are, and whose report this is.

    python3 benches/peers/vllm_engine.py CONFIG.json -o THEIRS.json --batch 1,16,64,256 --drawn-adapters 0,1,16,100 --answer 128 --budget 8192

Needs vLLM (written for 0.24) and one NVIDIA GPU; benches/peers/vllm_table.py makes one table of both reports. Weights, adapters and prompts are drawn,
and prompts have the ids that ours have. Requests without adapters have an engine that knows of none, the others one that holds as many as
are asked for, on the projections that these change. Each engine is a process of its own, one after the other, so that each has the device alone.

A batch runs once unmeasured; it has to give every token that was asked for, or it is told and not timed. Its first request then
runs alone, and whether the greedy tokens are the same is told. Of --repeats runs the one whose step is shortest counts; the report holds all.
The prompts are read when the last request has its first token. A step is the time between two outputs of the engine, of those in which each
request got a token; the median of a run counts. That is the rule of ours.
"""

import argparse
import importlib.metadata
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import time

import drawn_lora
from stored import write

DTYPES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32"}
# No network, no reports of use. Greedy tokens need no sampler that a compiler has to make first.
SETTINGS = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING", "VLLM_USE_FLASHINFER_SAMPLER": "0"}
BITS = (1 << 64) - 1
# The status where nothing was wrong but the time.
CUT = 75


def prompts(batch: int, length: int, vocabulary: int, salt: int) -> list[list[int]]:
    """The ids that crates/cli/src/cli/eval/speed.rs draws."""
    state, drawn = 0x9E37_79B9_7F4A_7C15 ^ salt, []
    for _ in range(batch * length):
        state = (state * 6_364_136_223_846_793_005 + 1_442_695_040_888_963_407) & BITS
        drawn.append((state >> 33) % vocabulary)
    return [drawn[at : at + length] for at in range(0, len(drawn), length)]


def cases(batches: list[int], adapters: list[int]) -> list[tuple[int, int, int]]:
    """Batch, adapters, and the salt of the run that ours counts, in the order of ours: no more adapters than requests."""
    pairs = [(batch, count) for count in adapters for batch in batches if count <= batch]
    return [(batch, count, 2 * number + 1) for number, (batch, count) in enumerate(pairs)]


class Engine:
    """One engine of vLLM, and what it was made with."""

    def __init__(self, arguments: argparse.Namespace, config: dict, adapters: int, folder: pathlib.Path):
        from vllm import LLM

        self.answer, self.folder, self.runs = arguments.answer, folder / "adapter", 0
        seats = max(arguments.batch)
        # The folder of a model is its configuration.
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        self.options = {
            "load_format": "dummy",
            "skip_tokenizer_init": True,
            "dtype": DTYPES[arguments.dtype],
            "max_model_len": arguments.prompt + arguments.answer,
            "max_num_seqs": seats,
            "max_num_batched_tokens": max(arguments.budget, seats),
            "gpu_memory_utilization": arguments.memory,
            "enable_prefix_caching": False,
            "seed": 0,
        }
        if adapters:
            drawn_lora.write(self.folder, config, arguments.rank, arguments.targets)
            self.options |= {"enable_lora": True, "max_loras": adapters, "max_cpu_loras": adapters, "max_lora_rank": arguments.rank}
            # Otherwise it would also add products with zeros to the projections, and to the head, that no adapter changes.
            self.options["lora_target_modules"] = arguments.targets
        self.engine = LLM(model=str(folder), **self.options).llm_engine

    def run(self, asked: list[list[int]], adapters: int) -> tuple[list[list[int]], float, list[float]]:
        """Tokens of each request, seconds until all had one, and the seconds of each step in which all got one."""
        from vllm import SamplingParams
        from vllm.lora.request import LoRARequest
        from vllm.sampling_params import RequestOutputKind

        greedy = SamplingParams(max_tokens=self.answer, temperature=0.0, ignore_eos=True, detokenize=False, output_kind=RequestOutputKind.DELTA)
        self.runs += 1
        names = [f"{self.runs}-{number}" for number in range(len(asked))]
        tokens = {name: [] for name in names}
        started = time.perf_counter()
        for number, (name, prompt) in enumerate(zip(names, asked)):
            adapter = number % adapters if adapters else None
            lora = None if adapter is None else LoRARequest(f"drawn{adapter:04}", adapter + 1, str(self.folder))
            self.engine.add_request(name, {"prompt_token_ids": prompt}, greedy, lora_request=lora)
        first, begun, steps, before = None, 0, [], started
        while self.engine.has_unfinished_requests():
            got = {output.request_id: output.outputs[0].token_ids for output in self.engine.step()}
            now = time.perf_counter()
            for name, ids in got.items():
                tokens[name].extend(ids)
            count = sum(len(ids) > 0 for ids in got.values())
            # Steps that tell of nothing are a part of the next one.
            if count == 0:
                continue
            if begun == len(asked) and count == len(asked):
                steps.append(now - before)
            if begun < len(asked):
                begun = sum(len(ids) > 0 for ids in tokens.values())
                if begun == len(asked):
                    first = now - started
            before = now
        return list(tokens.values()), first, steps


def at(steps: list[float], share: float) -> float:
    """Milliseconds of the step that such a share of all do not exceed."""
    return 1e3 * sorted(steps)[int((len(steps) - 1) * share)]


def alone(together: list[int], apart: list[int]) -> str:
    """How the tokens of a request in a batch are beside those that it has alone."""
    if together == apart:
        return "same"
    first = next((number for number, pair in enumerate(zip(together, apart)) if pair[0] != pair[1]), min(len(together), len(apart)))
    return f"differs from token {first + 1}"


def measure(engine: Engine, arguments: argparse.Namespace, vocabulary: int, batch: int, adapters: int, salt: int) -> dict:
    """One row of the report, or `why` there is none."""
    row = {"model": str(arguments.config), "batch": batch, "adapters": adapters, "prompt": arguments.prompt, "answer": arguments.answer}
    asked = prompts(batch, arguments.prompt, vocabulary, salt)
    tokens, first, steps = engine.run(asked, adapters)
    given = sorted({len(ids) for ids in tokens})
    if given != [arguments.answer] or first is None or not steps:
        return row | {"why": f"expected {arguments.answer} tokens of each request and steps in which all got one, found {given} and {len(steps)} steps"}
    apart = engine.run(asked[:1], adapters)[0][0] if batch > 1 else []
    runs = []
    for _ in range(arguments.repeats):
        _, first, steps = engine.run(asked, adapters)
        runs.append({"prefill_seconds": first, "decode_steps": len(steps), "step_ms_p50": at(steps, 0.5), "step_ms_p95": at(steps, 0.95)})
    best = min(runs, key=lambda run: run["step_ms_p50"]) | {"prefill_seconds": min(run["prefill_seconds"] for run in runs)}
    rates = {
        "prefill_tokens_per_second": batch * arguments.prompt / best["prefill_seconds"],
        "decode_tokens_per_second": batch / best["step_ms_p50"] * 1e3,
    }
    return row | best | rates | {"first_alone": alone(tokens[0], apart) if batch > 1 else None, "runs": runs}


def version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def text(path: str) -> str | None:
    try:
        return pathlib.Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return None


def one_engine(arguments: argparse.Namespace, wanted: list[tuple[int, int, int]], report: dict) -> int:
    """Measures with one engine, and writes the report after each row; the status."""
    config = json.loads(arguments.config.read_text(encoding="utf-8"))
    adapters = max(count for _, count, _ in wanted)
    with tempfile.TemporaryDirectory() as folder:
        engine = Engine(arguments, config, adapters, pathlib.Path(folder))
        ready = time.time()
        _, first, _ = engine.run(prompts(1, arguments.prompt, config["vocab_size"], 0), min(adapters, 1))
        from vllm.platforms import current_platform

        report["device"] = {"name": current_platform.get_device_name()}
        report["engines"].append({"adapters": adapters, "start_seconds": ready - arguments.since + first, "options": engine.options})
        for batch, count, salt in wanted:
            if time.time() - arguments.since > arguments.seconds:
                print(f"{batch} requests with {count} adapters, and what follows: no time left", file=sys.stderr, flush=True)
                return CUT
            row = measure(engine, arguments, config["vocab_size"], batch, count, salt)
            report["wrong" if "why" in row else "speed"].append(row)
            write(report, arguments.output)
            print(f"{batch} requests with {count} adapters: {row.get('why', 'measured')}", file=sys.stderr, flush=True)
    return 1 if report["wrong"] else 0


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def asked_for() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=pathlib.Path, help="a config.json")
    parser.add_argument("-o", "--output", required=True, help="where the report goes")
    parser.add_argument("--batch", type=numbers, default=[1, 4, 16, 64], metavar="N,N")
    parser.add_argument("--prompt", type=int, default=128, metavar="N")
    parser.add_argument("--answer", type=int, default=64, metavar="N")
    parser.add_argument("--budget", type=int, default=2048, metavar="N", help="tokens of a step, at most")
    parser.add_argument("--drawn-adapters", type=numbers, default=[0], metavar="N,N")
    parser.add_argument("--rank", type=int, default=16, metavar="R")
    parser.add_argument("--targets", type=lambda text: text.split(","), default=list(drawn_lora.ATTENTION), metavar="NAME,NAME")
    parser.add_argument("--dtype", choices=DTYPES, default="f16")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="measured runs of each batch")
    parser.add_argument("--memory", type=float, default=0.9, metavar="SHARE", help="of the device's memory that an engine may take")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no further batch after so long")
    # One engine of the two, by this script itself, and when it was started.
    parser.add_argument("--engine", choices=["alone", "adapters"], help=argparse.SUPPRESS)
    parser.add_argument("--since", type=float, default=time.time(), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    least = min(*arguments.batch, arguments.prompt, arguments.rank, arguments.repeats, arguments.answer - 1, *(count + 1 for count in arguments.drawn_adapters))
    if least < 1:
        parser.error("expected batches, prompts, ranks and repeats from 1, answers from 2, adapters from 0")
    return arguments


def main() -> None:
    arguments = asked_for()
    wanted = cases(arguments.batch, arguments.drawn_adapters)
    parts = {"alone": [case for case in wanted if case[1] == 0], "adapters": [case for case in wanted if case[1] > 0]}
    if arguments.engine:
        with open(arguments.output, encoding="utf-8") as file:
            report = json.load(file)
        raise SystemExit(one_engine(arguments, parts[arguments.engine], report))
    settings = {name: os.environ.get(name, usual) for name, usual in SETTINGS.items()}
    environment = {
        "vllm": version("vllm"),
        "torch": version("torch"),
        "platform": f"{platform.system().lower()} {platform.machine()}",
        "boot": text("/proc/sys/kernel/random/boot_id"),
    }
    report = {"format": "trifuse.llm-eval/1", "model": str(arguments.config), "backend": "vllm", "dtype": arguments.dtype, "device": None}
    report |= {"environment": environment, "settings": settings, "repeats": arguments.repeats, "engines": [], "ppl": [], "speed": [], "wrong": []}
    write(report, arguments.output)
    statuses = set()
    for engine in (name for name, part in parts.items() if part):
        left = arguments.seconds - (time.time() - arguments.since)
        if left <= 0:
            print(f"the engine {engine}: no time left", file=sys.stderr, flush=True)
            statuses.add(CUT)
            break
        command = [sys.executable, *sys.argv, "--engine", engine, "--since", str(time.time()), "--seconds", str(left)]
        # One that fails does not end the run.
        statuses.add(subprocess.run(command, env=os.environ | settings).returncode)
    raise SystemExit(1 if statuses - {0, CUT} else max(statuses))


if __name__ == "__main__":
    main()
