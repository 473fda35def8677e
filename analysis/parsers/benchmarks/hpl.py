"""HPL and NVIDIA's HPL: a table of solved systems, and for each one the check of its residual.

The rate counts if the residual passed; a failed one keeps its size and time, without a rate. NVIDIA's table ends each
row with the rate of one GPU in brackets. Problem sizes that were not checked (a threshold below 0) have no such line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Line, LineFormat, Record, Text
from analysis.untrusted import printed_number

VERSION = re.compile(r"^(?:HPLinpack|HPL-NVIDIA|HPL-MxP-NVIDIA) (\S{1,40})\b")
# T/V N NB P Q Time Gflops. `R` and `C` name the order in which the processes are mapped.
ROW = re.compile(
    r"^\s*W[RC]\w{1,20}\s+(\d{1,12})\s+\d{1,9}\s+(\d{1,9})\s+(\d{1,9})"
    r"\s+(\d[\d.]{0,20})\s+(\d\.?\d{0,12}(?:e[+-]\d{1,3})?)(?:\s+\(\s*\S{1,20}\))?\s*$"
)
CHECK = re.compile(r"^\|\|Ax-b\|\|.*\.{3,} (PASSED|FAILED)\b")
FAILED = "FAILED"


def parse(lines: Iterable[Line]) -> Iterator[Record]:
    """Return the version, and a measurement for each solved system once its check is known."""
    solved: Record | None = None
    for line in lines:
        if found := ROW.match(line.text):
            if solved:
                yield solved
            solved = measured(line, found)
        elif solved and (found := CHECK.match(line.text)):
            yield checked(solved, found[1])
            solved = None
        elif found := VERSION.match(line.text):
            yield Record(Kind.setting, line.number, {}, {Text.software: f"HPL {found[1]}"}, line.rank, line.host)
    if solved:
        yield solved


def measured(line: Line, found: re.Match[str]) -> Record:
    """Return the measurement in a row of the table."""
    time_s, gflops_per_s = printed_number(found[4]), printed_number(found[5])
    values = {a.PROBLEM_SIZE: float(found[1]), a.RANKS: float(found[2]) * float(found[3])}
    values |= {a.DURATION: time_s} if time_s else {}
    values |= {a.SOLVER_FLOPS_PER_S: gflops_per_s * 1e9} if gflops_per_s else {}
    return Record(Kind.measurement, line.number, values, {Text.benchmark: "HPL"}, line.rank, line.host)


def checked(solved: Record, state: str) -> Record:
    """Return a measurement with the state of its residual; a wrong solution has no rate."""
    if state != FAILED:
        return solved
    values = {metric: value for metric, value in solved.values.items() if metric is not a.SOLVER_FLOPS_PER_S}
    return solved._replace(values=values, texts={**solved.texts, Text.state: "failed residual"})


FORMAT = LineFormat(
    "HPL",
    "https://www.netlib.org/benchmark/hpl/ (hpl-2.3, testing/ptest/HPL_pdtest.c)",
    parse,
    markers=("HPLinpack ", "HPL-NVIDIA ", "||Ax-b||_"),
    section_start=("T/V                N    NB", "T/V "),
    section_end=("||Ax-b||_", "Finished "),
)
