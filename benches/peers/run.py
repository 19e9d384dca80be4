"""Runs PyTorch on the shapes of a report of `trifuse bench SUITE --json`: python3 benches/peers/run.py OURS.json -o THEIRS.json

The shapes, the pattern of blocks and the schedule come from the report. Every answer is compared with float64 before it
is timed; what is wrong is told and not timed."""

import argparse
import json
import sys
import time

import torch

from peers import OPS, TYPES
from stored import write
from timing import Timer, captured, relative_l2

ALLOWED = {"f16": 1e-3, "bf16": 8e-3, "f32": 1e-5}
# Seconds after which what was measured is written again: a run that is ended from outside leaves that.
KEPT = 5.0


def measure(timer: Timer, shape: dict, name: str, work, check) -> dict:
    """One peer on one shape."""
    found, expected = check(work())
    error = relative_l2(found, expected)
    if not error <= ALLOWED[shape["dtype"]]:
        return {"peer": name, "why": f"wrong: relative L2 {error:.2e} of {ALLOWED[shape['dtype']]:.0e}"}
    call = captured(work) if shape["captured"] else work
    return {"peer": name, "relative_l2": error, "cold": timer.time(call, warm=False), "warm": timer.time(call, warm=True)}


def peers_of(timer: Timer, shape: dict) -> list[dict]:
    """Every peer on one shape; one that fails does not end the run."""
    measured = []
    try:
        for name, work, check in OPS[shape["op"]](shape):
            try:
                measured.append(measure(timer, shape, name, work, check))
            except Exception as error:  # a peer that lacks a kernel for a shape raises almost anything
                measured.append({"peer": name, "why": (str(error).splitlines() or [repr(error)])[0][:160]})
    except Exception as error:
        measured.append({"peer": "PyTorch", "why": (str(error).splitlines() or [repr(error)])[0][:160]})
    # A sweep's sizes are beside each other: what one gives back, the next one takes.
    if shape["suite"] != "align":
        torch.cuda.empty_cache()
    # One function that was compiled for eight shapes is not compiled for a ninth, and runs eager without a word.
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
    return measured


def ceilings(timer: Timer, dtype: str) -> dict:
    """What PyTorch reaches with the same copy and with cuBLAS."""
    a = torch.randint(0, 255, (2 << 30,), dtype=torch.uint8, device="cuda")
    b = torch.empty_like(a)
    rates = {"copy_bytes_per_second": 2 * a.numel() / timer.time(lambda: b.copy_(a), warm=False)["median"]}
    del a, b
    best = 0.0
    for n in (4096, 8192):
        x, y = (torch.randn(n, n, device="cuda").to(TYPES[dtype]) for _ in range(2))
        best = max(best, 2 * n**3 / timer.time(lambda: x @ y.t(), warm=False)["median"])
    return rates | {"product_flops_per_second": best}


def aligned(shape: dict) -> bool:
    """Whether a head is a multiple of 8, or all sizes of a product are of 64, one row aside."""
    sizes = [shape.get(name, 0) for name in ("tokens", "d_out", "d_in")]
    return shape.get("head_dim", 0) % 8 == 0 and all(size % 64 == 0 for size in sizes if size != 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ours", help="a report of trifuse bench --json")
    parser.add_argument("-o", "--output", required=True, help="where the peers' report goes")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="of a sweep, only every N-th size, and heads of multiples of 8, products of 64")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no further shape after so long")
    arguments = parser.parse_args()
    with open(arguments.ours, encoding="utf-8") as file:
        ours = json.load(file)
    if not ours["results"]:
        parser.error(f"{arguments.ours}: no shape was measured")
    torch.manual_seed(0)
    timer = Timer(ours["timing"])
    report = {
        "suite": ours["suite"],
        "dtype": ours["results"][0]["dtype"],
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version(),
        "ceilings": ceilings(timer, ours["results"][0]["dtype"]),
        "results": [],
    }
    start = kept = time.perf_counter()
    for number, shape in enumerate(ours["results"]):
        if number % arguments.every and not aligned(shape):
            continue
        began = time.perf_counter()
        if began - start > arguments.seconds:
            print(f"{shape['name']} and what follows: no time left", file=sys.stderr, flush=True)
            break
        report["results"].append({"name": shape["name"], "peers": peers_of(timer, shape)})
        # Of a sweep of a thousand sizes only what takes long.
        if (took := time.perf_counter() - began) > 1 or len(ours["results"]) < 200:
            print(f"{shape['name']}: {took:.1f} s", file=sys.stderr, flush=True)
        if time.perf_counter() - kept > KEPT:
            write(report, arguments.output)
            kept = time.perf_counter()
    write(report, arguments.output)


if __name__ == "__main__":
    main()
