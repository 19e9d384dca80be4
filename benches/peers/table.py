"""Puts our reports and the peers' side by side: python3 benches/peers/table.py DIR [SUITE...] [--markdown FILE]

DIR holds SUITE.json and SUITE.peers.json of each suite. The table goes to standard output; with --markdown it replaces
what stands between two marks in FILE; a suite that was not measured keeps the table that it has there. With --page, a page that is ready (of `trifuse bench report`) goes between the
marks of --section instead: python3 benches/peers/table.py --page PAGE.md --section reports --markdown FILE"""

import argparse
import json
import pathlib
import re
import statistics

SUITES = ["attention", "linear", "projections", "mlp", "layer", "adapters", "published"]
HEAD = ["shape", "variant", "cold", "warm", "rate", "of ceiling", "best peer", "peer, cold", "ratio", "ratio, warm"]
# Of a layer also its launches one by one, added up.
PARTS = "parts, cold"


def seconds(value: float) -> str:
    return f"{value * 1e3:.3f} ms" if value >= 1e-3 else f"{value * 1e6:.1f} µs"


def rate(entry: dict) -> str:
    rates = entry["rates"]
    if entry["op"] == "launches":
        return f"{seconds(entry['launch_seconds'])} each"
    if rates["bound"] == "memory":
        return f"{rates['bytes'] / 1e9:.0f} GB/s"
    return f"{rates['executed_flops'] / 1e12:.0f} TFLOP/s"


def row(entry: dict, peers: list[dict]) -> list[str]:
    """A shape: ours, and the peer whose time with cold caches is least."""
    told = [peer for peer in peers if "cold" in peer]
    best = min(told, key=lambda peer: peer["cold"]["median"], default=None)
    peer = [best["peer"], seconds(best["cold"]["median"]) + (" †" if best["cold"].get("waited") else "")] if best else ["–", "–"]
    if entry["status"] != "measured":
        return [entry["name"], entry["status"], "–", "–", "–", "–", *peer, "–", "–"]
    cold, warm = entry["cold"]["median"], entry["warm"]["median"]
    ratios = [f"{best['cold']['median'] / cold:.2f}", f"{best['warm']['median'] / warm:.2f}"] if best else ["–", "–"]
    mark = " †" if "launch_bound" in entry["flags"] else ""
    share = "–" if entry["op"] == "launches" else f"{entry['rates']['share_of_ceiling'] * 100:.0f} %"
    return [entry["name"], entry["variant"], seconds(cold) + mark, seconds(warm), rate(entry), share, *peer, *ratios]


def with_parts(head: list[str], rows: list[list[str]], results: list[dict]) -> tuple[list[str], list[list[str]]]:
    """Of layers, the sum of the parts beside the whole; other suites as they are."""
    parts = [entry.get("parts") for entry in results]
    if not any(parts):
        return head, rows
    told = [seconds(part["cold_seconds"]) if part else "–" for part in parts]
    return [*head[:4], PARTS, *head[4:]], [[*row[:4], cell, *row[4:]] for row, cell in zip(rows, told)]


def best(entry: dict, peers: dict[str, list[dict]], caches: str) -> float | None:
    """The ratio of the best peer's time to ours: the peer is the one that is best with cold caches."""
    told = [peer for peer in peers.get(entry["name"], []) if "cold" in peer]
    if entry["status"] != "measured" or not told:
        return None
    return min(told, key=lambda peer: peer["cold"]["median"])[caches]["median"] / entry[caches]["median"]


def means(results: list[dict], peers: dict[str, list[dict]]) -> list[str]:
    """The geometric mean of the ratios of a suite, and the least of them."""
    lines = []
    for caches in ("cold", "warm"):
        ratios = {entry["name"]: ratio for entry in results if (ratio := best(entry, peers, caches))}
        if len(ratios) > 1:
            least = min(ratios, key=ratios.get)
            mean = statistics.geometric_mean(ratios.values())
            lines.append(f"ratio, {caches} caches: geometric mean of {len(ratios)} shapes {mean:.3f}, least {ratios[least]:.2f} ({least})")
    return lines


def grid(results: list[dict], peers: dict[str, list[dict]]) -> tuple[list[str], list[list[str]]]:
    """Ratios with cold caches: a row a product, a column a number of rows of x; the geometric mean of each row last."""
    columns = sorted({entry["tokens"] for entry in results})
    products = sorted({(entry["d_in"], entry["d_out"]) for entry in results})
    found = {(entry["d_in"], entry["d_out"], entry["tokens"]): best(entry, peers, "cold") for entry in results}
    rows = []
    for d_in, d_out in products:
        ratios = [found.get((d_in, d_out, tokens)) for tokens in columns]
        known = [ratio for ratio in ratios if ratio]
        mean = [f"{statistics.geometric_mean(known):.2f}" if known else "–"]
        rows.append([f"{d_in} → {d_out}", *(f"{ratio:.2f}" if ratio else "–" for ratio in ratios), *mean])
    return ["product", *map(str, columns), "mean"], rows


def notes(results: list[dict], peers: dict[str, list[dict]]) -> list[str]:
    """Why there is no time, ours or a peer's."""
    own = [f"{entry['name']}: {entry['status']}: {entry['why']}" for entry in results if entry["status"] != "measured"]
    reasons = {}
    for name, all_of in peers.items():
        for peer in all_of:
            if "why" in peer:
                reasons.setdefault(f"{peer['peer']}: {peer['why']}", []).append(name)
    # What a peer lacks on most shapes is said once.
    other = [f"{', '.join(names) if len(names) < 4 else f'{len(names)} shapes'}: {reason}" for reason, names in reasons.items()]
    waited = any(peer.get("cold", {}).get("waited") for all_of in peers.values() for peer in all_of)
    if waited or any("launch_bound" in entry.get("flags", []) for entry in results):
        own.append("†: the device may have waited for the host")
    return own + other


def heading(ours: dict, theirs: dict | None) -> list[str]:
    """Where and with what a suite was measured."""
    device, here, timing, ceilings = ours["device"], ours["environment"], ours["timing"], ours["ceilings"]
    built = here.get("profile") or "dist"
    build = ", built without optimisation" if not here["optimised"] else "" if built == "dist" else f", built as {built}"
    product = ceilings["product_flops_per_second"]
    clocks = f" at {ours['clocks']['multiprocessors_hz'] / 1e6:.0f} MHz" if ours.get("clocks") else ""
    lines = [
        f"{device['name']}{clocks}, {device['driver']}, NVRTC {here['nvrtc']}; trifuse {here['version']}, revision {here['revision'][:7]}{build}; "
        f"{ours['results'][0]['dtype']}; medians of {timing['iterations']} after {timing['warmup']}, clock of the {timing['clock']}.",
        f"Ceilings: copy {ceilings['copy_bytes_per_second'] / 1e12:.2f} TB/s"
        + (f", our best product {product / 1e12:.0f} TFLOP/s ({ceilings['product']})" if product else "")
        + ".",
    ]
    if theirs:
        peak = theirs["ceilings"]
        lines[0] += f" PyTorch {theirs['torch']}, cuDNN {theirs['cudnn']}."
        lines[1] += (
            f" The same by PyTorch: {peak['copy_bytes_per_second'] / 1e12:.2f} TB/s, cuBLAS {peak['product_flops_per_second'] / 1e12:.0f} TFLOP/s."
        )
    return lines


def suite(folder: pathlib.Path, name: str) -> tuple[list[str], list[list[str]], list[str]] | None:
    """The heading, the names of the columns and the rows, and the notes of a suite, where it was measured."""
    own, other = folder / f"{name}.json", folder / f"{name}.peers.json"
    if not own.exists():
        return None
    ours = json.loads(own.read_text(encoding="utf-8"))
    if not ours["results"]:
        return None
    theirs = json.loads(other.read_text(encoding="utf-8")) if other.exists() else None
    peers = {result["name"]: result["peers"] for result in theirs["results"]} if theirs else {}
    results = ours["results"]
    told = means(results, peers) + notes(results, peers)
    if name == "projections" and peers:
        head, rows = grid(results, peers)
        return heading(ours, theirs) + ["Ratios with cold caches by the rows of x."], [head, *rows], told
    rows = [row(entry, peers.get(entry["name"], [])) for entry in results]
    head, rows = with_parts(HEAD, rows, results)
    return heading(ours, theirs), [head, *rows], told


def plain(rows: list[list[str]]) -> str:
    widths = [max(len(line[column]) for line in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in rows)


def markdown(rows: list[list[str]]) -> str:
    lines = [[cell.replace("|", "\\|") for cell in line] for line in rows]
    words = ("variant", "best peer")
    # What a row is of stands first.
    rule = ["---" if name in words or name == lines[0][0] else "---:" for name in lines[0]]
    return "\n".join("| " + " | ".join(line) + " |" for line in [lines[0], rule, *lines[1:]])


def parts(page: str) -> dict[tuple[str, str], str]:
    """The tables of a page by their headings, of the third level, and their element types."""
    found = {}
    for piece in ("\n" + page.strip()).split("\n### ")[1:]:
        dtype = re.search(r"; (\w+); medians", piece)
        found[piece.partition("\n")[0], dtype[1] if dtype else ""] = piece.strip()
    return found


def kept(before: str, page: str) -> str:
    """The tables of `page` in the place of those of the same heading and type; the others stay."""
    if not page.strip():
        return before
    new = parts(page)
    return "\n\n".join("### " + piece for piece in (parts(before) | new).values()) if new else page


def insert(file: pathlib.Path, section: str, page: str) -> None:
    """Puts a page between the marks of a section."""
    begin, end = f"<!-- {section}: begin -->", f"<!-- {section}: end -->"
    before, found, rest = file.read_text(encoding="utf-8").partition(begin)
    old, ended, after = rest.partition(end)
    if not (found and ended):
        raise SystemExit(f"{file}: expected {begin} and {end}")
    file.write_text(f"{before}{begin}\n\n{kept(old, page).strip()}\n\n{end}{after}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path, nargs="?", metavar="DIR")
    parser.add_argument("suites", nargs="*", default=SUITES, metavar="SUITE")
    parser.add_argument("--markdown", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--section", default="measured")
    parser.add_argument("--page", type=pathlib.Path)
    arguments = parser.parse_args()
    if arguments.page:
        if not arguments.markdown:
            parser.error("--page needs --markdown")
        insert(arguments.markdown, arguments.section, arguments.page.read_text(encoding="utf-8"))
        return
    if not arguments.folder:
        parser.error("DIR is missing")
    page = []
    for name in arguments.suites:
        found = suite(arguments.folder, name)
        if found is None:
            continue
        lines, rows, told = found
        print("\n".join(["", name, *lines, plain(rows), *told]))
        page.append("\n\n".join([f"### {name}", "\n".join(lines), markdown(rows), *(["\n".join(f"- {note}" for note in told)] if told else [])]))
    if arguments.markdown:
        insert(arguments.markdown, arguments.section, "\n\n".join(page))


if __name__ == "__main__":
    main()
