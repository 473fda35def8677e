"""Warning of a time limit that the predicted hours exceed, the restarts that continue from a checkpoint counted."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from jobs.plan.cost import checkpoint_bytes
from jobs.plan.predict.speed import START_S, Speed, speed
from jobs.plan.time_limit import needed_s, stop_before_limit_s
from jobs.schema import Run

if TYPE_CHECKING:
    from jobs.runtime.steps import Samples  # which imports NumPy

BETWEEN_CHECKPOINTS_S = 1800
"""Time between the checkpoints that are proposed."""


def predicted_time_exceeds_limit(run: Run, samples: Samples | None = None) -> str | None:
    """Warn of a run that is predicted not to end within its time limit and the restarts that continue it."""
    found = speed(run, samples)
    if found is None or found.hours is None or starts(run, found.hours.point) <= allowed_starts(run):
        return None
    hours, count = found.hours, allowed_starts(run)
    given = f"wall_time_min={run.wall_time_min}" + (f" x {count} starts" if count > 1 else "")
    then = (
        f"the run ends unfinished after launcher.requeues={run.launcher.requeues} restarts"
        if checkpoint_bytes(run)
        else "without checkpoints nothing of the run is left"
    )
    return (
        f"{found.basis.partition(':')[0]}: predicted {hours.point:,.1f} hours ({hours.low:,.1f} to {hours.high:,.1f}) "
        f"exceed {given}: {then}. {what_to_set(run, found)}"
    )


def what_to_set(run: Run, found: Speed) -> str:
    """Return what ends a run even at the upper end of its predicted hours: a longer limit, or more restarts."""
    assert found.hours is not None
    minutes = math.ceil((3600 * found.hours.high + needed_s(run)) / 60)
    most = run.cluster.max_wall_time_min
    remedies = [f"wall_time_min={minutes}"] if most is None or minutes <= most else []
    every, saving = "", run
    if run.job.checkpoint_every_steps is None:
        steps = max(1, round(BETWEEN_CHECKPOINTS_S / found.step_time_s.point))
        every, saving = (
            f"job.checkpoint_every_steps={steps} ",
            replace(run, job=replace(run.job, checkpoint_every_steps=steps)),
        )
    count = starts(saving, found.hours.high)
    if restarts_itself(run) and checkpoint_bytes(saving) and count < math.inf:
        remedies.append(f"{every}launcher.requeues={max(run.launcher.requeues, count - 1)}")
    return f"Set {', or '.join(remedies)}." if remedies else "Set fewer steps, or more nodes."


def starts(run: Run, hours: float) -> float:
    """Return the starts that a run of this many hours needs if each one continues from the checkpoint of the last."""
    within_s = 60 * run.wall_time_min - stop_before_limit_s(run)
    more_s = 3600 * hours - within_s
    if more_s <= 0:
        return 1
    # Each further start spends part of its limit on imports, process groups and reading the checkpoint.
    further_s = within_s - START_S.point
    return 1 + math.ceil(more_s / further_s) if further_s > 0 else math.inf


def allowed_starts(run: Run) -> int:
    """Return the starts that a run has without its user; each one continues from a checkpoint."""
    return 1 + (run.launcher.requeues if restarts_itself(run) and checkpoint_bytes(run) else 0)


def restarts_itself(run: Run) -> bool:
    """Return whether the launcher starts a run again at its time limit."""
    starter = run.starter
    return starter.needs_slurm or starter.on_this_machine or starter.in_own_job or starter.one_job
