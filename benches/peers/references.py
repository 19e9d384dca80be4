"""What four published suites say, beside what we measure: python3 benches/peers/references.py DIR --markdown docs/references.md

DIR holds the reports of `trifuse bench` (SUITE.json, as scripts/bench.sh leaves them). Each row names its shape, so that a
figure of ours is only ever one that a stored report holds; a row that DIR lacks stays as the page has it, and is named. A100 and
RTX 3090 have estimates: the least time that their memory and tensor cores allow for what our report says was computed and moved."""

import argparse
import json
import pathlib
import sys
from collections.abc import Callable

from table import insert, parts, seconds

# fp16 operations a second with sums in f32, and bytes a second: the makers' figures.
CHIPS = {"A100": (312e12, 2.039e12), "RTX 3090": (71e12, 0.936e12)}
HEAD = ["case", "published", "ours, H200", "rate", "no faster on A100", "on RTX 3090"]

STYLEFORGE = {512: (0.67, 0.82, 1.49), 1024: (2.01, 1.52, 3.53), 2048: (7.12, 2.97, 11.09), 4096: (26.18, 5.78, 31.96)}
# Milliseconds and "effective" TFLOP/s by blocks; the graph that the suite calls that many.
SPARSE = {204: (0.039, None, 3968), 800: (0.460, 18.2, 8064), 1600: (1.411, 11.89, 11392), 3200: (2.020, 16.61, 16128)}
# Microseconds a sequence of its kernel in Triton, by tokens, sequences, and heads of 64.
FLASHCORE = {(128, 32, 8): "0.74 µs a sequence", (512, 8, 8): "4.34 µs a sequence", (2048, 16, 16): "2.908 ms, 94.5 TFLOP/s"}
# Milliseconds of PyTorch's attention on an A100 and an H100, by the width of a head.
HEADS = {
    64: (0.826, 0.489), 65: (1.642, 0.967), 72: (1.206, 0.701), 80: (1.201, 0.689), 88: (1.282, 0.749), 95: (1.666, 0.980),
    96: (1.140, 0.674), 97: (2.101, 1.315), 104: (1.551, 0.975), 107: (2.147, 1.332), 111: (2.157, 1.337), 112: (1.545, 0.955),
    113: (2.219, 1.372), 120: (1.603, 1.023), 121: (2.143, 1.243), 127: (2.163, 1.257), 128: (1.485, 0.882), 129: (2.820, 1.670),
    136: (2.098, 1.266), 144: (2.029, 1.226), 152: (2.149, 1.312), 153: (2.732, 1.600), 160: (1.933, 1.156),
}  # fmt: skip


def styleforge() -> list[tuple]:
    rows = []
    for tokens, (attention, mlp, layer) in STYLEFORGE.items():
        rows.append((f"attention, {tokens} tokens", f"{attention} ms", f"prefill b1 h32 d128 s{tokens}"))
        rows.append((f"MLP, {tokens} tokens", f"{mlp} ms", f"m{tokens} 4096-11008-4096 gelu"))
        rows.append((f"layer, {tokens} tokens", f"{layer} ms", f"llama2-7b reference b1 s{tokens}"))
    return rows


def sparse() -> list[tuple]:
    rows = []
    for blocks, (milliseconds, effective, tokens) in SPARSE.items():
        told = f"{milliseconds} ms" + (f', {effective} "effective" TFLOP/s' if effective else ", the first product alone")
        rows.append((f"{blocks} blocks, one head of 64", told, f"{blocks} blocks of 128 b1 h1 d64 s{tokens}"))
    rows.append(("100,000 tokens, a fifth of all pairs", "called 800 blocks", "122305 blocks of 128 b1 h1 d64 s100096"))
    for (tokens, sequences, heads), told in FLASHCORE.items():
        rows.append((f"attention, {sequences} of {tokens} tokens, {heads} heads", told, f"prefill b{sequences} h{heads} d64 s{tokens}"))
    rows.append(("product of 4096³", "0.157 ms", "m4096 n4096 k4096"))
    rows.append(("product, M and N 8192", "599 TFLOP/s, with K 237,568", "m8192 n8192 k8192"))
    return rows


def held(entry: dict) -> str:
    memory = entry["memory"]
    return f"{memory['device_bytes'] / 1e6:.0f} MB, {memory['lora_f16_ratio']:.1f} times less"


def fit(entry: dict) -> str:
    return f"{entry['memory']['registered']['fit_80_gb']:,}"


def adapters() -> list[tuple]:
    one = "128 x 4096 r16 tokens16 adapters100"
    return [
        ("bytes of 100 adapters, 7 bits", "316 MB, 10.1 times less than f16", f"chained {one}, graph", held),
        ("adapters that 80 GB hold, 7 bits", "320, of f16 110", "registered 2000 of 7 bits, 128 x 4096 r16 tokens16", fit),
        ("adapters that 80 GB hold, 3 bits", "320, of f16 110", "registered 20000 of 3 bits, 128 x 4096 r16 tokens16", fit),
        ("128 projections, 16 tokens, graph", "3.59 ms (A100)", f"chained {one}, graph"),
        ("the same, launch by launch", "–", f"chained {one}, no graph"),
        ("the same, adapters on the host", "–", f"from host, {one}, no graph"),
        ("the same, copied in at once", "–", f"from host at once, {one}, graph"),
        ("16 tokens, one adapter", "3.59 ms (A100)", "chained 128 x 4096 r16 tokens16 adapters1"),
    ]


def sizes() -> list[tuple]:
    rows = [(f"attention, head of {d}", f"{a100:.3f} ms (A100), {h100:.3f} (H100)", f"prefill b4 h32 d{d} s2048") for d, (a100, h100) in HEADS.items()]
    rows += [
        ("product of 8192³", "1.59 to 1.66 ms (H100)", "m8192 n8192 k8192"),
        ("512 rows, K and N 4096", "167 TFLOP/s (A100), 344 (H100)", "m512 n4096 k4096"),
        ("2048 rows, K and N 4096", "–", "m2048 n4096 k4096"),
        ("2048 rows, K 4095", "512 rows, odd K: 56 TFLOP/s (A100), 104 (H100)", "m2048 n4096 k4095"),
        ("2048 rows, N 4095", "512 rows, odd N: 56 TFLOP/s (A100), 101 (H100)", "m2048 n4095 k4096"),
        ("one row, K and N 4096", "36.1 µs (A100), 45.4 (H100)", "m1 n4096 k4096"),
        ("one row, odd K", "40.3 µs (A100), 36.1 (H100): launch-bound", "m1 n4096 k3991"),
        ("one row, odd N", "37.4 µs (A100), 36.7 (H100): launch-bound", "m1 n3991 k4096"),
    ]
    return rows


# Suites whose shapes are another's too: swept, or only there to be a limit.
SHARING = ("align", "micro", "projections", "adapters")
TABLES = {"StyleForge: RTX 3090, f32, Llama-2-7B": styleforge, "periodicdent42: H100": sparse, "S2LC: A100": adapters, "GAC: A100 and H100": sizes}


def reports(folder: pathlib.Path) -> dict[str, dict]:
    """Every measured shape by its name, in f16; of a shape that several suites have, that of the suite it is the subject of."""
    told = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))]
    # The peers' reports lie beside ours.
    own = [report for report in told if "environment" in report]
    own.sort(key=lambda report: (report["suite"] in SHARING, report["suite"]))
    found: dict[str, dict] = {}
    for report in own:
        for entry in report["results"]:
            if entry["status"] == "measured" and entry["dtype"] == "f16":
                found.setdefault(entry["name"], entry)
    return found


def rate(entry: dict) -> str:
    rates = entry["rates"]
    if rates["bound"] == "memory":
        return f"{rates['bytes'] / 1e12:.2f} TB/s"
    return f"{rates['executed_flops'] / 1e12:.0f} TFLOP/s"


def floor(cost: dict, chip: str) -> str:
    flops, moved = CHIPS[chip]
    return seconds(max(cost["executed_flops"] / flops, cost["bytes"] / moved))


def row(case: str, published: str, entry: dict, figure: Callable[[dict], str] | None) -> str:
    """A shape's time, rate and estimates; or another figure of it, which is the same on every GPU."""
    if figure:
        return line([case, published, figure(entry), "–", "–", "–"])
    return line([case, published, seconds(entry["cold"]["median"]), rate(entry), *(floor(entry["cost"], chip) for chip in CHIPS)])


def line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def table(title: str, rows: list[tuple], measured: dict[str, dict], before: str) -> str:
    """Rows that were not measured are those of the table `before`."""
    kept = {old.split("|")[1].strip(): old for old in before.splitlines() if old.startswith("| ")}
    lines = []
    for case, published, name, *figure in rows:
        if name in measured:
            lines.append(row(case, published, measured[name], *figure or [None]))
        else:
            lines.append(kept.get(case, line([case, published, "not measured", "–", "–", "–"])))
    return f"### {title}\n\n" + "\n".join([line(HEAD), line(["---"] * 2 + ["---:"] * 4), *lines])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path, metavar="DIR")
    parser.add_argument("--markdown", type=pathlib.Path, metavar="FILE")
    arguments = parser.parse_args()
    measured = reports(arguments.folder)
    old = parts(arguments.markdown.read_text(encoding="utf-8")) if arguments.markdown else {}
    before = {title: text for (title, _), text in old.items()}
    text = "\n\n".join(table(title, rows(), measured, before.get(title, "")) for title, rows in TABLES.items())
    print(text)
    absent = [name for rows in TABLES.values() for _, _, name, *_ in rows() if name not in measured]
    if absent:
        print("not in these reports: " + "; ".join(absent), file=sys.stderr)
    if arguments.markdown:
        insert(arguments.markdown, "references", text)


if __name__ == "__main__":
    main()
