"""mdtest, part of IOR: a table of metadata operations per second, and a table of their times.

Every operation has a row; those that were not run contain zeros. Before 3.4 rows have a colon, and there are no times.
Since 4.0 either table may be missing, and both headings contain "in ops/sec".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Line, LineFormat, Record, Text
from analysis.untrusted import printed_number

LAUNCHED = re.compile(r"\s*(mdtest-\S+) was launched with (\d{1,9}) total task\(s\) on (\d{1,9}) node\(s\)")
# Max, Min, Mean, Std Dev; with --showRankStatistics preceded by Max, Min and Mean per rank.
ROW = re.compile(r"\s*((?:File|Directory|Tree) [a-z]+)\s*:?(?:(?:\s+[\d.]{1,20}){3})?((?:\s+[\d.]{1,20}){4})\s*$")


def parse(lines: Iterable[Line]) -> Iterator[Record]:
    """Return the setting, and the mean over iterations of each operation that was run."""
    for line in lines:
        if found := LAUNCHED.match(line.text):
            values = {a.RANKS: float(found[2]), a.NODES: float(found[3])}
            yield Record(Kind.setting, line.number, values, {Text.software: found[1]}, line.rank, line.host)
        elif (found := ROW.match(line.text)) and (rate := printed_number(found[2].split()[2])):
            texts = {Text.benchmark: found[1].lower()}
            yield Record(Kind.measurement, line.number, {a.IO_OPERATIONS_PER_S: rate}, texts, line.rank, line.host)


FORMAT = LineFormat(
    "mdtest",
    "https://github.com/hpc/ior/blob/4.0.0/src/mdtest.c",
    parse,
    markers=(" total task(s) on ",),
    section_start=("SUMMARY rate: (of", "SUMMARY rate (in ops/sec): (of", "SUMMARY: (of"),
    section_end=("SUMMARY time: (of", "SUMMARY time (in ops/sec): (of", "-- finished at "),
)
