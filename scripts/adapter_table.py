#!/usr/bin/env python3
"""Perplexity of each adapter on the held-out part of its own text: the base model, the adapter as it is, and compressed.

    scripts/adapter_table.py TRIFUSE MODEL ADAPTERS TEXTS -o FOLDER [--backend cuda] [--windows 12] [--workers 6]

ADAPTERS holds the PEFT folders of scripts/train_smollm2_adapters.py, TEXTS held-out/NAME.txt. Makes FOLDER/SETTING.s2lc by `trifuse compress` with each
setting, measures by `trifuse eval --adapters` in f16, a run for each setting and text, some at once, and writes FOLDER/adapters.json and
FOLDER/adapters.md after every run, so that a machine that goes away leaves what it did. Needs no package.
"""

import argparse
import concurrent.futures
import json
import math
import statistics
import subprocess
import threading
import time
from pathlib import Path

SETTINGS = {"exact": None, "0.99": ["--min-cosine", "0.99"], "8 x": ["--max-ratio", "8"], "20 x": ["--max-ratio", "20"]}


class Table:
    """What is known so far, by setting and adapter."""

    def __init__(self, options, names):
        self.options, self.names, self.lock = options, names, threading.Lock()
        self.found = {"model": str(options.model), "backend": options.backend, "dtype": options.dtype, "windows": options.windows, "window": options.window,
                      "settings": {}, "base": {}, "perplexity": {setting: {} for setting in SETTINGS}}

    def write(self):
        (self.options.output / "adapters.json").write_text(json.dumps(self.found, indent=1))
        (self.options.output / "adapters.md").write_text(self.page())

    def page(self):
        """The table in Markdown."""
        settings = [setting for setting in SETTINGS if self.found["perplexity"][setting]]
        lines = ["| adapter | base | " + " | ".join(settings) + " |", "|---|" + "---|" * (len(settings) + 1)]
        of = lambda value: "" if value is None else f"{value:.3f}"
        for name in self.names:
            if name in self.found["base"]:
                row = [self.found["base"][name]] + [self.found["perplexity"][setting].get(name) for setting in settings]
                lines.append(f"| {name} | " + " | ".join(map(of, row)) + " |")
        gains = []
        for setting in settings:
            shares = [(math.log(self.found["base"][name]) - math.log(value)) / (math.log(self.found["base"][name]) - math.log(exact))
                      for name, value in self.found["perplexity"][setting].items() if (exact := self.found["perplexity"]["exact"].get(name))]
            gains.append(f"{statistics.mean(shares):.1%}" if shares else "")
        lines.append("| share of the gain in nats, mean | | " + " | ".join(gains) + " |")
        sizes = [self.found["settings"].get(setting, {}) for setting in settings]
        lines.append("| bytes of all | | " + " | ".join(f"{size['bytes']:,}" if "bytes" in size else "" for size in sizes) + " |")
        return "\n".join(lines) + "\n"


def run(command):
    """A command's JSON."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command[:3]))} … ended with status {done.returncode}: {done.stderr[-600:]}")
    return json.loads(done.stdout)


def compress(options, setting, folders):
    """What a setting is measured on: folders as they are, or a bundle of them."""
    if SETTINGS[setting] is None:
        size = sum((folder / "adapter_model.safetensors").stat().st_size for folder in folders)
        return folders, {"bytes": size}
    bundle = options.output / f"{setting.replace(' ', '')}.s2lc"
    began = time.monotonic()
    told = run([options.trifuse, "compress", *folders, "-o", bundle, "--force", *SETTINGS[setting], "--json"])
    kept = {key: value for key, value in told.items() if isinstance(value, (int, float, str))}
    return [bundle], {"bytes": bundle.stat().st_size, "seconds": round(time.monotonic() - began, 1), "asked": SETTINGS[setting], "told": kept}


def measure(options, table, setting, paths, text, names):
    adapters = [argument for path in paths for argument in ("--adapters", path)]
    asked = [argument for name in names for argument in ("--adapter", name)]
    told = run([options.trifuse, "--backend", options.backend, "eval", "--model", options.model, *adapters, *asked, "--dtype", options.dtype,
                "--window", str(options.window), "--windows", str(options.windows), "--json", options.texts / "held-out" / f"{text}.txt"])
    with table.lock:
        for row in told["ppl"]:
            if row["adapter"] is None:
                table.found["base"].update(dict.fromkeys(names, row["perplexity"]))
            else:
                table.found["perplexity"][setting][row["adapter"]] = row["perplexity"]
        table.found.setdefault("rows", []).extend({"setting": setting, **row} for row in told["ppl"])
        # What was measured, by its content.
        table.found["models"] = told["models"]
        table.found.setdefault("texts", {}).update({text["file"]: text["sha256"] for text in told["texts"]})
        table.write()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trifuse", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("adapters", type=Path)
    parser.add_argument("texts", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--dtype", default="f16", help="f16 is what adapters are served in on a GPU")
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--windows", type=int, default=12)
    parser.add_argument("--workers", type=int, default=6)
    options = parser.parse_args()
    folders = sorted(path.parent for path in options.adapters.glob("*/adapter_model.safetensors"))
    texts = {}
    for folder in folders:
        texts.setdefault(folder.name.split("-")[0], []).append(folder.name)
    options.output.mkdir(parents=True, exist_ok=True)
    table = Table(options, [folder.name for folder in folders])
    faults = []
    # Compression takes all cores, one setting after another; measuring takes the device, and what is ready is measured meanwhile.
    with concurrent.futures.ThreadPoolExecutor(options.workers) as pool:
        waiting = []
        for setting in SETTINGS:
            try:
                paths, size = compress(options, setting, folders)
            except RuntimeError as fault:
                faults.append(f"{setting}: {fault}")
                continue
            with table.lock:
                table.found["settings"][setting] = size
                table.write()
            for text, names in texts.items():
                own = [folder for folder in folders if folder.name in names] if SETTINGS[setting] is None else paths
                waiting.append(pool.submit(measure, options, table, setting, own, text, names))
        for done in waiting:
            if fault := done.exception():
                faults.append(str(fault))
    print(table.page())
    for fault in faults:
        print(f"error: {fault}")
    raise SystemExit(1 if faults else 0)


if __name__ == "__main__":
    main()
