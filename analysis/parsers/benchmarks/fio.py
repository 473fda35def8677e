"""fio 2 and 3: a block for each job with its directions, then a line for each group and direction; or JSON.

fio 3 prints `333MiB/s (349MB/s)`. A KB of fio 2 is 1024 bytes, and minb and maxb of its groups are wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from analysis.parsers import log_metrics as a
from analysis.parsers.base import DocumentFormat, Kind, Line, LineFormat, Record, Text
from analysis.untrusted import as_list, as_number, lookup, printed_number
from jobs.metrics import Metric

JOB = re.compile(r"\s*(\S.*): \(groupid=\d+, jobs=\d+\): err=")
# fio 2: `write: io=768KB, bw=88KB/s, iops=22, runt= 8861msec`; fio 3: `read: IOPS=85.1k, BW=333MiB/s ...`.
DIRECTION = re.compile(r"\s*(read|write|trim|mixed) *: (?:io|IOPS)=")
GROUP = re.compile(r"\s*(READ|WRITE|TRIM|MIXED): (?:io=[^,]*, aggrb|bw)=")
GROUP_NUMBER = re.compile(r"\s*Run status group (\d+) \(all jobs\)")
# After the amount (fio 2) the units are powers of 1024. A quoted-printable mail writes =3D for =.
BANDWIDTH = re.compile(r"(io=[^,]+, *)?\b(?:aggrb|bw|BW)=(?:3D)?([\d.]{1,20})([KkMGT]?)(i?)B/s")
OPERATIONS = re.compile(r"\b(?:iops|IOPS)=([\d.]{1,20})([kKM]?)\b")
RUN = re.compile(r"(?:\brunt= *|/|\brun=(?:3D)?\d+-|\bmaxt=)(\d+)msec")
LATENCY = re.compile(
    r"\s*(c?lat) *\(([num])sec\): min= *([\d.]{1,20})([kKM]?) *, max= *([\d.]{1,20})([kKM]?) *,"
    r" avg= *([\d.]{1,20})([kKM]?),"
)
PERCENTILES = re.compile(r"\s*(c?lat) percentiles \(([num])sec\):")
PERCENTILE = re.compile(r"\b(50|90|95|99)\.00th=\[ *(\d{1,20})\]")
POWERS = ("", "K", "M", "G", "T")
THOUSANDS = {"": 1.0, "K": 1e3, "M": 1e6}
SECONDS = {"n": 1e-9, "u": 1e-6, "m": 1e-3}
TIMES = {"lat": a.IO_LATENCY, "clat": a.COMPLETION_LATENCY}


def parse(lines: Iterable[Line]) -> Iterator[Record]:
    """Return a measurement for each job and direction, and a summary for each group and direction."""
    name: dict[Text, str] = {}
    group: dict[Text, str] = {}
    job: list[Record] = []
    values: dict[Metric, float] = {}
    unit = ("lat", 1.0)
    for line in lines:
        if found := JOB.match(line.text):
            name = {Text.variant: found[1]}
        elif found := GROUP_NUMBER.match(line.text):
            group = {Text.variant: f"group {found[1]}"}
        elif found := DIRECTION.match(line.text):
            yield from job
            values = speed(line.text)
            texts = name | {Text.benchmark: found[1]}
            job = [Record(Kind.measurement, line.number, values, texts, line.rank, line.host)]
        elif found := GROUP.match(line.text):
            yield from job
            job, values = [], {}
            texts = group | {Text.benchmark: found[1].lower()}
            if reported := speed(line.text):
                yield Record(Kind.summary, line.number, reported, texts, line.rank, line.host)
        elif found := PERCENTILES.match(line.text):
            unit = found[1], SECONDS[found[2]]
        else:
            # The current record shares this dictionary and is returned later.
            values |= latencies(line.text, *unit)
    yield from job


def speed(text: str) -> dict[Metric, float]:
    """Return bandwidth, operations per second and duration, if the line has them."""
    values = {}
    if (found := BANDWIDTH.search(text)) and (number := printed_number(found[2])):
        base = 1024 if found[1] or found[4] else 1000
        values[a.IO_BANDWIDTH] = number * base ** POWERS.index(found[3].upper())
    if (found := OPERATIONS.search(text)) and (number := printed_number(found[1])):
        values[a.IO_OPERATIONS_PER_S] = number * THOUSANDS[found[2].upper()]
    if (found := RUN.search(text)) and (number := printed_number(found[1])):
        values[a.DURATION] = number * 1e-3
    return values


def latencies(text: str, percentiles_of: str, unit: float) -> dict[Metric, float]:
    """Return the latencies in a line of a job's block; an earlier line names the quantity of percentiles."""
    if found := LATENCY.match(text):
        metrics, second = TIMES[found[1]], SECONDS[found[2]]
        printed = {"min": (found[3], found[4]), "max": (found[5], found[6]), "mean": (found[7], found[8])}
        numbers = {key: (printed_number(number), suffix.upper()) for key, (number, suffix) in printed.items()}
        return {
            metrics[key]: reported * THOUSANDS[suffix] * second
            for key, (reported, suffix) in numbers.items()
            if reported
        }
    metrics = TIMES[percentiles_of]
    return {
        metrics["median" if percent == "50" else f"p{percent}"]: float(time) * unit
        for percent, time in PERCENTILE.findall(text)
    }


def recognises(document: Any) -> bool:
    """Return True if a document is output of fio with --output-format=json."""
    return isinstance(document, Mapping) and "fio version" in document and "jobs" in document


def parse_document(document: Any) -> Iterator[Record]:
    """Return a measurement for each job and each direction with any transfer."""
    software = {Text.software: document["fio version"]} if isinstance(document["fio version"], str) else {}
    for job in as_list(document["jobs"]):
        name = lookup(job, "jobname")
        texts = software | ({Text.variant: name} if isinstance(name, str) else {})
        for direction in ("read", "write", "trim", "mixed"):
            if values := moved(lookup(job, direction)):
                yield Record(Kind.measurement, 0, values, texts | {Text.benchmark: direction})


def moved(direction: Any) -> dict[Metric, float]:
    """Return the numbers of one direction of a job; 0 was not measured."""
    kib_per_s = as_number(lookup(direction, "bw"))
    values = {
        a.IO_BANDWIDTH: as_number(lookup(direction, "bw_bytes")) or (kib_per_s or 0) * 1024,
        a.IO_OPERATIONS_PER_S: as_number(lookup(direction, "iops")),
        a.DURATION: (as_number(lookup(direction, "runtime")) or 0) * 1e-3,
    }
    for key, metrics in TIMES.items():
        # fio 2 writes microseconds.
        for name, unit in ((key, 1e-6), (f"{key}_ns", 1e-9)):
            times = lookup(direction, name)
            values |= {metrics[each]: (as_number(lookup(times, each)) or 0) * unit for each in ("min", "max", "mean")}
            percentiles = lookup(times, "percentile")
            for percent, statistic in ((50, "median"), (90, "p90"), (95, "p95"), (99, "p99")):
                time = percentiles.get(f"{percent}.000000") if isinstance(percentiles, Mapping) else None
                values[metrics[statistic]] = (as_number(time) or 0) * unit
    return {metric: number for metric, value in values.items() if (number := as_number(value))}


UPSTREAM = "https://github.com/axboe/fio/blob/fio-3.33/stat.c"
FORMAT = LineFormat(
    "fio",
    UPSTREAM,
    parse,
    markers=("Run status group", "READ: bw=", "WRITE: bw=", "TRIM: bw=", "MIXED: bw=", ", aggrb="),
    section_start=(": (groupid=",),
    section_end=("  cpu          : usr=",),
)
DOCUMENT = DocumentFormat("fio (JSON)", UPSTREAM, recognises, parse_document)
