"""elbencho: one block per operation (WRITE, READ, MKDIRS, RMFILES, ...), with two columns of results.

`FIRST DONE` ends when the fastest thread ends and `LAST DONE` when all have ended; the latter is the result, because it
includes the work of every thread. Rates with a unit of MiB are powers of two, MB powers of ten.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Line, LineFormat, Record, Text
from analysis.untrusted import printed_number
from jobs.metrics import Metric

# The name of the operation stands in its first row only.
ROW = re.compile(r"^(?:([A-Z][A-Z0-9_+-]{1,30})\s+|\s{2,})(\S.{0,40}?)\s*:\s+(\S{1,30})(?:\s+(\S{1,30}))?\s*$")
TIME = re.compile(r"(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?(?:(\d+(?:\.\d+)?)us)?$")
UNITS_S = (3600, 60, 1, 1e-3, 1e-6)
RATES: dict[str, tuple[Metric, float]] = {
    "Throughput MiB/s": (a.IO_BANDWIDTH, 1 << 20),
    "Throughput MB/s": (a.IO_BANDWIDTH, 1e6),
    "IOPS": (a.IO_OPERATIONS_PER_S, 1),
}
# Names of entries, which depend on the operation. An operation on data has IOPS or a throughput, too.
ENTRIES = re.compile(r"(?:Files|Dirs|Objects|Buckets|Entries)/s$")
BLOCK = re.compile(r'"(?:-b|--block)" "(\d{1,12})([kKmMgGtT]?)i?[bB]?"')


def parse(lines: Iterable[Line]) -> Iterator[Record]:
    """Return the block size as a setting, and a measurement for each operation."""
    name, begun, values = "", None, dict[Metric, float]()
    for line in lines:
        if found := ROW.match(line.text):
            if found[1]:
                yield from measured(name, begun, values)
                name, begun, values = found[1], line, {}
            values |= result(found[2], found[4] or found[3], values)
        elif found := BLOCK.search(line.text):
            size = float(found[1]) * 1024.0 ** (" kmgt".index(found[2].lower() or " "))
            yield Record(Kind.setting, line.number, {a.TRANSFER_SIZE: size}, {}, line.rank, line.host)
        elif line.text.startswith("---"):
            yield from measured(name, begun, values)
            name, begun, values = "", None, {}
    yield from measured(name, begun, values)


def measured(name: str, begun: Line | None, values: dict[Metric, float]) -> Iterator[Record]:
    """Yield the measurement of an operation if it has a rate."""
    if begun and not values.keys().isdisjoint({a.IO_BANDWIDTH, a.IO_OPERATIONS_PER_S}):
        texts = {Text.benchmark: name.lower()}
        yield Record(Kind.measurement, begun.number, values, texts, begun.rank, begun.host)


def result(name: str, text: str, others: dict[Metric, float]) -> dict[Metric, float]:
    """Return the number of one row, by metric; a rate of 0 was not measured."""
    if name == "Elapsed time" and (parts := TIME.match(text)) and any(parts.groups()):
        return {a.DURATION: sum(float(part) * unit for part, unit in zip(parts.groups(), UNITS_S, strict=True) if part)}
    value = printed_number(text)
    if value and name in RATES:
        metric, factor = RATES[name]
        return {metric: value * factor}
    if value and ENTRIES.match(name) and a.IO_OPERATIONS_PER_S not in others:
        return {a.IO_OPERATIONS_PER_S: value}
    return {}


FORMAT = LineFormat(
    "elbencho",
    "https://github.com/breuner/elbencho/blob/v3.0-26/source/Statistics.cpp",
    parse,
    markers=('COMMAND LINE: "',),
    section_start=("OPERATION   RESULT TYPE",),
    section_end=("ISO DATE: ",),
)
