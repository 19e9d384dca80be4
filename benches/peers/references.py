"""What four published suites say, beside what we measure: python3 benches/peers/references.py DIR --markdown docs/references.md

DIR holds the reports of `trifuse bench` (SUITE.json, as scripts/bench.sh leaves them; `trifuse bench published --backend cpu --dtype f32
--json` for the rows of a processor). Each row names its shape, or shapes that it is the sum of, so that a figure of ours is only
ever one that a stored report holds; a row that DIR lacks stays as the page has it, and is named. A100 and RTX 3090 have estimates: the
least time that their memory and tensor cores allow for what our report says was computed and moved."""

import argparse
import json
import pathlib
import sys
from collections.abc import Callable

from table import insert, parts, seconds

# fp16 operations a second with sums in f32, and bytes a second: the makers' figures.
CHIPS = {"A100": (312e12, 2.039e12), "RTX 3090": (71e12, 0.936e12)}
# The GPU of the column of ours, whose name is in its head: figures of another belong in no row.
OURS = "H200"
HEAD = ["case", "published", f"ours, {OURS}", "rate", "no faster on A100", "on RTX 3090"]
ON_PROCESSOR = ["case", "published", "ours, on a processor", "rate", "of"]

STYLEFORGE = {512: (0.67, 0.82, 1.49), 1024: (2.01, 1.52, 3.53), 2048: (7.12, 2.97, 11.09), 4096: (26.18, 5.78, 31.96)}
SMALL_MLPS = {(8, 1024, 512): 0.987, (4, 2048, 768): 1.234, (2, 4096, 1024): 2.345}
# Milliseconds and "effective" TFLOP/s by blocks; the graph that the suite calls that many.
SPARSE = {204: (0.039, None, 3968), 800: (0.460, 18.2, 8064), 1600: (1.411, 11.89, 11392), 3200: (2.020, 16.61, 16128)}
# Microseconds a sequence of its kernel in Triton, by tokens, sequences, and heads of 64.
FLASHCORE = {
    (128, 32, 8): "0.74 µs a sequence; 2.27 on an L4",
    (512, 8, 8): "4.34 µs a sequence; 17.02 on an L4",
    (2048, 16, 16): "2.908 ms, 94.5 TFLOP/s",
    (512, 1, 8): "24.5 µs on an L4",
    (512, 16, 96): "0.269 to 0.491 µs a head and sequence",
    (1024, 1, 1): "90.65 µs by hand, 44.9 in three kernels",
    (1024, 1, 64): "347 µs, three kernels of cuBLAS",
}
# Milliseconds of PyTorch's attention on an A100 and an H100, by the width of a head.
HEADS = {
    64: (0.826, 0.489), 65: (1.642, 0.967), 72: (1.206, 0.701), 80: (1.201, 0.689), 88: (1.282, 0.749), 95: (1.666, 0.980),
    96: (1.140, 0.674), 97: (2.101, 1.315), 104: (1.551, 0.975), 107: (2.147, 1.332), 111: (2.157, 1.337), 112: (1.545, 0.955),
    113: (2.219, 1.372), 120: (1.603, 1.023), 121: (2.143, 1.243), 127: (2.163, 1.257), 128: (1.485, 0.882), 129: (2.820, 1.670),
    136: (2.098, 1.266), 144: (2.029, 1.226), 152: (2.149, 1.312), 153: (2.732, 1.600), 160: (1.933, 1.156), 162: (3.398, 2.044),
    176: (2.426, 1.514), 190: (3.277, 1.952), 192: (2.289, 1.405), 194: (4.322, 2.717), 208: (3.179, 2.099), 224: (3.175, 2.122),
    226: (4.524, 2.877), 240: (3.204, 2.160), 248: (3.384, 2.326), 254: (4.223, 2.613), 256: (2.930, 1.932),
}  # fmt: skip


def styleforge() -> list[tuple]:
    rows = []
    for tokens, (attention, mlp, layer) in STYLEFORGE.items():
        rows.append((f"attention, {tokens} tokens", f"{attention} ms", f"prefill b1 h32 d128 s{tokens}"))
        rows.append((f"MLP, {tokens} tokens", f"{mlp} ms", f"m{tokens} 4096-11008-4096 gelu"))
        rows.append((f"layer, {tokens} tokens", f"{layer} ms", f"llama2-7b reference b1 s{tokens}"))
    for (sequences, tokens, d), milliseconds in SMALL_MLPS.items():
        rows.append((f"MLP, {sequences} of {tokens} tokens, {d} wide", f"{milliseconds:.3f} ms", f"m{sequences * tokens} {d}-{4 * d}-{d} gelu"))
    rows.append(("first kernel, 128 tokens, 128 wide", "0.523 ms, the least of its table", "prefill b1 h4 d32 s128"))
    rows.append(("first kernel, 512 tokens, 256 wide", "1.987 ms, the most", "prefill b1 h4 d64 s512"))
    return rows


def processor() -> list[tuple]:
    """In f32."""
    times = {64: 0.347, 128: 0.635, 256: 1.306}
    return [(f"attention, {tokens} tokens, 8 heads of 64", f"{told} ms", f"prefill b1 h8 d64 s{tokens}") for tokens, told in times.items()]


def sparse() -> list[tuple]:
    rows = []
    for blocks, (milliseconds, effective, tokens) in SPARSE.items():
        told = f"{milliseconds} ms" + (f', {effective} "effective" TFLOP/s' if effective else ", the first product alone")
        rows.append((f"{blocks} blocks, one head of 64", told, f"{blocks} blocks of 128 b1 h1 d64 s{tokens}"))
    rows.append(("100,000 tokens, a fifth of all pairs", "called 800 blocks", "122305 blocks of 128 b1 h1 d64 s100096"))
    for (tokens, sequences, heads), told in FLASHCORE.items():
        case = f"attention, {sequences} of {tokens} tokens, {heads} head{'s' if heads > 1 else ''}"
        rows.append((case, told, f"prefill b{sequences} h{heads} d64 s{tokens}"))
    rows.append(("product of 4096³", "0.157 ms", "m4096 n4096 k4096"))
    rows.append(("product, M and N 8192", "599 TFLOP/s, with K 237,568", "m8192 n8192 k8192"))
    rows.append(("the same, K 19,712", "551 TFLOP/s", "m8192 n8192 k19712"))
    rows.append(("the same, K 73,728", "597 TFLOP/s", "m8192 n8192 k73728"))
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
        ("8192, K 8001", "4.20 to 4.60 ms (H100, odd K)", "m8192 n8192 k8001"),
        ("8192, N 8001", "4.03 to 8.6 ms (H100, odd N)", "m8192 n8001 k8192"),
        ("8192, M 8001", "1.57 to 1.65 ms (H100, odd M)", "m8001 n8192 k8192"),
        ("8192, K 112", "91.1 TFLOP/s (A100)", "m8192 n8192 k112"),
        ("8192, K 120", "76.8 TFLOP/s (A100)", "m8192 n8192 k120"),
        ("8192, K 107", "37 to 40 TFLOP/s (A100)", "m8192 n8192 k107"),
        ("4096, K 128", "50 µs (A100)", "m4096 n4096 k128"),
        ("4096, K 112", "50 µs (A100)", "m4096 n4096 k112"),
        ("4096, K 107", "89 µs (A100)", "m4096 n4096 k107"),
        ("2048, K 128", "19.4 to 19.7 µs (A100), 17.6 to 18.9 (H100): launch-bound", "m2048 n2048 k128"),
        ("2048, N 1664, K 128", "13.0 to 13.9 µs (A100)", "m2048 n1664 k128"),
        ("2048, N 1672, K 128", "28.5 to 30.3 µs (A100)", "m2048 n1672 k128"),
        ("M 1088, N 2048, K 128", "11.9 µs (A100)", "m1088 n2048 k128"),
        ("M 1089, N 2048, K 128", "19.9 µs (A100)", "m1089 n2048 k128"),
        ("512 rows, K and N 4096", "167 TFLOP/s (A100), 344 (H100)", "m512 n4096 k4096"),
        ("512 rows, K 4094", "106 TFLOP/s (A100), 163 (H100)", "m512 n4096 k4094"),
        ("512 rows, N 4094", "103 TFLOP/s (A100), 166 (H100)", "m512 n4094 k4096"),
        ("512 rows, K 4095", "56 TFLOP/s (A100), 104 (H100)", "m512 n4096 k4095"),
        ("512 rows, N 4095", "56 TFLOP/s (A100), 101 (H100)", "m512 n4095 k4096"),
        ("pair of rank 1432, 512 rows of 4096", "0.103 ms (A100)", ("m512 n1432 k4096", "m512 n4096 k1432")),
        ("pair of rank 1433", "0.246 ms (A100)", ("m512 n1433 k4096", "m512 n4096 k1433")),
        ("pair of rank 2230, to 14336", "0.442 ms (A100)", ("m512 n2230 k4096", "m512 n14336 k2230")),
        ("one row, K and N 4096", "36.1 µs (A100), 45.4 (H100)", "m1 n4096 k4096"),
        ("one row, odd K", "40.3 µs (A100), 36.1 (H100): launch-bound", "m1 n4096 k3991"),
        ("one row, odd N", "37.4 µs (A100), 36.7 (H100): launch-bound", "m1 n3991 k4096"),
        ("one row, K and N 8192", "70.7 µs (H100)", "m1 n8192 k8192"),
        ("one row of 8192, K 8001", "77.9 µs (H100, odd K)", "m1 n8192 k8001"),
        ("one row of 8192, N 8001", "73.5 µs (H100, odd N)", "m1 n8001 k8192"),
    ]
    return rows


# Suites whose shapes are another's too: swept, or only there to be a limit.
SHARING = ("align", "micro", "projections", "adapters")
# The head of each table, and its rows.
TABLES = {
    "StyleForge: RTX 3090, f32, Llama-2-7B": (HEAD, styleforge),
    "StyleForge: a processor, f32": (ON_PROCESSOR, processor),
    "periodicdent42: H100": (HEAD, sparse),
    "S2LC: A100": (HEAD, adapters),
    "GAC: A100 and H100": (HEAD, sizes),
}


def reports(folder: pathlib.Path) -> tuple[dict[str, dict], dict[str, dict]]:
    """Every measured shape by its name: of our GPU in f16, and of processors in f32; of a shape that several suites have, that of the
    suite it is the subject of."""
    told = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))]
    # The peers' reports lie beside ours.
    own = [report for report in told if "environment" in report]
    own.sort(key=lambda report: (report["suite"] in SHARING, report["suite"]))
    on_gpu: dict[str, dict] = {}
    on_processor: dict[str, dict] = {}
    for report in own:
        found, dtype = (on_processor, "f32") if report["device"]["kind"] == "cpu" else (on_gpu, "f16")
        if found is on_gpu and OURS not in report["device"]["name"]:
            print(f"left out: {report['suite']}, of {report['device']['name']} and not of {OURS}", file=sys.stderr)
            continue
        for entry in report["results"]:
            if entry["status"] == "measured" and entry["dtype"] == dtype:
                found.setdefault(entry["name"], entry | {"device": report["device"]["name"]})
    return on_gpu, on_processor


def names(row: tuple) -> tuple[str, ...]:
    """The shapes of a row."""
    return (row[2],) if isinstance(row[2], str) else row[2]


def rate(cost: dict, took: float, bound: str) -> str:
    if bound == "memory":
        return f"{cost['bytes'] / took / 1e12:.2f} TB/s"
    flops = cost["executed_flops"] / took
    return f"{flops / 1e12:.0f} TFLOP/s" if flops >= 1e12 else f"{flops / 1e9:.1f} GFLOP/s"


def floor(cost: dict, chip: str) -> float:
    flops, moved = CHIPS[chip]
    return max(cost["executed_flops"] / flops, cost["bytes"] / moved)


def row(case: str, published: str, entries: list[dict], figure: Callable[[dict], str] | None) -> str:
    """The time of shapes one after another, their rate and estimates; or another figure of one, which is the same on every GPU."""
    if figure:
        return line([case, published, figure(entries[0]), "–", "–", "–"])
    took = sum(entry["cold"]["median"] for entry in entries)
    cost = {count: sum(entry["cost"][count] for entry in entries) for count in ("executed_flops", "bytes")}
    cells = [case, published, seconds(took), rate(cost, took, entries[0]["rates"]["bound"])]
    if entries[0]["dtype"] == "f32":
        return line([*cells, entries[0]["device"]])
    return line([*cells, *(seconds(sum(floor(entry["cost"], chip) for entry in entries)) for chip in CHIPS)])


def line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def table(title: str, head: list[str], rows: list[tuple], measured: dict[str, dict], before: str) -> str:
    """Rows that were not measured are those of the table `before`."""
    kept = {old.split("|")[1].strip(): old for old in before.splitlines() if old.startswith("| ")}
    lines = []
    for one in rows:
        case, published, _, *figure = one
        if all(name in measured for name in names(one)):
            lines.append(row(case, published, [measured[name] for name in names(one)], *figure or [None]))
        else:
            lines.append(kept.get(case, line([case, published, "not measured", *["–"] * (len(head) - 3)])))
    return f"### {title}\n\n" + "\n".join([line(head), line(["---"] * 2 + ["---:"] * (len(head) - 2)), *lines])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path, metavar="DIR")
    parser.add_argument("--markdown", type=pathlib.Path, metavar="FILE")
    arguments = parser.parse_args()
    on_gpu, on_processor = reports(arguments.folder)
    old = parts(arguments.markdown.read_text(encoding="utf-8")) if arguments.markdown else {}
    before = {title: text for (title, _), text in old.items()}
    tables, absent = [], []
    for title, (head, rows) in TABLES.items():
        measured = on_processor if head is ON_PROCESSOR else on_gpu
        tables.append(table(title, head, rows(), measured, before.get(title, "")))
        absent += [name for one in rows() for name in names(one) if name not in measured]
    text = "\n\n".join(tables)
    print(text)
    if absent:
        print("not in these reports: " + "; ".join(absent), file=sys.stderr)
    if arguments.markdown:
        insert(arguments.markdown, "references", text)


if __name__ == "__main__":
    main()
