"""nccl-tests and rccl-tests: a table of message sizes, out-of-place and in-place, and the devices of each rank.

Before 2.13 there is no column `root`, and a column `error` instead of `#wrong`. With `-c 0` both are `N/A`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Line, LineFormat, Names, Record, Text, numbers
from analysis.untrusted import printed_number
from jobs.metrics import Metric

# size count type redop [root], then time algbw busbw wrong twice.
ROW = re.compile(
    r"^\s*(\d{1,18})\s+(\d+)\s+([a-z]\w*)\s+([a-z]\w*)(?:\s+-?\d+)?"
    r"\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)\s+(\S+)\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)\s+(\S+)\s*$"
)
# Rows have no other marker: the program prints type and operation at these widths.
TYPES = ("int8", "uint8", "int32", "uint32", "int64", "uint64", "half", "float", "double", "bfloat16")
OPERATIONS = ("sum", "prod", "max", "min", "avg", "none")
ROW_MARKS = tuple(f"{kind}{operation:>8}" for kind in TYPES for operation in OPERATIONS)
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


def parse(lines: Iterable[Line]) -> Iterator[Record]:
    """Return a measurement for each row and place, a setting for each device, the average as a summary."""
    program: dict[Text, str] = {}
    for line in lines:
        if row := ROW.match(line.text):
            size, _, _, _, *columns = row.groups()
            for place, (time_us, algorithm, bus, wrong) in (("out-of-place", columns[:4]), ("in-place", columns[4:])):
                values = measured(float(size), time_us, algorithm, bus, wrong)
                texts = program | {Text.variant: place}
                yield Record(Kind.measurement, line.number, values, texts, line.rank, line.host)
        elif found := DEVICE.search(line.text):
            texts = {Text.nodes: found[2], Text.gpu_name: found[3]}
            yield Record(Kind.setting, line.number, {}, texts, int(found[1]), found[2])
        elif found := AVERAGE.search(line.text):
            if values := numbers([("busbw", found[1])], COLUMNS):
                yield Record(Kind.summary, line.number, values, program, line.rank)
        elif found := PROGRAM.search(line.text):
            program = {Text.benchmark: found[1]}


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
)
