"""The node-hours that a caller may submit, which the process above it has set (`slurmscale mcp --node-hours`).

The variable ALLOWANCE names a file: its first record is the limit, each further one a submission. A submission counts
with all that it may use: every start of every run, and of the stages around it, to the end of its time limit.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from jobs.errors import SubmitError
from jobs.plan.rules.stages import stages_of
from jobs.rundir import append_record, read_records
from jobs.schema import LauncherKind, Run

ALLOWANCE = "SLURMSCALE_ALLOWANCE"


def open_allowance(directory: Path, node_hours: float) -> Path:
    """Write the file of an allowance into a new directory, and return it."""
    path = directory / "allowance.jsonl"
    append_record(path, {"limit": node_hours})
    return path


@contextmanager
def spent(runs: Sequence[Run], kind: LauncherKind) -> Iterator[None]:
    """Count the runs that are submitted inside the block; raise SubmitError if they exceed the allowance.

    Without the variable there is no limit. What is refused inside the block does not count.
    """
    path = os.environ.get(ALLOWANCE)
    if not path or not kind.starts_runs or not runs:
        yield
        return
    from filelock import FileLock  # noqa: PLC0415 (most callers have no limit)

    needed = most_node_hours(runs, kind)
    with FileLock(f"{path}.lock"):
        limit, *before = read_records(Path(path))
        left = float(limit["limit"]) - sum(float(each["node_hours"]) for each in before)
        if needed > left:
            raise SubmitError(
                f"Up to {needed:,.3g} node-hours (nodes x wall_time_min x starts), and {max(left, 0):,.3g} of "
                f"{limit['limit']:,.3g} are left to this caller (--node-hours of slurmscale mcp). Nothing was "
                "submitted. Set fewer nodes or runs, a shorter wall_time_min, or launcher.requeues=0."
            )
        append_record(Path(path), {"node_hours": needed})
    try:
        yield
    except BaseException:
        with FileLock(f"{path}.lock"):
            append_record(Path(path), {"node_hours": -needed})
        raise


def most_node_hours(runs: Sequence[Run], kind: LauncherKind) -> float:
    """Return the most node-hours that runs can use."""
    if kind.one_job:
        most = max((run.launcher for run in runs), key=lambda each: each.pilot_nodes or 0)
        return (most.pilot_nodes or 0) * (most.pilot_wall_time_min or 0) / 60 * (1 + most.requeues)
    return sum(
        run.job_nodes * run.wall_time_min / 60 * (1 + run.launcher.requeues) * (1 + len(stages_of(run))) for run in runs
    )
