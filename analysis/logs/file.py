"""One log file of anybody's, as everything that its formats say, sorted by kind.

What a file is comes from its content; its name is only an address.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from analysis.failures.verdict import Verdict, verdict_on
from analysis.parsers.base import Kind, Record, Text
from analysis.parsers.detect import read_log
from analysis.parsers.search import blocks
from jobs.failures import FailureCause
from jobs.metrics import Metric

# Bytes that text does not have, but for those of colours, bells and the gaps that a full disk or a crash leaves.
CONTROL = re.compile(rb"[\x01-\x06\x0e-\x1a\x1c-\x1f]")
LOOKED_AT_BYTES = 1 << 16
MOST_CONTROL_SHARE = 0.02


@dataclass(frozen=True, eq=False)
class LogFile:
    """What a file says; without formats and with an unknown cause it is no known log."""

    path: Path
    formats: tuple[str, ...] = ()
    settings: Mapping[Metric, float] = field(default_factory=dict)
    """The first value of each that any format gives."""
    texts: Mapping[Text, str] = field(default_factory=dict)
    """Likewise."""
    records: Mapping[tuple[str, Kind], Sequence[Record]] = field(default_factory=dict)
    """By format and kind, as they stand in the file; settings are not among them."""
    verdict: Verdict | None = None
    facts: Mapping[Metric, float] = field(default_factory=dict)
    """What a facts.yaml says of it in numbers, which goes before `settings`."""
    note: str | None = None
    """What a reader must know of it among other files: of which attempts its training is, or why it stands alone."""

    @property
    def told(self) -> bool:
        """Whether any format is in it, or a line that says why a run ended."""
        return bool(self.formats) or (self.verdict is not None and self.verdict.cause is not FailureCause.unknown)

    def of(self, kind: Kind) -> Iterator[Record]:
        """The records of one kind, whatever the format."""
        return (record for (_, said), records in self.records.items() if said is kind for record in records)

    def latest(self, metric: Metric) -> float | None:
        """The last value of a metric in summaries."""
        values = [record.values[metric] for record in self.of(Kind.summary) if metric in record.values]
        return values[-1] if values else None


def read_log_file(path: Path) -> LogFile:
    """Everything that a file says; nothing where it is binary. Raises OSError where it cannot be read."""
    if is_binary(path):
        return LogFile(path)
    settings: dict[Metric, float] = {}
    texts: dict[Text, str] = {}
    records: dict[tuple[str, Kind], list[Record]] = {}
    formats = []
    for form, found in read_log(path):
        said = False
        for record in found:
            said = True
            if record.kind is Kind.setting:
                settings = {**record.values, **settings}
                texts = {**record.texts, **texts}
            else:
                records.setdefault((form.name, record.kind), []).append(record)
        if said:
            formats.append(form.name)
    last = max((steps[-1].line for (_, kind), steps in records.items() if kind is Kind.step), default=0)
    return LogFile(path, tuple(formats), settings, texts, records, verdict_on(path, last_progress=last))


def is_binary(path: Path) -> bool:
    """Whether a file is no text, by its first bytes once decompressed."""
    first = next(blocks(path), b"")[:LOOKED_AT_BYTES]
    return len(CONTROL.findall(first)) > MOST_CONTROL_SHARE * len(first)
