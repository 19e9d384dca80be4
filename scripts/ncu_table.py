#!/usr/bin/env python3
"""A short table of what Nsight Compute counted: scripts/ncu_table.py 'NAME=COUNTERS.csv'... [--markdown FILE]

The files are of `ncu --csv --page raw`, one kernel each (scripts/ncu.sh makes them). Shares are of what the unit can do at most, stalls
of the cycles between two instructions of a warp."""

import argparse
import csv
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "benches" / "peers"))
from table import insert  # noqa: E402

# Columns of the table: what it is called, and its counter, as a share of what there is at most over the whole time.
SHARES = {
    "tensor pipe": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "exp2 pipe": "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_elapsed",
    "issue slots": "sm__inst_issued.avg.pct_of_peak_sustained_elapsed",
    "L2": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "DRAM": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
}
# Two counters of the same instructions: over the time in which a multiprocessor has work, and over all of it.
BUSY = "sm__inst_executed_pipe_alu.avg.pct_of_peak_sustained_"
STALL = re.compile(r"average_warps?_(?:latency_)?issue_stalled_(\w+?)(?:_per_\w+)?\.ratio$")
TIME = "gpu__time_duration.sum"
# How many reasons to wait are named.
REASONS = 3


def read(file: pathlib.Path) -> tuple[dict[str, float], dict[str, str]]:
    """Counters of the kernel, and their units."""
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.startswith('"')]
    names, units, *kernels = csv.reader(lines)
    if not kernels:
        raise SystemExit(f"{file}: expected one kernel, found none")
    values = {}
    for name, value in zip(names, kernels[0]):
        try:
            values[name] = float(value.replace(",", ""))
        except ValueError:
            continue
    return values, dict(zip(names, units))


def share(values: dict[str, float], counter: str) -> str:
    return f"{values[counter]:.0f} %" if counter in values else "–"


def busy(values: dict[str, float]) -> str:
    """The share of the time in which a multiprocessor has work, on average."""
    active, elapsed = (values.get(BUSY + over, 0.0) for over in ("active", "elapsed"))
    return f"{elapsed / active * 100:.0f} %" if active else "–"


def stalls(values: dict[str, float]) -> str:
    """The reasons that warps wait for most, with their shares of all waiting."""
    found = {}
    for name, value in values.items():
        if (match := STALL.search(name)) and (reason := match[1]) != "selected" and "not_issued" not in reason:
            found[reason] = max(value, found.get(reason, 0.0))
    total = sum(found.values())
    most = sorted(found, key=found.get, reverse=True)[:REASONS]
    return ", ".join(f"{reason.replace('_', ' ')} {found[reason] / total * 100:.0f} %" for reason in most) if total else "–"


def time(values: dict[str, float], units: dict[str, str]) -> str:
    factor = {"ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0, "ms": 1e3, "msecond": 1e3}.get(units.get(TIME, ""), None)
    return f"{values[TIME] * factor:.1f} µs" if factor and TIME in values else "–"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernels", nargs="+", metavar="NAME=FILE")
    parser.add_argument("--markdown", type=pathlib.Path, metavar="FILE")
    arguments = parser.parse_args()
    rows = [["shape", "time", "busy", *SHARES, "warps wait for"]]
    for kernel in arguments.kernels:
        name, _, file = kernel.rpartition("=")
        values, units = read(pathlib.Path(file))
        rows.append([name, time(values, units), busy(values), *(share(values, counter) for counter in SHARES.values()), stalls(values)])
    rule = ["---", *["---:"] * (len(rows[0]) - 2), "---"]
    text = "\n".join("| " + " | ".join(row) + " |" for row in [rows[0], rule, *rows[1:]])
    print(text)
    if arguments.markdown:
        insert(arguments.markdown, "counters", text)


if __name__ == "__main__":
    main()
