"""OSU micro-benchmarks: `# OSU MPI Allreduce Latency Test v7.3`, a header of columns, and one row per message size.

Latencies are in microseconds, mean over the ranks, bandwidths in units of 1e6 bytes per second. A barrier has no size.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Line, LineFormat, Record, Text
from analysis.untrusted import printed_number
from jobs.metrics import Metric

TITLE = re.compile(
    r"^# OSU (MPI|NCCL|RCCL|xCCL|OpenSHMEM|UPC|UPCXX)(\S{0,40}) (\S.{0,80}?)(?: Test)?(?: (v\d[\w.-]{0,20}))?\s*$"
)
# Columns are divided by at least two blanks; `Latency (us)` and `Avg Latency(us)` contain one.
HEADER = re.compile(r"^# ?((?:Size\s{2,})?(?:Avg )?(?:MB/s|Bandwidth|Lat(?:ency)?)\b.*)$")
COLUMNS: tuple[tuple[re.Pattern[str], Metric, float], ...] = (
    (re.compile(r"Size$"), a.MESSAGE_SIZE, 1),
    (re.compile(r"(?:Avg )?Lat(?:ency)? ?\(us\)$"), a.MESSAGE_LATENCY, 1e-6),
    (re.compile(r"(?:Bandwidth \(MB/s\)|MB/s)$"), a.MESSAGE_BANDWIDTH, 1e6),
    (re.compile(r"Messages/s$"), a.MESSAGES_PER_S, 1),
)
# With -c the last column is the validation.
ROW = re.compile(r"^\s*\d[\d.]{0,20}(?:\s+\d[\d.]{0,20})*(?P<validation>\s+(?:Pass|Fail))?\s*$")


def parse(lines: Iterable[Line]) -> Iterator[Record]:
    """Return the version as a setting and a measurement for each row."""
    texts: dict[Text, str] = {}
    columns: Sequence[tuple[Metric, float] | None] = ()
    for line in lines:
        if found := TITLE.match(line.text):
            library, device, test, version = found.groups()
            texts, columns = {Text.benchmark: " ".join(filter(None, (test.lower(), device.strip("-"))))}, ()
            software = " ".join(filter(None, ("OSU micro-benchmarks", library, version)))
            yield Record(Kind.setting, line.number, {}, {Text.software: software}, line.rank, line.host)
        elif texts and (found := HEADER.match(line.text)):
            columns = [column(name) for name in re.split(r"\s{2,}", found[1].strip())]
        elif columns and (found := ROW.match(line.text)):
            if (found["validation"] or "").strip() == "Fail":
                yield Record(Kind.measurement, line.number, {}, {**texts, Text.state: "failed validation"}, line.rank)
                continue
            values = {
                column[0]: value * column[1]
                for column, text in zip(columns, line.text.split(), strict=False)
                if column and (value := printed_number(text)) is not None and (value or column[0] is a.MESSAGE_SIZE)
            }
            if not values.keys().isdisjoint({a.MESSAGE_LATENCY, a.MESSAGE_BANDWIDTH}):
                yield Record(Kind.measurement, line.number, values, texts, line.rank, line.host)


def column(name: str) -> tuple[Metric, float] | None:
    """Return the metric of a column and the factor to base units; None for minima, maxima and counts."""
    return next(((metric, unit) for pattern, metric, unit in COLUMNS if pattern.match(name)), None)


FORMAT = LineFormat(
    "OSU",
    "https://mvapich.cse.ohio-state.edu/benchmarks/ (osu-micro-benchmarks 7.3, c/util/osu_util_mpi.c)",
    parse,
    section_start=("# OSU ",),
)
