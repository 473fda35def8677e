"""Benchmarks that are not training: one row per measurement, and the series that they form over a size or a load.

A series is one test of one program: a file that measures several sizes, or files of one folder that measure one each.
"""

from __future__ import annotations

import os
import statistics
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from analysis.logs.file import LogFile
from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Text
from jobs.metrics import Better, Metric

# Texts that distinguish the measurements of one file, without the benchmark's own name.
NAMING = (Text.variant, Text.transport, Text.model, Text.device, Text.event, Text.job_id, Text.job_name, Text.state)


@dataclass(frozen=True)
class Subject:
    """Subject of a group of benchmarks."""

    name: str
    merits: Sequence[Metric]
    """A measurement counts by the first of these that it has."""
    axes: Sequence[Metric] = ()
    """A series goes over the first of these that varies."""
    latencies: Sequence[Metric] = ()
    without_merit: Sequence[Metric] = ()
    """A measurement with one of these counts although its merit was too small to be printed."""

    def merit_of(self, values: Mapping[Metric, float]) -> Metric:
        """Return the metric by which a measurement counts."""
        return next((metric for metric in self.merits if metric in values), self.merits[0])


# Mean lengths of sampled requests vary. Sorted, one more than so many times as long as the one before is another load.
OTHER_LENGTH = 1.5

COLLECTIVES = Subject(
    "Collectives", (a.BUS_BANDWIDTH,), (a.MESSAGE_SIZE,), (a.COLLECTIVE_TIME,), without_merit=(a.COLLECTIVE_TIME,)
)
SERVING = Subject(
    "Serving",
    (a.OUTPUT_TOKENS_PER_S, a.REQUESTS_PER_S),
    (a.CONCURRENCY, a.OFFERED_REQUESTS_PER_S),
    (a.TIME_TO_FIRST_TOKEN["p99"], a.INTER_TOKEN_LATENCY["p99"], a.REQUEST_LATENCY["p99"]),
)
STORAGE = Subject(
    "Storage",
    (a.IO500_SCORE, a.ACCELERATOR_UTILIZATION, a.IO_BANDWIDTH, a.IO_OPERATIONS_PER_S),
    (a.TRANSFER_SIZE, a.RANKS),
    (a.COMPLETION_LATENCY["p99"], a.IO_LATENCY["p99"]),
)
MESSAGES = Subject(
    "Messages", (a.MESSAGE_BANDWIDTH, a.MESSAGE_LATENCY), (a.MESSAGE_SIZE,), without_merit=(a.MESSAGES_PER_S,)
)
MEMORY = Subject("Memory", (a.MEMORY_BANDWIDTH,), (a.THREADS,))
SOLVERS = Subject("Solvers", (a.SOLVER_FLOPS_PER_S,), (a.RANKS, a.PROBLEM_SIZE))
SUBJECTS = (COLLECTIVES, SERVING, STORAGE, MESSAGES, MEMORY, SOLVERS)


class Side(NamedTuple):
    """The prompts or the answers of a served load: their mean length, and their tokens in all."""

    word: str
    length: Metric
    total: Metric


SIDES = (Side("input", a.INPUT_LENGTH, a.INPUT_TOKENS), Side("output", a.OUTPUT_LENGTH, a.OUTPUT_TOKENS))


@dataclass(frozen=True)
class Measurement:
    """One measurement of a log."""

    path: Path
    line: int
    form: str
    """The format, named after the program."""
    kind: Kind
    values: Mapping[Metric, float]
    texts: Mapping[Text, str]
    settings: Mapping[Metric, float] = field(default_factory=dict)
    """Numbers that the log states once for all of its measurements."""
    hardware: str = ""

    @property
    def benchmark(self) -> str:
        """The name of the test, else of the program."""
        return self.texts.get(Text.benchmark, self.form)

    @property
    def details(self) -> str:
        """Further settings, which distinguish it within its file."""
        return ", ".join(self.texts[text] for text in NAMING if text in self.texts)

    @property
    def subject(self) -> Subject | None:
        """Subject of the measurement; None for a reading that no benchmark made."""
        return next(
            (each for each in SUBJECTS if not self.values.keys().isdisjoint((*each.merits, *each.without_merit))), None
        )

    def at(self, axis: Metric) -> float | None:
        """Return its place on an axis: its own value, else that of its log."""
        return self.values.get(axis, self.settings.get(axis))

    @property
    def axis(self) -> Metric | None:
        """The size or the load of its subject that it states."""
        return next((axis for axis in (self.subject.axes if self.subject else ()) if self.at(axis) is not None), None)

    def tokens_of(self, side: Side) -> float | None:
        """Return the mean tokens of a request's prompt or answer; None if unknown."""
        total, requests = self.values.get(side.total), self.values.get(a.REQUESTS_COMPLETED)
        return self.values.get(side.length, total / requests if total and requests else None)


@dataclass(frozen=True)
class Series:
    """The measurements of one test."""

    subject: Subject
    merit: Metric
    axis: Metric | None
    """None if neither size nor load varies."""
    name: str
    place: Path
    """The file, or the folder of its files."""
    measurements: Sequence[Measurement]
    lengths: str = ""
    """Tokens of its requests, if the same place has a series with other requests."""

    @property
    def points(self) -> dict[float | None, list[Measurement]]:
        """The measurements by place on the axis, in its order."""
        found: dict[float | None, list[Measurement]] = defaultdict(list)
        for each in self.measurements:
            found[each.at(self.axis) if self.axis else None].append(each)
        return dict(sorted(found.items(), key=lambda item: item[0] or 0.0))

    def median(self, metric: Metric, at: float | None) -> float | None:
        """Return the median of a metric over the repeats at a place; None if none has it."""
        values = [each.values[metric] for each in self.points[at] if metric in each.values]
        return statistics.median(values) if values else None

    @property
    def best(self) -> tuple[float | None, float]:
        """The place with the best median of the merit, and that median."""
        middles = {at: value for at in self.points if (value := self.median(self.merit, at)) is not None}
        pick = min if self.merit.better is Better.low else max
        at = pick(middles, key=lambda each: middles[each])
        return at, middles[at]


def measurements(logs: Iterable[LogFile]) -> list[Measurement]:
    """Return every measurement of these logs that is not training, in the order of files and lines."""
    return [
        Measurement(
            log.path,
            record.line,
            form,
            record.kind,
            record.values,
            record.texts,
            log.settings,
            log.texts.get(Text.gpu_name, ""),
        )
        for log in logs
        for form, records in log.measurements.items()
        for record in records
    ]


def series_of(found: Iterable[Measurement]) -> list[Series]:
    """Return the series of the measurements that belong to a subject."""
    tests: dict[tuple[object, ...], list[Measurement]] = defaultdict(list)
    for each in without_summaries(list(found)):
        if each.subject is not None:
            merit = each.subject.merit_of(each.values)
            tests[each.path.parent, each.form, each.benchmark, each.details, each.subject.name, merit].append(each)
    loads = [by_length(members, SIDES) for members in tests.values()]
    return [
        replace(series, lengths=lengths_of(members) if len(load) > 1 else "")
        for load in loads
        for members in load
        for series in split(members)
        if any(series.merit in each.values for each in series.measurements)
    ]


def by_length(members: Sequence[Measurement], sides: Sequence[Side]) -> list[list[Measurement]]:
    """Return the measurements of each load: those whose requests have prompts and answers of about one length."""
    if not sides:
        return [list(members)]
    known = sorted({length for each in members if (length := each.tokens_of(sides[0])) is not None})
    ends = [before for before, after in pairwise(known) if after > OTHER_LENGTH * before]
    parts: dict[int | None, list[Measurement]] = defaultdict(list)
    for each in members:
        length = each.tokens_of(sides[0])
        parts[None if length is None else bisect_left(ends, length)].append(each)
    return [own for part in parts.values() for own in by_length(part, sides[1:])]


def lengths_of(members: Sequence[Measurement]) -> str:
    """Return the median tokens of the requests as text; empty if unknown."""
    sides = [(side.word, [length for each in members if (length := each.tokens_of(side))]) for side in SIDES]
    known = [f"{statistics.median(lengths):,.0f} {word}" for word, lengths in sides if lengths]
    return f"{' and '.join(known)} tokens a request" if known else ""


def without_summaries(found: Sequence[Measurement]) -> list[Measurement]:
    """Return the measurements without the summaries of a file that has the measurements themselves."""
    measured = {(each.path, each.form) for each in found if each.kind is Kind.measurement}
    return [
        each
        for each in found
        if each.kind is Kind.measurement or (each.path, each.form) not in measured or a.IO500_SCORE in each.values
    ]


def split(members: Sequence[Measurement]) -> list[Series]:
    """Return one series of the files of a folder if they measure one point each, else one a file."""
    files: dict[Path, list[Measurement]] = defaultdict(list)
    for each in members:
        files[each.path].append(each)
    subject = members[0].subject
    assert subject is not None
    merit = subject.merit_of(members[0].values)
    name = ", ".join(filter(None, (members[0].benchmark, members[0].details)))
    axis = varying(subject, members)
    if len(files) > 1 and axis and all(varying(subject, each) is None for each in files.values()):
        others = {tuple(each.at(other) for other in (a.RANKS, a.NODES) if other is not axis) for each in members}
        if len(others) == 1:
            return [Series(subject, merit, axis, name, members[0].path.parent, members)]
    return [Series(subject, merit, varying(subject, each), name, path, each) for path, each in files.items()]


def varying(subject: Subject, members: Sequence[Measurement]) -> Metric | None:
    """Return the first axis of a subject on which all members have a place, but not all the same; else None."""
    for axis in subject.axes:
        places = {each.at(axis) for each in members}
        if None not in places and len(places) > 1:
            return axis
    return None


def names_below(found: Iterable[Series]) -> dict[Path, str]:
    """Return the places of series, each by its path below the folder that they share."""
    places = {series.place for series in found}
    above = os.path.commonpath([place.parent for place in places]) if places else ""
    return {place: os.path.relpath(place, above) for place in places}
