"""Stas Bekman's all_reduce_bench.py: for each trial every rank prints `7:` and three lines of time and bandwidths.

Figures are in bits per second, and `algo throughput` counts each byte twice, sent and received. Lines of ranks
interleave, so a rank is known only if its four lines follow each other. Later versions print one table of means
instead, in bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Line, LineFormat, Record, Text
from analysis.untrusted import printed_number
from jobs.metrics import Metric

# A rank, in later versions a host and the local rank.
RANK_LINE = re.compile(r"(?:([\w.-]{1,64}):)?(\d{1,9}):$")
SIZE = re.compile(r"\S{1,80} data size: ([\d.]+) GB$")
BIT = 1 / 8
FIGURES: tuple[tuple[re.Pattern[str], Metric, float], ...] = (
    (re.compile(r" duration: ([\d.]+) sec$"), a.COLLECTIVE_TIME, 1),
    (re.compile(r" algo throughput: (?:[\d.]+ bps, )?([\d.]+) Gbps$"), a.ALGORITHM_BANDWIDTH, 1e9 * BIT / 2),
    (re.compile(r" busbw: ([\d.]+) +Gbps$"), a.BUS_BANDWIDTH, 1e9 * BIT),
)
# The first versions of the table print KB for the same 1024 bytes.
ROW = re.compile(r"\| +(\d{1,4})([KMGT])i?B \| +([\d.]+)GBps \| +([\d.]+)GBps \|$")
RANKS = re.compile(r"The average bandwidth of all_reduce over (\d{1,9}) ranks ")
BENCHMARK = {Text.benchmark: "all_reduce"}


def parse(lines: Iterable[Line]) -> Iterator[Record]:
    """Return a measurement for each rank and trial; if ranks interleave, one for each sequence of figures."""
    size: dict[Metric, float] = {}
    begun: Record | None = None
    follows = (0, 0)
    for line in lines:
        text = line.text.rstrip()
        place, values = figure(text)
        if begun is not None and (line.number, place) != follows:
            yield from measured(begun, size)
            begun = None
        follows = line.number + 1, place + 1
        if whose := RANK_LINE.match(text):
            begun = Record(Kind.measurement, line.number, {}, {}, None if whose[1] else int(whose[2]), whose[1])
        elif place >= 0:
            begun = begun or Record(Kind.measurement, line.number)
            begun = begun._replace(values={**begun.values, **values})
        elif (found := SIZE.match(text)) and (gigabytes := printed_number(found[1])):
            size = {a.MESSAGE_SIZE: gigabytes * 1e9}
        elif (row := ROW.match(text)) and (values := bandwidths(row)):
            yield Record(Kind.measurement, line.number, values, BENCHMARK)
        elif found := RANKS.match(text):
            yield Record(Kind.setting, line.number, {a.RANKS: float(found[1])}, BENCHMARK)
    if begun is not None:
        yield from measured(begun, size)


def figure(text: str) -> tuple[int, dict[Metric, float]]:
    """Return the index of the figure in a line (-1: none) and its value in base units; 0 was not measured."""
    for place, (shape, metric, unit) in enumerate(FIGURES):
        if found := shape.match(text):
            value = printed_number(found[1])
            return place, {metric: value * unit} if value else {}
    return -1, {}


def bandwidths(row: re.Match[str]) -> dict[Metric, float]:
    """Return the means in a row of the table; none if all are rounded to 0."""
    size = float(row[1]) * 1024 ** ("KMGT".index(row[2]) + 1)
    found = {a.BUS_BANDWIDTH: printed_number(row[3]), a.ALGORITHM_BANDWIDTH: printed_number(row[4])}
    values = {metric: gb_per_s * 1e9 for metric, gb_per_s in found.items() if gb_per_s}
    return {a.MESSAGE_SIZE: size, **values} if values else {}


def measured(begun: Record, size: dict[Metric, float]) -> Iterator[Record]:
    """Return a record of consecutive figures, with a rank only if all three are present."""
    if begun.values:
        mixed = len(begun.values) < len(FIGURES)
        record = begun._replace(values={**size, **begun.values}, texts=BENCHMARK)
        yield record._replace(rank=None, host=None) if mixed else record


FORMAT = LineFormat(
    "all_reduce_bench.py",
    "https://github.com/bigscience-workshop/bigscience/blob/da82eaf/experiments/bandwidth/all_reduce_bench.py",
    parse,
    markers=(" data size: ", "GBps |", "The average bandwidth of all_reduce "),
    section_start=("ignore me ", "-----------trial-", " algo throughput: "),
)
