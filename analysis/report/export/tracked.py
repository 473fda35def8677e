"""What experiment trackers store of a run: its settings, its values, and the values of its steps."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from analysis.formatting import published
from analysis.report.export.data_frames import steps_of
from analysis.untrusted import number
from jobs import metrics as m
from jobs.files import flat
from jobs.rundir import as_file_name

if TYPE_CHECKING:
    from analysis.report.content import Report
    from analysis.run import RunResult

MOST_CHARACTERS = 500
"""The longest value of a setting that all trackers take."""


@dataclass(frozen=True)
class TrackedRun:
    """A run as a tracker stores it."""

    sweep: str
    name: str
    id: str
    """16 hexadecimal digits, the same in each report on this run."""
    file_name: str
    """A name for its files, which no other run of the report has."""
    used: bool
    start_s: float
    """In seconds since the epoch; 0: unknown."""
    settings: Mapping[str, str]
    values: Mapping[str, float]
    """By the names of runs.csv, in SI units."""
    steps: Sequence[tuple[int, float, Mapping[str, float]]]
    """Number, time in seconds since the epoch, and values of each step."""


def tracked(content: Report) -> Iterator[TrackedRun]:
    """Yield the runs of a report, used or not."""
    taken: set[str] = set()
    for run in content.digest.runs:
        name = as_file_name(published(f"{run.sweep}-{run.name}"))
        digest = hashlib.sha256(str(run.path.absolute()).encode()).hexdigest()[:16]
        file_name = name if name not in taken else f"{name}-{digest[:6]}"
        taken.add(file_name)
        start_s = start_of(run)
        yield TrackedRun(
            sweep=published(run.sweep),
            name=published(run.name),
            id=digest,
            file_name=file_name,
            used=run.used,
            start_s=start_s,
            settings={key: published(str(value))[:MOST_CHARACTERS] for key, value in flat(run.config).items()},
            values={metric.name: float(value) for metric, value in run.values.items()},
            steps=list(steps(run, start_s)),
        )


def start_of(run: RunResult) -> float:
    """Return when a run started; 0 if it is not recorded."""
    for event in run.events:
        if event.get("event") == "started":
            try:
                return datetime.fromisoformat(str(event.get("time"))).timestamp()
            except ValueError:
                break
    return 0.0


def steps(run: RunResult, start_s: float) -> Iterator[tuple[int, float, dict[str, float]]]:
    """Yield the steps of a run; where no time is recorded, a step has that of its number in seconds."""
    for step, record in sorted(steps_of(run).items()):
        known = {each.name: number(record, each) for each in m.STEP_METRICS[1:]}
        values = {name: float(value) for name, value in known.items() if value is not None}
        yield step, start_s + values.get(m.ELAPSED.name, float(step)), values
