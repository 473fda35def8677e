"""The state of a job, as every scheduler reports it through its launcher."""

from __future__ import annotations

from dataclasses import dataclass

# Not a state of a scheduler: the job is not in the queue, and accounting does not know its end.
GONE = "GONE"
# Not a state of a scheduler: the scheduler of the job does not answer.
UNKNOWN = "UNKNOWN"


@dataclass(frozen=True)
class JobState:
    """The state of a job or array task."""

    state: str
    """By Slurm's names: PENDING, RUNNING, COMPLETED, FAILED, TIMEOUT, CANCELLED, NODE_FAIL, ...; or GONE, UNKNOWN."""
    reason: str | None = None
    """Reason that a pending job waits, or that the state is unknown."""
    expected_start: str | None = None
    """Expected start of a pending job, if the scheduler has computed it."""
