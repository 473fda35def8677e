"""STREAM and BabelStream: one row per kernel (Copy, Scale, Add, Triad), in units of 1e6 bytes per second.

STREAM counts the bytes that the kernel names, without the write-allocate of caches. Arrays that fail its validation
have no bandwidth.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Line, LineFormat, Record, Text
from analysis.untrusted import printed_number

HEADER = re.compile(r"^Function\s+(?:Best Rate MB/s\s+Avg time|Rate \(MB/s\)\s+Avg time|MBytes/sec\s+Min \(sec\))")
ROW = re.compile(r"^(Copy|Scale|Mul|Add|Triad|Dot|Nstream):?\s+(\d[\d.]{0,20})(?:\s+\d[\d.]{0,20}){3}\s*$")
THREADS = re.compile(r"^Number of Threads (?:requested|counted) = (\d{1,9})\s*$")
DEVICE = re.compile(r"^Using (?:\S{1,20} )?device:? (\S.{0,80}?)\s*$")
# STREAM validates behind its table, BabelStream before it.
FAILED = re.compile(r"^Failed Validation on array")
FAILED_AHEAD = re.compile(r"^Validation failed on ")


def parse(lines: Iterable[Line]) -> Iterator[Record]:
    """Return the threads and device, and a measurement for each kernel once its arrays have been validated."""
    rows: list[Record] = []
    failed = failed_ahead = False
    for line in lines:
        if found := ROW.match(line.text):
            if mega := printed_number(found[2]):
                texts = {Text.benchmark: found[1]}
                rows.append(
                    Record(Kind.measurement, line.number, {a.MEMORY_BANDWIDTH: mega * 1e6}, texts, line.rank, line.host)
                )
        elif HEADER.match(line.text):
            yield from marked(rows, failed=failed)
            rows, failed, failed_ahead = [], failed_ahead, False
        elif FAILED.match(line.text):
            failed = True
        elif FAILED_AHEAD.match(line.text):
            failed_ahead = True
        elif found := THREADS.match(line.text):
            yield Record(Kind.setting, line.number, {a.THREADS: float(found[1])}, {}, line.rank, line.host)
        elif found := DEVICE.match(line.text):
            yield Record(Kind.setting, line.number, {}, {Text.gpu_name: found[1]}, line.rank, line.host)
    yield from marked(rows, failed=failed)


def marked(rows: list[Record], *, failed: bool) -> list[Record]:
    """Return measurements; those of arrays that failed their validation have no values."""
    state = {Text.state: "failed validation"}
    return [row._replace(values={}, texts={**row.texts, **state}) for row in rows] if failed else rows


FORMAT = LineFormat(
    "STREAM",
    "https://www.cs.virginia.edu/stream/FTP/Code/stream.c, "
    "https://github.com/UoB-HPC/BabelStream/blob/v5.0/src/main.cpp",
    parse,
    markers=(
        "Number of Threads ",
        "Using CUDA device",
        "Using HIP device",
        "Failed Validation on ",
        "Validation failed on ",
    ),
    section_start=("Best Rate MB/s", "Rate (MB/s)   Avg time", "MBytes/sec "),
    section_end=("Solution Validates",),
)
