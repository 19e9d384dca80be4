#!/usr/bin/env python3
"""One table of what scripts/shrink_study.sh found: scripts/shrink_table.py FOLDER writes FOLDER/shrink.json and FOLDER/shrink.md. Needs no package."""

import json
import sys
from pathlib import Path


def row(name, shrunk, ppl):
    """A line of the table, in Markdown."""
    keep, rest = name.split("-", 1)
    rest, without = rest.removesuffix("-forward"), " without gradients" if rest.endswith("-forward") else ""
    factors, ranks = rest.rsplit("-", 1)
    factors += without
    cells = [f"{factors}, {ranks}", keep, f"{shrunk.get('predicted_nats') or 0:.4f}"]
    for text in ppl:
        low, high = text["nats_more_ci95"]
        cells += [f"{text['perplexity']:.2f}", f"{text['nats_more']:+.4f} ({low:.3f} to {high:.3f})", f"{text['kl_mean']:.4f}", f"{text['top1']:.1%}"]
    return "| " + " | ".join(cells) + " |"


def main():
    folder = Path(sys.argv[1])
    found, lines = {}, []
    told = json.loads((folder / "eval-f32.json").read_text())
    for path in sorted(folder.glob("*.shrink.json"), reverse=True):
        name = path.name.removesuffix(".shrink.json")
        ppl = [text for text in told["ppl"] if Path(text["model"]).name == name]
        if not ppl:
            continue
        shrunk = json.loads(path.read_text())
        found[name] = {"shrink": shrunk, "ppl": ppl}
        if not lines:
            texts = [Path(text["text"]).stem for text in ppl]
            heads = [f"{text}: {what}" for text in texts for what in ("perplexity", "nats more, 95 %", "divergence", "same first")]
            lines = ["| factors, ranks | keep | predicted nats | " + " | ".join(heads) + " |", "|---" * (3 + len(heads)) + "|"]
        lines.append(row(name, shrunk, ppl))
    (folder / "shrink.json").write_text(json.dumps(found, indent=1))
    (folder / "shrink.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
