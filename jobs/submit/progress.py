"""Progress and speed of a run, from the last lines of its records; a running job is not disturbed."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from jobs import metrics as m
from jobs.errors import SuiteError
from jobs.rundir import RunDir, load_run, read_events, read_plan

# About twenty steps of metrics.jsonl.
TAIL_BYTES = 4096


@dataclass(frozen=True)
class Progress:
    """Progress of a run; None for values that its records do not contain."""

    step: int | None
    total: int | None
    tokens_per_s: float | None
    """Mean over the last steady steps of the current attempt."""
    left_s: float | None
    """Wall time to the last step at that pace, checkpoints included."""
    attempt: int
    """Number of starts at which all ranks met."""
    last_error: str | None


def progress_of(run: RunDir) -> Progress:
    """Return the progress of a run."""
    events = list(read_events(run.status))
    starts = [event for event in events if event["event"] == "started"]
    errors = [event["error"] for event in events if event["event"] == "failed"]
    rows = list(rows_backwards(run))
    step = int(rows[0][m.STEP.name]) if rows else None
    total = read_plan(run).get("steps")
    steady = steady_rows(run, rows, starts[-1]) if starts else []
    step_s = sum(row[m.STEP_TIME.name] for row in steady)
    held_up_s = sum(row.get(m.CHECKPOINT_TIME.name, 0.0) for row in steady)
    return Progress(
        step,
        total,
        sum(row[m.TOKENS.name] for row in steady) / step_s if steady else None,
        (total - step) * (step_s + held_up_s) / len(steady) if total and step and steady else None,
        len(starts),
        errors[-1].partition("\n")[0] if errors else None,
    )


def steady_rows(run: RunDir, rows: list[dict[str, Any]], start: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of the attempt with this start, without its first, unmeasured steps."""
    first = start.get("from_step", 0) + unmeasured_steps(run)
    own = [row for row in rows if row.get(m.ATTEMPT.name) == start.get("attempt") and row[m.STEP.name] > first]
    return [row for row in own if {m.STEP_TIME.name, m.TOKENS.name} <= row.keys()]


@cache
def unmeasured_steps(run: RunDir) -> float:
    """Return the number of steps at the start of an attempt that are not steady; infinity if it is unknown."""
    try:
        return load_run(run.config).job.unmeasured_steps
    except SuiteError:
        return math.inf


def last_step(run: RunDir) -> int | None:
    """Return the last recorded step; None before the first."""
    row = next(rows_backwards(run), None)
    return None if row is None else int(row[m.STEP.name])


def rows_backwards(run: RunDir) -> Iterator[dict[str, Any]]:
    """Yield the last recorded steps, latest first; reads only the end of the file and skips torn lines."""
    try:
        with run.metrics.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            tail = file.read().decode(errors="replace")
    except FileNotFoundError:
        return
    for line in reversed(tail.splitlines()):
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and isinstance(row.get(m.STEP.name), int):
            yield row
