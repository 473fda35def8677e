"""Odd contents that every parser must survive."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

from analysis.parsers.detect import LINE_FORMATS, read_log
from tests.analysis.parsers.reading import SAMPLES

MARKERS = sorted(
    {marker for each in LINE_FORMATS for marker in (*each.markers, *each.section_start, *each.section_end)}
)
CONTENTS = [sample.read_bytes() for sample in sorted(SAMPLES.iterdir()) if sample.suffix != ".md"]
ODD = [
    b"nan",
    b"inf",
    b"-1",
    b"1e999",
    b"9" * 400,
    b"|",
    b"{",
    b"[",
    b"\r",
    b"\n",
    b"\0",
    b"\xff\xfe",
    b"\x1b[0m",
    b": ",
]


def read_all(content: bytes) -> int:
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        return read_records(Path(file.name))


def read_records(path: Path) -> int:
    count = 0
    for _, found in read_log(path):
        for record in found:
            assert all(math.isfinite(value) for value in record.values.values())
            assert all(isinstance(text, str) for text in record.texts.values())
            count += 1
    return count
