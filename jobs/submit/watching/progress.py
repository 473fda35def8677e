"""Progress and speed of a run, from the last lines of its records; a running job is not disturbed."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jobs import metrics as m
from jobs.errors import SuiteError
from jobs.files import UnsuitableFileError, parse_json, read_tail, reason
from jobs.run_events import run_events
from jobs.rundir import RunDir, load_run, read_plan, read_records
from jobs.runtime.node.use import NODE_NUMBER, is_amount, use_of

# Most steps, checkpoints and evaluations take less.
OLD_STEP_S = 120.0
# About twenty steps of metrics.jsonl.
TAIL_BYTES = 4096
# The use of a node in one line; the metrics of a part have one unit.
PARTS_OF_NODE = {
    "CPU {} %": (m.NODE_CPU_BUSY,),
    "memory {} %": (m.NODE_MEMORY_USED,),
    "GPU {} %": (m.NODE_GPU_BUSY,),
    "GPU memory {} %": (m.NODE_GPU_MEMORY_USED,),
    "network in {} out {} MB/s": (m.NODE_RECEIVED, m.NODE_SENT),
    "disks read {} written {} MB/s": (m.NODE_DISK_READ, m.NODE_DISK_WRITTEN),
}
USED = {m.STEP_TIME.name, m.TOKENS.name, m.CHECKPOINT_TIME.name}


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
    """Return the progress of a run; of one whose records cannot be read the reason."""
    try:
        return recorded_progress(run)
    except UnsuitableFileError as error:
        return Progress(None, None, None, None, 0, f"{error.filename} cannot be read: {reason(error)}")


def recorded_progress(run: RunDir) -> Progress:
    """Return the progress of a run, as its records have it."""
    events = run_events(run)
    starts = [event for event in events if event["event"] == "started"]
    errors = [event["error"] for event in events if event["event"] == "failed"]
    rows = list(rows_backwards(run))
    step = int(rows[0][m.STEP.name]) if rows else None
    total = steps_planned(run)
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


def latest_tokens_per_s(run: RunDir) -> list[float]:
    """Return tokens/s of the last steady steps of the latest attempt, latest first; empty if they cannot be read."""
    with suppress(UnsuitableFileError):
        starts = [event for event in run_events(run) if event["event"] == "started"]
        rows = steady_rows(run, list(rows_backwards(run)), starts[-1]) if starts else []
        return [row[m.TOKENS.name] / row[m.STEP_TIME.name] for row in rows]
    return []


def steps_planned(run: RunDir) -> int | None:
    """Return the number of steps that the plan of a run has; None if it has no plan."""
    steps = read_plan(run).get("steps")
    return steps if isinstance(steps, int) else None


def steady_rows(run: RunDir, rows: list[dict[str, Any]], start: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of the attempt with this start, without its first, unmeasured steps."""
    # Each attempt compiles, connects and fills caches again.
    first = (start.get("from_step") or 0) + unmeasured_steps(run)
    own = [row for row in rows if row.get(m.ATTEMPT.name) == start.get("attempt") and row[m.STEP.name] > first]
    return [row for row in own if {m.STEP_TIME.name, m.TOKENS.name} <= row.keys() and row[m.STEP_TIME.name] > 0]


@cache
def unmeasured_steps(run: RunDir) -> float:
    """Return the number of steps at the start of an attempt that are not steady; infinity if it is unknown."""
    try:
        return load_run(run.config).job.unmeasured_steps
    except SuiteError:
        return math.inf


def last_step(run: RunDir) -> int | None:
    """Return the last recorded step; None before the first, and where the records cannot be read."""
    with suppress(UnsuitableFileError):
        for row in rows_backwards(run):
            return int(row[m.STEP.name])
    return None


def since_last_step(run: RunDir) -> str:
    """Return the age of the last recorded step as text; empty while it is young, and before the first.

    A stopped process, or one that waits for its disk, seems to run until the watchdog ends it.
    """
    try:
        age_s = time.time() - max(run.metrics.stat().st_mtime, run.status.stat().st_mtime)
    except OSError:
        return ""
    return f"last step recorded {age_s / 60:.0f} min ago" if age_s >= OLD_STEP_S else ""


def rows_backwards(run: RunDir) -> Iterator[dict[str, Any]]:
    """Yield the last recorded steps, latest first; reads only the end of the file and skips torn lines."""
    try:
        tail = read_tail(run.metrics, TAIL_BYTES)
    except FileNotFoundError:
        return
    for line in reversed(tail.splitlines()):
        try:
            row = parse_json(line)
        except ValueError:
            continue
        if isinstance(row, dict) and isinstance(row.get(m.STEP.name), int) and all(map(is_number, row, row.values())):
            yield row


def is_number(name: str, value: Any) -> bool:
    """Return False if one of the metrics that are used here has a non-numeric value."""
    return name not in USED or (isinstance(value, int | float) and math.isfinite(value))


# --- nodes -----------------------------------------------------------------------------------------------------


def node_lines(run: RunDir) -> list[str]:
    """Return a line for each node of a run with its use in its latest interval; no line for a node without a record."""
    numbers = {file: number for file in run.storage_logs if (number := node_of(file)) is not None}
    found = {number: line for file, number in numbers.items() if (line := use_now(file))}
    return [f"node {number} {line}" for number, line in sorted(found.items())]


def node_of(file: Path) -> int | None:
    """Return the number of the node whose use a file records; None for another file."""
    with suppress(OSError):
        number = next(read_records(file), {}).get(NODE_NUMBER)
        return number if type(number) is int else None
    return None


def use_now(file: Path) -> str | None:
    """Return the node's name, its use in its latest interval and the age of that as text; None before the first one."""
    with suppress(OSError):
        for line in reversed(read_tail(file, TAIL_BYTES).splitlines()):
            with suppress(ValueError):
                record = parse_json(line)
                if isinstance(record, dict) and is_amount(record.get("time_s")) and (values := use_of(record)):
                    parts = [
                        text.format(*(f"{values[metric] / metric.display.size:,.0f}" for metric in metrics))
                        for text, metrics in PARTS_OF_NODE.items()
                        if values.keys() >= set(metrics)
                    ]
                    age_min = (time.time() - record["time_s"]) // 60
                    age = f", {age_min:,.0f} min ago" if age_min > 0 else ""
                    return f"({record.get('node')}): {', '.join(parts)}{age}"
    return None
