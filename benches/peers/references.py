"""What four published suites say, beside what we measure: python3 benches/peers/references.py DIR --markdown docs/references.md

DIR holds the reports of `trifuse bench` (SUITE.json, as scripts/bench.sh leaves them). Each row names its shape, so that a
figure of ours is only ever one that a stored report holds. A100 and RTX 3090 have estimates: the least time that their memory
and tensor cores allow for what our report says was computed and moved."""

import argparse
import json
import pathlib

from table import insert, seconds

# fp16 operations a second with sums in f32, and bytes a second: the makers' figures.
CHIPS = {"A100": (312e12, 2.039e12), "RTX 3090": (71e12, 0.936e12)}
HEAD = ["case", "published", "ours, H200", "rate", "no faster on A100", "on RTX 3090"]

STYLEFORGE = {512: (0.67, 0.82, 1.49), 1024: (2.01, 1.52, 3.53), 2048: (7.12, 2.97, 11.09), 4096: (26.18, 5.78, 31.96)}
# Milliseconds and "effective" TFLOP/s by blocks; the graph that the suite calls that many.
SPARSE = {204: (0.039, None, 3968), 800: (0.460, 18.2, 8064), 1600: (1.411, 11.89, 11392), 3200: (2.020, 16.61, 16128)}
# Milliseconds of PyTorch's attention on an A100 and an H100, by the width of a head.
HEADS = {64: (0.826, 0.489), 96: (1.140, 0.674), 107: (2.147, 1.332), 112: (1.545, 0.955), 120: (1.603, 1.023), 128: (1.485, 0.882)}


def styleforge() -> list[tuple[str, str, str]]:
    rows = []
    for tokens, (attention, mlp, layer) in STYLEFORGE.items():
        rows.append((f"attention, {tokens} tokens", f"{attention} ms", f"prefill b1 h32 d128 s{tokens}"))
        rows.append((f"MLP, {tokens} tokens", f"{mlp} ms", f"m{tokens} 4096-11008-4096 gelu"))
        rows.append((f"layer, {tokens} tokens", f"{layer} ms", f"llama2-7b reference b1 s{tokens}"))
    return rows


def sparse() -> list[tuple[str, str, str]]:
    rows = []
    for blocks, (milliseconds, effective, tokens) in SPARSE.items():
        told = f"{milliseconds} ms" + (f', {effective} "effective" TFLOP/s' if effective else ", the first product alone")
        rows.append((f"{blocks} blocks, one head of 64", told, f"{blocks} blocks of 128 b1 h1 d64 s{tokens}"))
    rows.append(("100,000 tokens, a fifth of all pairs", "called 800 blocks", "122305 blocks of 128 b1 h1 d64 s100096"))
    rows.append(("product of 4096³", "0.157 ms", "m4096 n4096 k4096"))
    rows.append(("product of 8192²", "599 TFLOP/s, with K 237,568", "m8192 n8192 k8192"))
    return rows


def adapters() -> list[tuple[str, str, str]]:
    one = "128 x 4096 r16 tokens16 adapters100"
    return [
        ("128 projections, 16 tokens, graph", "3.59 ms (A100)", f"chained {one}, graph"),
        ("the same, launch by launch", "–", f"chained {one}, no graph"),
        ("the same, adapters on the host", "–", f"from host, {one}, no graph"),
        ("16 tokens, one adapter", "3.59 ms (A100)", "chained 128 x 4096 r16 tokens16 adapters1"),
    ]


def sizes() -> list[tuple[str, str, str]]:
    rows = [(f"attention, head of {d}", f"{a100} ms (A100), {h100} (H100)", f"prefill b4 h32 d{d} s2048") for d, (a100, h100) in HEADS.items()]
    rows += [
        ("product, K 4096", "H100, 512 rows: 344 TFLOP/s", "m2048 n4096 k4096"),
        ("product, K 4095", "104 TFLOP/s", "m2048 n4096 k4095"),
        ("product, N 4095", "101 TFLOP/s", "m2048 n4095 k4096"),
        ("one row, K 4096", "45.4 µs (H100)", "m1 n4096 k4096"),
        ("one row, odd K", "36.1 µs (H100): launch-bound", "m1 n4096 k3991"),
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


def row(case: str, published: str, entry: dict | None) -> list[str]:
    if entry is None:
        return [case, published, "not measured", "–", "–", "–"]
    return [case, published, seconds(entry["cold"]["median"]), rate(entry), *(floor(entry["cost"], chip) for chip in CHIPS)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path, metavar="DIR")
    parser.add_argument("--markdown", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--whole", action="store_true", help="name the rows that DIR lacks, and change nothing then")
    arguments = parser.parse_args()
    measured = reports(arguments.folder)
    absent = [name for rows in TABLES.values() for _, _, name in rows() if name not in measured]
    if arguments.whole and absent:
        raise SystemExit("not measured: " + "; ".join(absent))
    page = []
    for title, rows in TABLES.items():
        lines = [HEAD, ["---"] * 2 + ["---:"] * 4, *(row(case, published, measured.get(name)) for case, published, name in rows())]
        page.append(f"### {title}\n\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines))
    text = "\n\n".join(page)
    print(text)
    if arguments.markdown:
        insert(arguments.markdown, "references", text)


if __name__ == "__main__":
    main()
