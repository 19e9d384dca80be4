#!/usr/bin/env python3
"""Runs the code cells of a notebook from top to bottom, without Jupyter, and saves every figure that they leave as PNG.

    scripts/run_notebook.py examples/benchmarks.ipynb --figures FOLDER --least 4

As in Jupyter, the notebook's folder is the current one. The exit status is 1 where a cell fails, or where fewer figures than
--least hold a line, a point or a bar."""

import argparse
import json
import os
import sys
import traceback
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def drawn(figure) -> bool:
    """Whether something is in it beside axes."""
    return any(axes.lines or axes.collections or axes.patches for axes in figure.axes)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--figures", type=Path, required=True)
    parser.add_argument("--least", type=int, default=1)
    arguments = parser.parse_args()
    cells = json.loads(arguments.notebook.read_text(encoding="utf-8"))["cells"]
    folder = arguments.figures.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(arguments.notebook.parent)
    names = {"__name__": "__main__"}
    for number, cell in enumerate(cells):
        if cell["cell_type"] != "code":
            continue
        try:
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
        except Exception:
            traceback.print_exc()
            return 1
    figures = [plt.figure(number) for number in plt.get_fignums()]
    for number, figure in enumerate(figures, 1):
        figure.savefig(folder / f"figure-{number}.png")
    full = sum(map(drawn, figures))
    print(f"{full} of {len(figures)} figures hold something; in {folder}")
    return 0 if full >= arguments.least and full == len(figures) else 1


if __name__ == "__main__":
    sys.exit(main())
