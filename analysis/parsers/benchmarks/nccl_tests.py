"""nccl-tests and rccl-tests: a table of message sizes, out-of-place and in-place, and the devices of each rank.

Before 2.13 there is no column `root`, and a column `error` instead of `#wrong`. With `-c 0` both are `N/A`. Where the
devices are not listed, the number of ranks n follows from the ratio of the bandwidths: 2 (n - 1) / n for an all-reduce,
(n - 1) / n for all-gather, reduce-scatter, all-to-all, gather and scatter.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Line, LineFormat, Names, Record, Text, numbers
from analysis.untrusted import printed_number
from jobs.metrics import Metric

# Rows have no other marker: the program prints type and operation at these widths.
TYPES = ("int8", "uint8", "int32", "uint32", "int64", "uint64", "half", "float", "double", "bfloat16")
OPERATIONS = ("sum", "prod", "max", "min", "avg", "none")
ROW_MARKS = tuple(f"{kind}{operation:>8}" for kind in TYPES for operation in OPERATIONS)
# size count type [redop] [root], then time algbw busbw wrong twice. The program prints the first part before it
# measures: lines of NCCL_DEBUG may follow it without a line end, and the figures after them.
HEAD = re.compile(
    rf"^\s*(\d{{1,18}})\s+\d{{1,18}}\s+(?:{'|'.join((*TYPES, 'fp8_e4m3', 'fp8_e5m2', 'f8e4m3', 'f8e5m2'))})"
    rf"(?:\s+(?:{'|'.join((*OPERATIONS, 'all', 'mulsum'))}))?(?=\s|$|[\w.-]{{1,64}}:\d+:\d+ )"
)
ROOT = re.compile(r"\s+-?\d{1,9}(?![\d.])")
FIGURE = re.compile(r"\s*(N/A|\d[\d.]{0,20}(?:e[-+]?\d{1,3})?)(?=\s|$|[A-Za-z\[])")
WRONG = re.compile(r"\s*(\S+?)(?=\s|$|[A-Za-z][\w.-]{0,63}:\d+:\d+ )")
FIGURES = 8
DEVICE = re.compile(r"\bRank\s+(\d{1,9})\s+(?:Group\s+\d+\s+)?Pid\s+\d+ on\s+(\S+) device\s+\d+ \[\S+\] (.+?)\s*$")
AVERAGE = re.compile(r"# Avg bus bandwidth\s*:\s*([\d.]+)\s*$")
PROGRAM = re.compile(
    r"\b(all_reduce|all_gather|reduce_scatter|reduce|broadcast|alltoall|sendrecv|gather|scatter|hypercube)_perf\b"
)

COLUMNS: Names = {
    "time": (a.COLLECTIVE_TIME, 1e-6),
    "algbw": (a.ALGORITHM_BANDWIDTH, 1e9),
    "busbw": (a.BUS_BANDWIDTH, 1e9),
}


# Half of the last printed digit, in GB/s.
ROUNDING = 0.005


@dataclass
class Ranks:
    """The number of ranks of one table: those listed, else the whole number that every row allows."""

    listed: set[int] = field(default_factory=set)
    least: float = 1.0
    most: float = math.inf

    def narrow(self, algorithm: float, bus: float) -> None:
        """Take the ratio of a row's bandwidths, between the bounds that their rounding leaves."""
        if algorithm > ROUNDING:
            low, high = (bus - ROUNDING) / (algorithm + ROUNDING), (bus + ROUNDING) / (algorithm - ROUNDING)
            # The ratio of an all-reduce lies above 1 with three ranks or more, that of the others below 1.
            of_all_reduce = low > 1
            if high < 1 or of_all_reduce:
                self.least = max(self.least, ranks_of(low, all_reduce=of_all_reduce))
                self.most = min(self.most, ranks_of(high, all_reduce=of_all_reduce))

    @property
    def number(self) -> int | None:
        """The number of ranks; None if it is not certain."""
        if self.listed:
            return len(self.listed) if self.listed == set(range(len(self.listed))) else None
        only = math.ceil(self.least)
        return only if only > 1 and only == self.most // 1 else None


def ranks_of(ratio: float, *, all_reduce: bool) -> float:
    """Return the number of ranks for which bus over algorithm bandwidth is this ratio."""
    most = 2.0 if all_reduce else 1.0
    return most / (most - ratio) if ratio < most else math.inf


def parse(lines: Iterable[Line]) -> Iterator[Record]:
    """Return a measurement for each row and place, a setting for each device, the average as a summary."""
    program: dict[Text, str] = {}
    ranks, number = Ranks(), 0
    row: Row | None = None
    for line in lines:
        number = line.number
        if head := HEAD.match(line.text):
            row = Row(line, float(head[1]))
            rest = line.text[head.end() :]
            root = ROOT.match(rest)
            row.columns = figures(rest[root.end() :]) if root else figures(rest)
            if root and len(row.columns) == FIGURES - 1:
                # No root: the time of a slow call has no decimals.
                row.columns = figures(rest)
        elif row is not None and (further := figures(line.text, len(row.columns))):
            row.columns += further
        if row is not None and len(row.columns) >= FIGURES:
            yield from halves(row, program, ranks)
            row = None
        if head:
            continue
        if found := DEVICE.search(line.text):
            ranks.listed.add(int(found[1]))
            texts = {Text.nodes: found[2], Text.gpu_name: found[3]}
            yield Record(Kind.setting, line.number, {}, texts, int(found[1]), found[2])
        elif found := AVERAGE.search(line.text):
            if values := numbers([("busbw", found[1])], COLUMNS):
                yield Record(Kind.summary, line.number, values, program, line.rank)
            yield from number_of(ranks, line.number)
            ranks = Ranks()
        elif found := PROGRAM.search(line.text):
            program = {Text.benchmark: found[1]}
    yield from number_of(ranks, number)


@dataclass
class Row:
    """A row of the table as far as it is printed."""

    line: Line
    size: float
    columns: list[str] = field(default_factory=list)


def figures(text: str, before: int = 0) -> list[str]:
    """Return the figures with which a text begins, after so many of its row; every fourth is a count or an error."""
    found: list[str] = []
    at = 0
    while each := (WRONG if (before + len(found)) % 4 == 3 else FIGURE).match(text, at):
        found.append(each[1])
        at = each.end()
    return found


def halves(row: Row, program: Mapping[Text, str], ranks: Ranks) -> Iterator[Record]:
    """Yield the measurements of a row, out-of-place and in-place."""
    columns = row.columns
    for place, (time_us, algorithm, bus, wrong) in (("out-of-place", columns[:4]), ("in-place", columns[4:FIGURES])):
        values = measured(row.size, time_us, algorithm, bus, wrong)
        ranks.narrow(printed_number(algorithm) or 0.0, printed_number(bus) or 0.0)
        texts = {**program, Text.variant: place}
        yield Record(Kind.measurement, row.line.number, values, texts, row.line.rank, row.line.host)


def number_of(ranks: Ranks, line: int) -> Iterator[Record]:
    """Yield the number of ranks of a table as a setting, if it is certain."""
    if ranks.number:
        yield Record(Kind.setting, line, {a.RANKS: float(ranks.number)})


def measured(size: float, time_us: str, algorithm: str, bus: str, wrong: str) -> dict[Metric, float]:
    """Return the numbers of one half of a row; 0 was not measured."""
    values = {a.MESSAGE_SIZE: size, **numbers((("time", time_us), ("algbw", algorithm), ("busbw", bus)), COLUMNS)}
    # Before 2.13 this column contains the largest error, not a count.
    count = printed_number(wrong) if wrong.isdigit() else None
    return values if count is None else values | {a.WRONG_VALUES: count}


FORMAT = LineFormat(
    "nccl-tests",
    "https://github.com/NVIDIA/nccl-tests/blob/v2.13.10/src/common.cu",
    parse,
    markers=("# Avg bus bandwidth", "_perf", " device ", *ROW_MARKS),
    section_start=("  algbw   busbw ",),
    section_end=("# Out of bounds values",),
)
