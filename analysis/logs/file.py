"""One log file as the records of all formats found in it, by kind.

The format is detected from the content, never from the file name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from analysis.failures.verdict import Verdict, verdict_on
from analysis.logs.quotes import quotes
from analysis.parsers.base import Kind, Record, Text
from analysis.parsers.cluster import launcher
from analysis.parsers.detect import read_log
from analysis.parsers.search import blocks, torn_number
from jobs.failure_causes import FailureCause
from jobs.metrics import Better, Metric

# Bytes that do not occur in text. Excluded are colours, bells and the zeros that a full disk or a crash leaves.
CONTROL = re.compile(rb"[\x01-\x06\x0e-\x1a\x1c-\x1f]")
LOOKED_AT_BYTES = 1 << 16
MOST_CONTROL_SHARE = 0.02
# Formats whose summaries are those of a training.
OF_TRAINING = {"MLPerf MLLOG", "MLPerf system description"}
# A text that quotes a log quotes no more steps of it.
MOST_QUOTED_STEPS = 1000


@dataclass(frozen=True, eq=False)
class LogFile:
    """The content of a log file; without formats and with an unknown cause it is not a known log."""

    path: Path
    formats: tuple[str, ...] = ()
    settings: Mapping[Metric, float] = field(default_factory=dict)
    """The first value of each setting in any format."""
    texts: Mapping[Text, str] = field(default_factory=dict)
    """The first value of each text in any format."""
    records: Mapping[tuple[str, Kind], Sequence[Record]] = field(default_factory=dict)
    """By format and kind, in the order of the file; without settings."""
    last_step_line: int = 0
    """The last line of a training step; 0 without one."""
    verdict: Verdict | None = None
    quoted: bool = False
    """A script or a note with lines of a log: never a run."""
    facts: Mapping[Metric, float] = field(default_factory=dict)
    """Numbers from a facts.yaml, which override `settings`."""
    note: str | None = None
    """A warning about its relation to other files: the attempts of its training, or why it was not merged."""
    torn: str = ""
    """The number at its end that is not read, because it may be cut off; empty if there is none."""
    unread: str = ""
    """The reason that it was not read; such a file has no content."""

    @property
    def recognized(self) -> bool:
        """Return True if it contains any known format, or a line that identifies why a run ended."""
        return bool(self.formats) or (self.verdict is not None and self.verdict.is_failure)

    @property
    def measurements(self) -> dict[str, list[Record]]:
        """Return its measurements that are not training, by format."""
        found: dict[str, list[Record]] = {}
        for (form, kind), records in self.records.items():
            training = (form, Kind.step) in self.records or form in OF_TRAINING
            if kind in {Kind.measurement, Kind.summary, Kind.job} and not training:
                found.setdefault(form, []).extend(record for record in records if record.values)
        return {form: rows for form, rows in found.items() if rows}

    def of(self, kind: Kind) -> Iterator[Record]:
        """Yield the records of one kind, of all formats."""
        return (record for (_, each), records in self.records.items() if each is kind for record in records)

    def latest(self, metric: Metric) -> float | None:
        """Return the last value of a metric in summaries, of several nodes that print it at the end the worst.

        None if there is none.
        """
        found = [record for record in self.of(Kind.summary) if metric in record.values]
        at_end = [record for record in found if record.line > self.last_step_line > 0] or found[-1:]
        values = [record.values[metric] for record in at_end]
        worst = {Better.low: max, Better.high: min}.get(metric.better)
        return None if not values else worst(values) if worst else values[-1]


def read_log_file(path: Path) -> LogFile:
    """Return the content of a log; empty if it is binary. Raise OSError if it cannot be read."""
    if is_binary(path):
        return LogFile(path)
    settings: dict[Metric, float] = {}
    texts: dict[Text, str] = {}
    records: dict[tuple[str, Kind], list[Record]] = {}
    formats = []
    for form, found in read_log(path):
        matched = False
        for record in found:
            matched = True
            if record.kind is Kind.setting:
                settings = {**record.values, **settings}
                texts = {**record.texts, **texts}
            else:
                records.setdefault((form.name, record.kind), []).append(record)
        if matched:
            formats.append(form.name)
    if formats == [launcher.FORMAT.name]:
        # Such lines are in scripts and in the output of any program: alone they make no log.
        formats = []
    numbers = sorted(step.line for (_, kind), steps in records.items() if kind is Kind.step for step in steps)
    last = numbers[-1] if numbers else 0
    verdict = verdict_on(path, numbers)
    quoted = len(numbers) <= MOST_QUOTED_STEPS and quotes(path, numbers or [verdict.line or 0])
    if quoted:
        verdict = Verdict(FailureCause.unknown)
    torn = torn_number(path) if formats else ""
    return LogFile(path, tuple(formats), settings, texts, records, last, verdict, quoted, torn=torn)


def is_binary(path: Path) -> bool:
    """Return True if a file is not text, by its first bytes after decompression."""
    first = next(blocks(path), b"")[:LOOKED_AT_BYTES]
    return len(CONTROL.findall(first)) > MOST_CONTROL_SHARE * len(first)
