"""The queues of schedulers, as interrupted submissions need them: submit a script, find a job by its name, end jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from jobs.rundir import SweepDir
from jobs.submit import cancellation
from jobs.submit.pbs import cancel as pbs_cancel
from jobs.submit.pbs import commands as pbs_commands
from jobs.submit.slurm import commands as slurm_commands
from jobs.submit.sweeps.submissions import kind_of


@dataclass(frozen=True)
class BatchQueue:
    """The queue of a scheduler."""

    submit: Callable[[Path], str]
    """Submits a script; returns its job id. Raises NoAnswerError if the job may be in the queue."""
    named: Callable[[set[str], datetime], dict[str, str]]
    """Returns the ids of this user's jobs by name, of jobs since a time. Raises SubmitError if nobody answers."""
    cancel: Callable[[SweepDir, Iterable[str]], None]
    """Ends those of these jobs that are the sweep's."""


QUEUES = {
    "Slurm": BatchQueue(slurm_commands.submit_script, slurm_commands.jobs_named, cancellation.cancel_jobs),
    "PBS": BatchQueue(pbs_commands.submit, pbs_commands.named, pbs_cancel.cancel_jobs),
}


def scheduler_of(launcher: str) -> str:
    """Return the name of the scheduler of a launcher."""
    kind = kind_of(launcher)
    return (kind and kind.scheduler) or "Slurm"


def queue_of(launcher: str) -> BatchQueue:
    """Return the queue in which the jobs of a launcher are."""
    return QUEUES[scheduler_of(launcher)]
