"""The time limit of a run, and the time before it at which the run is asked to stop to write a checkpoint."""

from __future__ import annotations

import math
import re

from jobs.plan.cost import checkpoint_bytes
from jobs.schema import Run

# For the rest of a step and the end of the processes. Slurm may send its signal 60 s too early (sbatch(1), --signal),
# and kills at a limit that it checks every 30 s.
STOP_S = 90
# All ranks together, on a slow shared file system. Too low a value only makes a run stop earlier than necessary.
WRITE_BYTES_PER_S = 1e9
# Slurm's largest time of --signal.
MOST_STOP_S = 65535


def stop_before_limit_s(run: Run) -> int:
    """Return the seconds before its time limit at which a run is asked to stop and save."""
    set_s = run.launcher.stop_before_limit_s
    return within(run.wall_time_min, needed_s(run)) if set_s is None else set_s


def within(wall_time_min: int, needed_s: int = STOP_S) -> int:
    """Return the seconds before a time limit at which a job is asked to stop: as needed; a quarter of a short limit."""
    # A quarter: a job of a few minutes would otherwise be asked to stop before its first step.
    return min(needed_s, wall_time_min * 60 // 4, MOST_STOP_S)


def needed_s(run: Run) -> int:
    """Return the seconds that a run needs to stop and save, estimated from the size of its checkpoint.

    Two checkpoints: the previous one may still be written in the background.
    """
    return STOP_S + round(2 * checkpoint_bytes(run) / WRITE_BYTES_PER_S)


def limit_min(text: str) -> int | None:
    """Convert a time limit of Slurm to whole minutes, rounded up as Slurm does; None for UNLIMITED and other texts.

    Formats: M, M:S, H:M:S, D-H, D-H:M, D-H:M:S.
    """
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if match is None:
        return None
    days, first, second, third = (None if part is None else int(part) for part in match.groups())
    # M and M:S begin with minutes, all other formats with hours.
    hours, minutes, seconds = (0, first, second) if days is None and third is None else (first, second, third)
    return ((days or 0) * 24 + (hours or 0)) * 60 + (minutes or 0) + math.ceil((seconds or 0) / 60)


def duration(minutes: int) -> str:
    """Return a time limit as Slurm writes it, such as 1:00:00."""
    return f"{minutes // 60}:{minutes % 60:02d}:00"
