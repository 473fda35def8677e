"""ApacheBench (ab): a block of rows from `Concurrency Level:` to the percentiles, times in whole ms.

`Time per request:` is printed twice: first the wall time of one client's request, then the time between completions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Line, LineFormat, Record
from analysis.untrusted import printed_number
from jobs.metrics import Metric

FIRST = "Concurrency Level:"
LAST = "(longest request)"
ROWS = {
    FIRST: a.CONCURRENCY,
    "Time taken for tests:": a.DURATION,
    "Complete requests:": a.REQUESTS_COMPLETED,
    "Failed requests:": a.REQUESTS_FAILED,
    "Non-2xx responses:": a.ERROR_RESPONSES,
    "Total transferred:": a.RECEIVED,
    "Total body sent:": a.SENT,
    "Requests per second:": a.REQUESTS_PER_S,
}
ROW = re.compile(rf"\s*({'|'.join(ROWS)})\s+([\d.]{{1,20}})(?: (?:seconds|bytes|\[#/sec\] \(mean\)))?\s*$")
PER_REQUEST = re.compile(r"\s*Time per request:\s+([\d.]{1,20}) \[ms\] \(mean(, across all concurrent requests)?\)")
# Without -S, standard deviation and median are printed between mean and maximum.
TOTAL = re.compile(r"\s*Total:\s+(\d+)\s+(\d+)(?:\s+[\d.]{1,20}\s+(\d+))?\s+(\d+)\s*$")
PERCENTILE = re.compile(r"\s*(50|90|95|99|100)%\s+(\d+)(?: \(longest request\))?\s*$")


def parse(lines: Iterable[Line]) -> Iterator[Record]:
    """Return a summary for each block, at the line of its first row."""
    first: Line | None = None
    values: dict[Metric, float] = {}
    for line in lines:
        if FIRST in line.text:
            yield from summary(first, values)
            first, values = line, {}
        values |= row_values(line.text)
    yield from summary(first, values)


def row_values(text: str) -> dict[Metric, float]:
    """Return the values of a row; a time of 0 ms was too short to be printed."""
    if found := ROW.match(text):
        value = printed_number(found[2])
        return {} if value is None else {ROWS[found[1]]: value}
    times: dict[Metric, str | None] = {}
    if found := PER_REQUEST.match(text):
        times = {a.REQUEST_INTERVAL if found[2] else a.REQUEST_TIME_OF_CLIENT: found[1]}
    elif found := TOTAL.match(text):
        statistics = ("min", "mean", "median", "max")
        times = {a.REQUEST_LATENCY[key]: time for key, time in zip(statistics, found.groups(), strict=True)}
    elif found := PERCENTILE.match(text):
        key = {"50": "median", "100": "max"}.get(found[1], f"p{found[1]}")
        times = {a.REQUEST_LATENCY[key]: found[2]}
    printed = {metric: printed_number(time) for metric, time in times.items() if time is not None}
    return {metric: time_ms * 1e-3 for metric, time_ms in printed.items() if time_ms}


def summary(first: Line | None, values: dict[Metric, float]) -> Iterator[Record]:
    """Return the summary of a block, with the rate in as many digits as count and duration give."""
    duration, done, rate = (values.get(each) for each in (a.DURATION, a.REQUESTS_COMPLETED, a.REQUESTS_PER_S))
    # The duration is printed with three decimals, the rate with two.
    if duration and done and rate is not None and rate < 10 * duration:
        values[a.REQUESTS_PER_S] = done / duration
    if first is not None and values:
        yield Record(Kind.summary, first.number, values, {}, first.rank, first.host)


FORMAT = LineFormat(
    "ApacheBench",
    "https://github.com/apache/httpd/blob/2.4.62/support/ab.c (output_results)",
    parse,
    section_start=(FIRST,),
    section_end=(LAST,),
)
