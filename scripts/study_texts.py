#!/usr/bin/env python3
"""Splits texts into a part to train and calibrate by, and a part to measure on: TRAIN and HELD_OUT below a folder, a file a text.

    scripts/study_texts.py TEXTS -o FOLDER       wiki.utf8 c4.utf8 code.utf8 technical.utf8 tiny.utf8 and kjv.txt, those that are there

The last fifth is held out, in whole documents. Documents of wiki (WikiExtractor's blocks) and c4 (a line each) are joined by the token
that ends a text, as it is spelled; the other texts are one document each, cut at a line.
"""

import argparse
import re
from pathlib import Path

NAMES = {"wiki": "wiki.utf8", "c4": "c4.utf8", "code": "code.utf8", "technical": "technical.utf8", "tiny": "tiny.utf8", "kjv": "kjv.txt"}
END = "<|endoftext|>"
HELD_OUT = 0.2


def documents(name, text):
    """The documents of a text, and what stands between them."""
    if name == "wiki":
        return [body.strip() for body in re.findall(r"<doc [^>]*>(.*?)</doc>", text, re.S) if body.strip()], END
    if name == "c4":
        return [line.strip() for line in text.splitlines() if line.strip()], END
    return text.split("\n"), "\n"


def split(name, text):
    """What is trained on, and what is held out: the documents behind the first four fifths of the characters."""
    parts, between = documents(name, text)
    total, seen = sum(map(len, parts)), 0
    for at, part in enumerate(parts):
        seen += len(part)
        if seen >= (1 - HELD_OUT) * total:
            return between.join(parts[: at + 1]), between.join(parts[at + 1 :])
    return text, ""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    for name, file in NAMES.items():
        if not (options.texts / file).is_file():
            continue
        text = (options.texts / file).read_bytes().decode("utf-8").replace("\r\n", "\n")
        for folder, part in zip(("train", "held-out"), split(name, text)):
            (options.output / folder).mkdir(parents=True, exist_ok=True)
            (options.output / folder / f"{name}.txt").write_bytes(part.encode("utf-8"))
        print(f"{name}: {' and '.join(str((options.output / folder / f'{name}.txt').stat().st_size) for folder in ('train', 'held-out'))} bytes")


if __name__ == "__main__":
    main()
