"""HPCG's result file: one `Section::Name=value` a line; the rate counts only if the result is valid.

The rating divides all operations by all of the time, with set-up and convergence; `raw` rates are higher and are not
the result.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Line, LineFormat, Names, Record, Text, numbers
from analysis.untrusted import printed_number
from jobs.metrics import Metric

PAIR = re.compile(r"(?:^|\s)([A-Z][\w/ ]{1,60}::[^=]{1,80})=\s*(\S{1,40})\s*$")
VERSION = re.compile(r"^HPCG-Benchmark version=(\S{1,40})")
RATING = "Final Summary::HPCG result is VALID with a GFLOP/s rating of"
INVALID = re.compile(r"\bFinal Summary::HPCG result is INVALID\b")
SETTINGS: Names = {
    "Machine Summary::Distributed Processes": (a.RANKS, 1),
    "Machine Summary::Threads per processes": (a.THREADS, 1),
    "Linear System Information::Number of Equations": (a.PROBLEM_SIZE, 1),
    "Benchmark Time Summary::Total": (a.DURATION, 1),
}


def parse(lines: Iterable[Line]) -> Iterator[Record]:
    """Return the version, and one measurement for each summary."""
    about: dict[Metric, float] = {}
    for line in lines:
        if INVALID.search(line.text):
            texts = {Text.benchmark: "HPCG", Text.state: "INVALID"}
            yield Record(Kind.measurement, line.number, about, texts, line.rank, line.host)
            about = {}
        elif (found := PAIR.search(line.text)) and found[2]:
            about |= numbers([(found[1], found[2])], SETTINGS)
            if found[1] == RATING and (rate := printed_number(found[2])):
                values = about | {a.SOLVER_FLOPS_PER_S: rate * 1e9}
                yield Record(Kind.measurement, line.number, values, {Text.benchmark: "HPCG"}, line.rank, line.host)
                about = {}
        elif found := VERSION.match(line.text):
            yield Record(Kind.setting, line.number, {}, {Text.software: f"HPCG {found[1]}"}, line.rank, line.host)


FORMAT = LineFormat(
    "HPCG",
    "https://github.com/hpcg-benchmark/hpcg/blob/HPCG-release-3-1-branch/src/ReportResults.cpp",
    parse,
    markers=(
        "HPCG-Benchmark version=",
        "Machine Summary::",
        "Linear System Information::Number of Equations",
        "Benchmark Time Summary::Total",
        "Final Summary::HPCG result is ",
    ),
)
