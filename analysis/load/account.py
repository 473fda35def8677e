"""The account of a report: what became of every file that was given. Nothing vanishes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from analysis.formatting import plural, short
from analysis.logs.file import LogFile
from analysis.logs.runs import is_description
from analysis.logs.streams import job_name
from analysis.parsers.base import Kind
from analysis.parsers.search import Search, blocks


class Use(Enum):
    """The use of a file in a report."""

    run = "run"
    measurement = "measurement"
    description = "description"
    listed = "listed"


@dataclass(frozen=True)
class FileUse:
    """A file, or a run directory of ours, and its use."""

    name: str
    use: Use
    reason: str = ""
    """The reason that it is only listed."""


UNKNOWN_FORMAT = "unknown format"
QUOTES = "a script or a text that quotes lines of a log"


def use_of(log: LogFile, name: str, trainings: Collection[Path], jobs: Collection[tuple[Path, str]]) -> FileUse:
    """Return the use of a file; `trainings` are the logs that are runs, `jobs` their names."""
    if log.path in trainings:
        return FileUse(name, Use.run)
    if log.quoted:
        return FileUse(name, Use.listed, QUOTES)
    if not log.recognized:
        return FileUse(name, Use.listed, log.unread or UNKNOWN_FORMAT)
    if log.measurements:
        return FileUse(name, Use.measurement)
    if is_description(log) or Kind.sample in {kind for _, kind in log.records}:
        # Readings of a monitor describe the runs of their time.
        unread = unread_speed(log.path)
        if unread:
            return FileUse(name, Use.listed, f"it describes a run, and has speeds in no known format: {unread}")
        return FileUse(name, Use.description)
    if job_name(log.path) in jobs:
        return FileUse(name, Use.listed, "the other output of a job whose log is a run")
    kinds = ", ".join(sorted({kind.name for _, kind in log.records})) or "nothing but a failure"
    return FileUse(name, Use.listed, f"no step and no measurement in it ({kinds})")


SPEED = re.compile(
    r"\d\s*(?:samples?|sequences?|images?|tokens?|tok|steps?|it|iters?|iterations?|[GMT]i?[Bb](?:it|yte)?s?|T?FLOPS?|requests?)"
    r"(?:/s(?:ec(?:ond)?)?\b|ps\b| per sec)|\b(?:throughput|speed|bandwidth)\b\s*[:=]\s*\d",
    re.IGNORECASE,
)
SPEEDS = Search(("/s", "/S", "per sec", "ps", "hroughput", "peed", "andwidth"))
LONGEST_SPEED = 120


def unread_speed(path: Path) -> str:
    """Return the first line of a file that states a speed; empty without one, and for lines of NCCL about its links.

    The file may have gone since it was read.
    """
    with suppress(OSError):
        for line in SPEEDS.lines(blocks(path)):
            if "NCCL" not in line.text and SPEED.search(line.text):
                return short(f"line {line.number}: {line.text.strip()}", LONGEST_SPEED)
    return ""


def summary(uses: Iterable[FileUse]) -> str:
    """Return the account: `Given: 7 files = 4 runs + 2 measurements + 0 descriptions + 1 listed`."""
    counts = Counter(each.use for each in uses)
    parts = [plural(counts[use], use.name) for use in (Use.run, Use.measurement, Use.description)]
    return f"Given: {plural(counts.total(), 'file')} = {' + '.join(parts)} + {counts[Use.listed]:,} listed."
