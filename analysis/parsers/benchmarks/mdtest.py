"""mdtest, part of IOR: a table of metadata operations per second, and a table of their times.

Every operation has a row; those that were not run contain zeros. Before 3.4 rows have a colon, and there are no times.
Since 4.0 either table may be missing; the heading of each states its unit, in 4.0.0 "in ops/sec" for both, later "in
ms/op" for times. Only rows under a heading of rates are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Line, LineFormat, Record, Text
from analysis.untrusted import printed_number
from jobs.metrics import Metric

LAUNCHED = re.compile(r"\s*(mdtest-\S+) was launched with (\d{1,9}) total task\(s\) on (\d{1,9}) node\(s\)")
# Max, Min, Mean, Std Dev; with --showRankStatistics preceded by Max, Min and Mean per rank.
ROW = re.compile(r"\s*((?:File|Directory|Tree) [a-z]+)\s*:?(?:(?:\s+[\d.]{1,20}){3})?((?:\s+[\d.]{1,20}){4})\s*$")

HEADINGS = ("SUMMARY rate", "SUMMARY time", "SUMMARY: (of")
UNIT = re.compile(r"\(in ([^()]{1,20})\)")
RATE_UNITS = {"ops/sec": 1.0, "ops/s": 1.0, "kops/sec": 1e3, "kops/s": 1e3}


def parse(lines: Iterable[Line]) -> Iterator[Record]:
    """Return the setting, and the mean over iterations of each operation that was run."""
    unit: tuple[Metric, float] | None = None
    for line in lines:
        if any(heading in line.text for heading in HEADINGS):
            unit = unit_of(line.text)
        elif found := LAUNCHED.match(line.text):
            values = {a.RANKS: float(found[2]), a.NODES: float(found[3])}
            yield Record(Kind.setting, line.number, values, {Text.software: found[1]}, line.rank, line.host)
        elif unit and (found := ROW.match(line.text)) and (mean := printed_number(found[2].split()[2])):
            metric, factor = unit
            texts = {Text.benchmark: found[1].lower()}
            yield Record(Kind.measurement, line.number, {metric: mean * factor}, texts, line.rank, line.host)


def unit_of(heading: str) -> tuple[Metric, float] | None:
    """Return the metric of the rows below a heading, and the factor from its unit; None for a table of times.

    A table of times repeats the operations of the table of rates: its rows would count twice.
    """
    quantity = heading.partition("SUMMARY")[2].partition("(of")[0]
    if (named := UNIT.search(quantity)) and named[1] not in RATE_UNITS:
        return None
    # 4.0 names the unit of the rates in both headings.
    return None if "time" in quantity else (a.IO_OPERATIONS_PER_S, RATE_UNITS[named[1]] if named else 1.0)


FORMAT = LineFormat(
    "mdtest",
    "https://github.com/hpc/ior/blob/4.0.0/src/mdtest.c",
    parse,
    markers=(" total task(s) on ",),
    section_start=HEADINGS,
    section_end=("-- finished at ",),
)
