"""The time before its time limit at which a run is asked to stop, so that it can still write a checkpoint."""

from __future__ import annotations

from jobs.plan.cost import checkpoint_bytes
from jobs.schema import Run

# For the rest of a step and the end of the processes.
STOP_S = 90
# Of all ranks together: a slow shared file system.
WRITE_BYTES_PER_S = 1e9
# Slurm's largest time of --signal.
MOST_STOP_S = 65535


def stop_before_limit_s(run: Run) -> int:
    """Return the seconds before its time limit at which a run is asked to stop and save."""
    set_s = run.launcher.stop_before_limit_s
    return within(run.wall_time_min, needed_s(run)) if set_s is None else set_s


def within(wall_time_min: int, needed_s: int = STOP_S) -> int:
    """Return the seconds before a time limit at which a job is asked to stop: as needed; a quarter of a short limit."""
    return min(needed_s, wall_time_min * 60 // 4, MOST_STOP_S)


def needed_s(run: Run) -> int:
    """Return the seconds that a run needs to stop and save, estimated from the size of its checkpoint.

    Two checkpoints: the previous one may still be written in the background.
    """
    return STOP_S + round(2 * checkpoint_bytes(run) / WRITE_BYTES_PER_S)
