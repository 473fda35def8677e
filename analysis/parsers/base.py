"""What a parser finds: numbers under the names of the metric registry, and texts under the names listed here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from jobs.metrics import Metric


class Kind(Enum):
    """What a record is about; a table has a row for each record of one kind."""

    # That of enumerations is Python code, and keys of so many records are hashed.
    __hash__ = object.__hash__

    step = "step"
    """One optimizer step, or the mean over several."""
    evaluation = "evaluation"
    summary = "summary"
    """Said once, of the whole run or of an epoch."""
    setting = "setting"
    """What was run, and on what."""
    measurement = "measurement"
    """One row of a benchmark's table."""
    sample = "sample"
    """One reading of a monitor."""
    job = "job"
    """One job or job step of an accounting table."""
    event = "event"
    """Something happened: a start, an end, a failure."""


class Text(Enum):
    """What a text of a record says."""

    __hash__ = object.__hash__

    benchmark = "benchmark"
    """Which test of a suite, such as all_reduce or llama2_70b_lora."""
    variant = "variant"
    """Which of several equal measurements, such as in-place."""
    model = "model"
    gpu_name = "gpu_name"
    organization = "organization"
    system = "system"
    precision = "precision"
    software = "software"
    """Name and version of what was run."""
    library = "library"
    """Name and version of what carries the collectives."""
    transport = "transport"
    """What collectives travelled over."""
    interfaces = "interfaces"
    """Network devices as the log names them, without addresses."""
    environment = "environment"
    """A variable as NAME=VALUE."""
    job_id = "job_id"
    job_name = "job_name"
    partition = "partition"
    nodes = "nodes"
    """Host list as written."""
    state = "state"
    """How it ended or stands, in the words of the log."""
    exit_code = "exit_code"
    submitted = "submitted"
    """When, as written; likewise the next two."""
    started = "started"
    ended = "ended"
    event = "event"
    timestamp = "timestamp"
    """As written; which clock and time zone it is of, only the log's writer knows."""
    device = "device"
    """Index or name of the device a reading is of."""
    unit = "unit"
    """Of a number whose unit the log's format leaves open."""
    message = "message"
    checkpoint = "checkpoint"
    """Where one was saved to or loaded from, as written."""
    uncovered = "uncovered"
    """What a model has that the formula of its FLOPs does not cover."""


# What an event of a log is called that attempts of one training are recognised by.
RESUMED, SAVED = "resumed", "saved"


class LocalRank(NamedTuple):
    """Which process of its node a line is of: not a rank, which counts over all nodes, and never equal to one."""

    number: int


Whose = int | LocalRank | None
"""A rank, or as much as a log tells of one."""


class Line(NamedTuple):
    """One line of a log without what launchers put in front of it."""

    number: int
    """Counted from 1 by line feeds, as an editor counts."""
    text: str
    rank: Whose = None
    """The rank or task whose output it is, where a prefix says so."""
    host: str | None = None
    times: int = 1
    """How many lines it stands for, itself counted, where its format says that they are alike."""


class Record(NamedTuple):
    """What one place of a log says. A number that it does not say, or says as a placeholder, is absent."""

    kind: Kind
    line: int
    """Where; 0 for a document that has no lines."""
    values: Mapping[Metric, float] = {}
    texts: Mapping[Text, str] = {}
    rank: Whose = None
    host: str | None = None


@dataclass(frozen=True)
class LineFormat:
    """A format that is read line by line, wherever in a file its lines stand."""

    name: str
    upstream: str
    """The code that writes it."""
    parse: Callable[[Iterable[Line]], Iterator[Record]]
    """Pure and streaming: holds no more than the numbers of a few lines, and raises nothing whatever it is given."""
    needles: tuple[str, ...] = ()
    """Texts one of which is in every line that matters: other lines are never made into Python strings."""
    opens: tuple[str, ...] = ()
    """Texts from whose line on every line is given to the parser, for tables of rows without a mark of their own ..."""
    closes: tuple[str, ...] = ()
    """... up to a line with one of these."""
    repeated: tuple[str, ...] = ()
    """Further needles, of lines so many that they are counted without being looked at ..."""
    alike: re.Pattern[str] | None = None
    """... but for the first in a while in which this matches a text, in ASCII, that it matches in the others, too."""
    is_header: Callable[[str], bool] | None = None
    """For tables without any mark: whether the first line of a file is one's header."""


@dataclass(frozen=True)
class DocumentFormat:
    """A format that is one JSON document a file, or a line."""

    name: str
    upstream: str
    recognises: Callable[[Any], bool]
    parse: Callable[[Any], Iterator[Record]]
    """Raises nothing whatever it is given."""
    in_lines: str | None = None
    """Where its program also writes one document a line: a text that is in each of them."""


Format = LineFormat | DocumentFormat
