#!/usr/bin/env python3
"""Draws the tables of "What compression keeps, by function" in docs/adapters.md as an SVG: recall@1 and 1 - cosine by size.

    scripts/recall_picture.py docs/adapters.md docs/pictures/recall.svg
"""

import argparse
import math
import re

WIDTH, HEIGHT, LEFT, TOP, GAP = 720, 300, 60, 34, 70
COLOURS = {"A": "#1f5fa8", "B": "#b5541c"}


def rows(text):
    """(population, title, bytes, worst cosine's distance from 1 or None, recall) of each row of the section's tables."""
    section = text.split("## What compression keeps, by function", 1)[1]
    population = None
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        head = re.match(r"\| ([A-Z]): ", line)
        if not line.startswith("|"):
            population = None
        elif head:
            population = head.group(1)
        elif population and len(cells) == 6 and re.fullmatch(r"[\d,]+", cells[1]):
            mean = cells[4].split("/")[0].strip()
            yield population, cells[0], int(cells[1].replace(",", "")), 1 - float(mean) if mean else None, float(cells[5])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", help="the page that has the tables")
    parser.add_argument("picture", help="the SVG file to write")
    arguments = parser.parse_args()
    with open(arguments.page, encoding="utf-8") as file:
        table = list(rows(file.read()))
    sizes = [size for _, _, size, _, _ in table if size]
    low, high = math.log10(min(sizes)) - 0.1, math.log10(max(sizes)) + 0.1
    panel = (WIDTH - LEFT - GAP - 20) / 2
    recalls = [recall for *_, recall in table]
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="11">']
    out.append(f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>')
    least, most = min(recalls) - 0.01, max(recalls) + 0.01
    bottom = HEIGHT - 46

    def place(left, size, share):
        return left + (math.log10(size) - low) / (high - low) * panel, bottom - share * (bottom - TOP)

    panels = [
        (LEFT, "recall@1", lambda row: (row[4] - least) / (most - least), [(f"{v:.2f}", (v - least) / (most - least)) for v in (0.36, 0.38, 0.40, 0.42)]),
        (LEFT + panel + GAP, "1 − cosine of embeddings", lambda row: None if not row[3] else (math.log10(row[3]) + 4.3) / 4.0,
         [(f"1e{p}", (p + 4.3) / 4.0) for p in (-4, -3, -2, -1)]),
    ]
    for left, title, share, ticks in panels:
        out.append(f'<text x="{left}" y="{TOP - 14}" font-weight="bold">{title}</text>')
        out.append(f'<path d="M{left} {TOP}V{bottom}H{left + panel:.1f}" fill="none" stroke="black"/>')
        for text, at in ticks:
            y = bottom - at * (bottom - TOP)
            if TOP <= y <= bottom:
                out.append(f'<path d="M{left} {y:.1f}h{panel:.1f}" stroke="#ddd"/><text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
        for size in (10_000, 100_000):
            x, _ = place(left, size, 0)
            out.append(f'<path d="M{x:.1f} {bottom}v4" stroke="black"/><text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{size // 1000} kB</text>')
        out.append(f'<text x="{left + panel / 2:.1f}" y="{bottom + 32}" text-anchor="middle">bytes an adapter</text>')
        for name, colour in COLOURS.items():
            own = [row for row in table if row[0] == name]
            for row in own:
                if row[2] == 0 and left == LEFT:
                    _, y = place(left, 10**low, share(row))
                    out.append(f'<path d="M{left} {y:.1f}h{panel:.1f}" stroke="{colour}" stroke-dasharray="2 3"/>')
                    # Side by side: the lines of two populations may nearly meet.
                    x = left + panel - 90 * list(COLOURS).index(name)
                    out.append(f'<text x="{x:.1f}" y="{y - 3:.1f}" text-anchor="end" fill="{colour}">{name}, base model</text>')
                at = share(row) if row[2] else None
                if at is not None and -0.01 <= at <= 1.01:
                    x, y = place(left, row[2], at)
                    fill = "white" if "calibrated" in row[1] else colour
                    out.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{fill}" stroke="{colour}"><title>{name}: {row[1]}</title></circle>')
    x = LEFT + panel + GAP
    for number, (name, colour) in enumerate(COLOURS.items()):
        out.append(f'<text x="{x + panel - 90:.1f}" y="{TOP + 10 + 14 * number}" fill="{colour}">● {name}  ○ calibrated</text>')
    out.append("</svg>")
    with open(arguments.picture, "w", encoding="utf-8") as file:
        file.write("\n".join(out) + "\n")


if __name__ == "__main__":
    main()
