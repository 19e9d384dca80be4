#!/usr/bin/env python3
"""Recomputes, in float64, what a bundle's certificates claim, from the PEFT folders alone.

It shares no code with the encoder: it reads the original adapters and the decompressed ones, and compares with the
claims that `trifuse inspect BUNDLE --json` prints.

  trifuse decompress BUNDLE --output DECODED
  trifuse inspect BUNDLE --json > claims.json
  check_certificates.py ORIGINALS DECODED claims.json [--activations CALIBRATION] [--independent HELD_OUT]

For each adapter and projection, with D = the original change of the weight and E = the decompressed one:

  cos_delta               <D, E> / (|D| |E|)
  output_error_gaussian   |D - E| / |D|
  output_error_held_out   |x (D - E)^T| / |x D^T|, x the held-out rows of the calibration file: its last quarter

`--independent` takes activations from other text altogether. No claim is compared with those; the table shows how far the
claim carries. Exit status: 0 all claims are true, 1 one is not (better than recomputed by more than 1e-4, or off by
more than 1e-3, or missing), 4 the input cannot be read.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Iterator, NamedTuple

import numpy as np

from peft_folder import Lora, find_adapters, read_adapter, read_tensors

# A claim may be worse than the truth by the second, and better by no more than the first: the folders are rounded to fp16.
FLATTERY, DISTANCE = 1e-4, 1e-3
# Each measure, and the sign that makes a larger number a better one.
MEASURES = {"cos_delta": 1, "output_error_gaussian": -1, "output_error_held_out": -1}


class Line(NamedTuple):
    """One claim beside what was recomputed. `claimed` is None where the bundle states none."""

    adapter: str
    path: str
    measure: str
    claimed: float | None
    found: float

    @property
    def off(self) -> float:
        return float("inf") if self.claimed is None else abs(self.claimed - self.found)

    @property
    def flattery(self) -> float:
        """How much better the claim is than what was found."""
        return float("inf") if self.claimed is None else MEASURES[self.measure] * (self.claimed - self.found)

    @property
    def true(self) -> bool:
        # Written so that a NaN on either side is false.
        return self.off <= DISTANCE and self.flattery <= FLATTERY


def claims_of(report: object) -> dict[str, dict[str, dict[str, float]]]:
    """Adapter name -> module path -> claims, from wherever in the report the object `adapters` lies.

    This function alone knows the shape of the report. A projection's claims may lie in a `certificate` of their own.
    """
    for node in _objects(report):
        adapters = node.get("adapters")
        if isinstance(adapters, list):
            adapters = {adapter["name"]: adapter for adapter in adapters if isinstance(adapter, dict) and "name" in adapter}
        if isinstance(adapters, dict) and any("projections" in a for a in adapters.values() if isinstance(a, dict)):
            return {name: _projections(adapter["projections"]) for name, adapter in adapters.items()}
    raise ValueError("no object `adapters: {NAME: {projections: {PATH: ...}}}` in the report")


def _projections(projections: dict | list) -> dict[str, dict[str, float]]:
    if isinstance(projections, list):
        projections = {p.get("path", p.get("name")): p for p in projections}
    return {path: claim.get("certificate", claim) for path, claim in projections.items()}


def _objects(node: object) -> Iterator[dict]:
    """Every object of a JSON document, outermost first."""
    level = [node]
    while level:
        yield from (item for item in level if isinstance(item, dict))
        level = [
            child
            for item in level
            if isinstance(item, (dict, list))
            for child in (item.values() if isinstance(item, dict) else item)
        ]


def ratio(part: float, whole: float) -> float:
    """part / whole, where nothing of nothing is no loss."""
    if whole == 0:
        return 0.0 if part == 0 else float("inf")
    return part / whole


def output_error(x: np.ndarray, original: np.ndarray, decoded: np.ndarray) -> float:
    """|x (D - E)^T| / |x D^T|."""
    return ratio(float(np.linalg.norm(x @ (original - decoded).T)), float(np.linalg.norm(x @ original.T)))


def recompute(original: Lora, decoded: Lora, held_out: np.ndarray | None) -> dict[str, float]:
    """The measures of one projection."""
    d, e = original.delta(), decoded.delta()
    norms = float(np.linalg.norm(d) * np.linalg.norm(e))
    same = float(not d.any() and not e.any())
    found = {
        "cos_delta": float(np.vdot(d, e)) / norms if norms else same,
        "output_error_gaussian": ratio(float(np.linalg.norm(d - e)), float(np.linalg.norm(d))),
    }
    if held_out is not None:
        found["output_error_held_out"] = output_error(held_out, d, e)
    return found


def match(name: str, folders: dict[str, Path], where: Path) -> Path:
    """The folder of an adapter: its relative path, or the only one whose last part is the name."""
    if name in folders:
        return folders[name]
    fits = [folder for path, folder in folders.items() if path.split("/")[-1] == name.split("/")[-1]]
    if len(fits) != 1:
        raise ValueError(f"{where}: {len(fits)} folders fit the adapter {name}; expected one")
    return fits[0]


def activations(file: Path | None, share: float) -> dict[str, np.ndarray]:
    """The last `share` of the rows of each projection, in float64."""
    if file is None:
        return {}
    result = {}
    for path, x in read_tensors(file).items():
        result[path] = x[len(x) - round(len(x) * share) :].astype(np.float64)
    return result


def check(options: argparse.Namespace) -> bool:
    """Prints the tables. True if every claim is true."""
    claims = claims_of(json.loads(options.claims.read_text()))
    originals, decoded = find_adapters(options.originals), find_adapters(options.decoded)
    held_out = activations(options.activations, options.held_out_share)
    independent = activations(options.independent, 1.0)
    lines: list[Line] = []
    missing: list[str] = []
    summary = []
    for name, projections in claims.items():
        before = read_adapter(match(name, originals, options.originals))
        after = read_adapter(match(name, decoded, options.decoded))
        missing += [f"{name}: {path}: no certificate" for path in before.keys() - projections.keys()]
        missing += [f"{name}: {path}: certified, but not in the original" for path in projections.keys() - before.keys()]
        missing += [f"{name}: {path}: not in the decompressed folder" for path in before.keys() - after.keys()]
        missing += [f"{name}: {path}: only in the decompressed folder" for path in after.keys() - before.keys()]
        elsewhere = []
        for path in sorted(before.keys() & after.keys() & projections.keys()):
            claim = projections[path]
            states_held_out = claim.get("output_error_held_out") is not None
            if states_held_out and options.activations and path not in held_out:
                missing.append(f"{name}: {path}: claims a held-out error, but {options.activations} has no rows for it")
            found = recompute(before[path], after[path], held_out.get(path) if states_held_out else None)
            lines += [Line(name, path, measure, claim.get(measure), value) for measure, value in found.items()]
            if path in independent:
                elsewhere.append(output_error(independent[path], before[path].delta(), after[path].delta()))
        summary.append((name, [line for line in lines if line.adapter == name], elsewhere))
    print_summary(summary)
    print_worst(lines, options.worst)
    unread = 0 if options.activations else sum(
        claim.get("output_error_held_out") is not None for projections in claims.values() for claim in projections.values()
    )  # fmt: skip
    if unread:
        print(f"{unread} claims of output_error_held_out were NOT checked: give --activations")
    wrong = [line for line in lines if not line.true]
    for fault in sorted(missing):
        print(f"MISSING {fault}")
    print(f"{len(lines)} claims of {len(claims)} adapters: {len(wrong)} false, {len(missing)} missing")
    if not lines:
        print("nothing was checked", file=sys.stderr)
    return bool(lines) and not wrong and not missing


def print_summary(summary: list[tuple[str, list[Line], list[float]]]) -> None:
    """What was recomputed, an adapter a line."""
    print("Recomputed, over the projections of each adapter:")
    print(f"{'adapter':<24} {'cos mean':>9} {'cos min':>9} {'error mean':>11} {'held out':>9} {'other text':>11}")
    for name, lines, elsewhere in summary:
        by = {measure: [line.found for line in lines if line.measure == measure] for measure in MEASURES}
        cosines, errors, held_out = by.values()
        cells = [np.mean(cosines), min(cosines), np.mean(errors)] if cosines else [float("nan")] * 3
        optional = [f"{np.mean(x):.5f}" if x else "-" for x in (held_out, elsewhere)]
        print(f"{name:<24} {cells[0]:>9.5f} {cells[1]:>9.5f} {cells[2]:>11.5f} {optional[0]:>9} {optional[1]:>11}")
    print()


def print_worst(lines: list[Line], count: int) -> None:
    """The claims farthest from what was recomputed: false ones first."""
    print("Farthest from what they claim:")
    print(f"{'adapter':<24} {'projection':<42} {'measure':<22} {'claimed':>10} {'recomputed':>10} {'off by':>9}")
    # NaN compares false with everything: `not true` goes first, so that it cannot sink in the sort.
    for line in sorted(lines, key=lambda line: (line.true, -np.nan_to_num(line.off, nan=np.inf)))[:count]:
        claimed = "none" if line.claimed is None else f"{line.claimed:.6f}"
        verdict = "" if line.true else "  FALSE: too good" if line.claimed is not None and line.flattery > FLATTERY else "  FALSE"
        print(f"{line.adapter:<24} {line.path:<42} {line.measure:<22} {claimed:>10} {line.found:>10.6f} {line.off:>9.1e}{verdict}")
    print()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("originals", type=Path, help="folder of the original PEFT adapters")
    parser.add_argument("decoded", type=Path, help="folder of the decompressed ones")
    parser.add_argument("claims", type=Path, help="what `trifuse inspect BUNDLE --json` printed")
    parser.add_argument("--activations", type=Path, metavar="FILE", help="the calibration file that `compress` was given")
    parser.add_argument("--held-out-share", type=float, default=0.25, help="share of its rows held out (default 0.25)")
    parser.add_argument("--independent", type=Path, metavar="FILE", help="activations of other text, shown only")
    parser.add_argument("--worst", type=int, default=10, metavar="N", help="lines of the second table (default 10)")
    options = parser.parse_args()
    try:
        return 0 if check(options) else 1
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"check_certificates.py: {type(error).__name__}: {error}", file=sys.stderr)
        return 4


if __name__ == "__main__":
    sys.exit(main())
