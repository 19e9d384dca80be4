"""The checksum of outputs of op.attention, as the page of the server gives it to clients."""

import pathlib

import numpy

page = pathlib.Path(__file__).resolve().parents[4] / "docs" / "serving.md"
section = page.read_text(encoding="utf-8").split("### Checksums of outputs")[1]
names = {"numpy": numpy}
exec(section.split("```python")[1].split("```")[0], names)
checksum = names["checksum"]
