"""The table of sentences a second: python3 benches/peers/embed_table.py OURS THEIRS [--markdown docs/embedding.md]

OURS is what the example `embed_speed` printed, THEIRS what benches/peers/embed.py did, on one machine one after the other."""

import argparse
import json
import pathlib
import re

from table import insert, markdown

BATCHES = (32, 256, 1024)
# Rows of the table, each with what its line begins with and, of ours, whether sentences have the lengths of real text.
OURS = {
    "base": ("base", False),
    "base, lengths of real text": ("base", True),
    "one adapter, rank 16, 4 bits, in the product": ("one adapter, rank 16, 4 bits, in the product", False),
    "24 adapters mixed, rank 16, 4 bits, in the product": ("24 mixed, rank 16, 4 bits, in the product", False),
    "the same, lengths of real text": ("24 mixed, rank 16, 4 bits, in the product", True),
    "24 adapters mixed, 128 tokens, launches of their own": ("24 mixed, rank 16, 4 bits, apart", False),
}
THEIRS = {
    "PyTorch eager": "base, eager",
    "PyTorch eager, lengths 8 to 100 padded to 128": "base, eager, lengths 8 to 100 padded to 128",
    "PyTorch compiled, max-autotune": "base, compiled with max-autotune",
    "PEFT, one adapter": "PEFT, one adapter",
    "PEFT, 24 adapters mixed": "PEFT, 24 adapters mixed",
}
LINE = re.compile(r"^(.+?)\s+b(\d+)\s+(128 tokens|real lengths)\s+(\d+) sentences/s on the device\s+(\d+) with the host")


def ours(file: pathlib.Path) -> dict[tuple[str, bool, int], tuple[int, int]]:
    """Of the device alone, and with the host's part, by what, real lengths and batch."""
    lines = file.read_text(encoding="utf-8").splitlines()
    found = [match for line in lines if (match := LINE.match(line))]
    return {(match[1], match[3] == "real lengths", int(match[2])): (int(match[4]), int(match[5])) for match in found}


def theirs(file: pathlib.Path) -> dict[tuple[str, int], int]:
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("{")]
    told = [json.loads(line) for line in lines]
    return {(line["what"], line["batch"]): line["sentences_per_second"] for line in told if "what" in line}


def rounded(value: int) -> str:
    return f"{round(value, -2):,}" if value >= 10_000 else f"{value:,}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ours", type=pathlib.Path)
    parser.add_argument("theirs", type=pathlib.Path)
    parser.add_argument("--markdown", type=pathlib.Path, metavar="FILE")
    arguments = parser.parse_args()
    own, other = ours(arguments.ours), theirs(arguments.theirs)
    absent = [f"{what}, batch {batch}" for what, real in OURS.values() for batch in BATCHES if (what, real, batch) not in own]
    absent += [f"{what}, batch 1024" for what in THEIRS.values() if (what, 1024) not in other]
    if absent:
        raise SystemExit("not measured: " + "; ".join(absent))
    rows = [["128 tokens, batch", *map(str, BATCHES)]]
    for title, (what, real) in OURS.items():
        told = [own.get((what, real, batch)) for batch in BATCHES]
        rows.append([title, *(f"{rounded(pair[0])} ({rounded(pair[1])})" if pair else "" for pair in told)])
    for title, what in THEIRS.items():
        told = [other.get((what, batch)) for batch in BATCHES]
        rows.append([title, *(rounded(rate) if rate else "" for rate in told)])
    page = markdown(rows)
    print(page)
    if arguments.markdown:
        insert(arguments.markdown, "sentences", page)


if __name__ == "__main__":
    main()
