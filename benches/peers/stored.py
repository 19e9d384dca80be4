"""Reports as files."""

import json
import os


def write(report: dict, path: str) -> None:
    """Whole or not at all."""
    with open(path + ".part", "w", encoding="utf-8") as file:
        json.dump(report, file, indent=1)
    os.replace(path + ".part", path)
