"""Records that parsers return: numbers by metric of the registry, texts by the names listed here; and formats."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from analysis.parsers import log_metrics as a
from analysis.untrusted import as_number, is_not_finite, printed_number
from jobs import metrics as m
from jobs.metrics import Metric


class Kind(Enum):
    """Subject of a record; a table has one row for each record of one kind."""

    # Enum's own hash is Python code; this one is fast enough for the keys of millions of records.
    __hash__ = object.__hash__

    step = "step"
    """One optimizer step, or the mean over several."""
    evaluation = "evaluation"
    summary = "summary"
    """Reported once for the whole run or for an epoch."""
    setting = "setting"
    """Configuration, software or hardware of the run."""
    measurement = "measurement"
    """One row of a benchmark's table."""
    sample = "sample"
    """One reading of a monitor."""
    job = "job"
    """One job or job step of an accounting table."""
    event = "event"
    """A start, an end, a failure."""


class Text(Enum):
    """Name of a text in a record."""

    __hash__ = object.__hash__

    benchmark = "benchmark"
    """Test of a suite, such as all_reduce or llama2_70b_lora."""
    variant = "variant"
    """Variant of a measurement, such as in-place."""
    model = "model"
    gpu_name = "gpu_name"
    organization = "organization"
    system = "system"
    precision = "precision"
    software = "software"
    """Name and version of the program."""
    library = "library"
    """Name and version of the communication library."""
    transport = "transport"
    """Transport of collectives, such as NET/IB."""
    communicator = "communicator"
    """Id of a communicator, which all of its ranks print."""
    interfaces = "interfaces"
    """Network devices as the log names them, without addresses."""
    environment = "environment"
    """A variable as NAME=VALUE."""
    job_id = "job_id"
    job_name = "job_name"
    partition = "partition"
    nodes = "nodes"
    """Host list, as written."""
    state = "state"
    """State or end of a job or result, in the words of the log."""
    exit_code = "exit_code"
    submitted = "submitted"
    """Time, as written; likewise the next two."""
    started = "started"
    ended = "ended"
    event = "event"
    timestamp = "timestamp"
    """As written; the log does not state clock and time zone."""
    device = "device"
    """Index or name of the device that a reading belongs to."""
    unit = "unit"
    """Unit of a number, if the format does not fix it."""
    message = "message"
    checkpoint = "checkpoint"
    """Path that a checkpoint was written to or loaded from, as written."""
    uncovered = "uncovered"
    """Parts of a model that the FLOPs formula does not cover."""


# Names of the events by which attempts of one training are recognised.
RESUMED, SAVED = "resumed", "saved"


class LocalRank(NamedTuple):
    """Index of a process on its node: not a rank, which counts over all nodes, and never equal to one."""

    number: int


RankLabel = int | LocalRank | None
"""Rank, or local rank if the log states only that, or None."""


class Line(NamedTuple):
    """One line of a log without the prefixes of launchers."""

    number: int
    """Counted from 1 by line feeds, as an editor counts."""
    text: str
    rank: RankLabel = None
    """Rank or task that printed the line, if a prefix states it."""
    host: str | None = None
    times: int = 1
    """Number of lines with the same `dedup_key` that this line represents, itself included."""


class Record(NamedTuple):
    """Content of one place in a log. Unknown numbers and placeholders are absent."""

    kind: Kind
    line: int
    """Line number; 0 for a document without lines."""
    values: Mapping[Metric, float] = {}
    texts: Mapping[Text, str] = {}
    rank: RankLabel = None
    host: str | None = None


@dataclass(frozen=True)
class LineFormat:
    """Format that is read line by line, anywhere in a file."""

    name: str
    upstream: str
    """URL of the code that writes this format."""
    parse: Callable[[Iterable[Line]], Iterator[Record]]
    """Pure and streaming: keeps the numbers of a few lines only, and raises nothing for any input."""
    markers: tuple[str, ...] = ()
    """Every relevant line contains one of these texts; other lines never become Python strings."""
    section_start: tuple[str, ...] = ()
    """A line with one of these texts begins a section, such as a table: the parser gets all of its lines."""
    section_end: tuple[str, ...] = ()
    """A line with one of these texts ends the section."""
    repeated: tuple[str, ...] = ()
    """Further markers, of lines so frequent that they are only counted."""
    dedup_key: re.Pattern[str] | None = None
    """ASCII pattern for these lines: those with the same match are represented by the first one of a block."""
    is_header: Callable[[str], bool] | None = None
    """For tables without a marker: return True if the first line of a file is a header of this format."""

    @property
    def file_markers(self) -> tuple[str, ...]:
        """Every file of this format contains one of these texts, unless it has a header."""
        return self.markers + self.section_start + self.repeated


@dataclass(frozen=True)
class DocumentFormat:
    """Format of one JSON document per file or per line."""

    name: str
    upstream: str
    recognises: Callable[[Any], bool]
    parse: Callable[[Any], Iterator[Record]]
    """Raises nothing for any input."""
    in_lines: str | None = None
    """Text in each document, if the program also writes one document per line."""


Format = LineFormat | DocumentFormat


Names = Mapping[str, tuple[Metric, float]]
"""Metric of each printed name, and the factor from the printed unit to base units."""

# In these units a measured value is above 0; programs print 0 or less for unknown values.
POSITIVE_UNITS = {"s", "1/s", "FLOP/s", "B/s", "B"}


def numbers(printed: Iterable[tuple[str, object]], names: Names) -> dict[Metric, float]:
    """Return the known numbers among the printed values that have a metric, in base units."""
    values: dict[Metric, float] = {}
    for name, text in printed:
        if name in names:
            values |= value_of(names[name][0], text, names[name][1])
    return values


# A program that prints NaN or inf for these has diverged, or made no update in this step.
DIVERGING: Mapping[Metric, Metric] = {
    m.LOSS: a.LOSS_NOT_FINITE,
    a.MEAN_LOSS: a.LOSS_NOT_FINITE,
    m.EVALUATION_LOSS: a.LOSS_NOT_FINITE,
    m.GRADIENT_NORM: a.NORM_NOT_FINITE,
}


def value_of(metric: Metric, printed: object, unit: float = 1.0) -> dict[Metric, float]:
    """Return a printed number in base units under its metric.

    A loss or a norm that is NaN or infinite, and a time that no step takes, have a metric of their own. Empty for an
    unknown number.
    """
    number = printed_number(printed) if isinstance(printed, str) else as_number(printed)
    if number is None and metric in DIVERGING and is_not_finite(printed):
        return {DIVERGING[metric]: 1.0}
    if metric is m.STEP_TIME and (is_not_finite(printed) if number is None else number <= 0):
        return {a.TIME_NOT_POSITIVE: 1.0}
    if number is None or (number <= 0 and metric.unit in POSITIVE_UNITS):
        return {}
    value = as_number(number * unit)
    return {} if value is None else {metric: value}
