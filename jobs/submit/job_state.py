"""The state of a job, as every scheduler reports it through its launcher."""

from __future__ import annotations

from dataclasses import dataclass

# Every other state, also one of a later Slurm, is that of a job that runs or may be started (again).
ENDED = {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
         "PREEMPTED", "REVOKED", "TIMEOUT"}  # fmt: skip
# States of a job in the queue that has no nodes yet, or does not compute on them; in any other one it computes.
# EXPEDITING (since 25.11): the script has failed, and the epilogs decide whether the job starts again at once.
WAITING = {"PENDING", "CONFIGURING", "EXPEDITING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD",
           "SPECIAL_EXIT"}  # fmt: skip
# States of a job whose processes exist and do not compute: gang scheduling, `scontrol suspend`, `scancel -s STOP`.
SUSPENDED = {"STOPPED", "SUSPENDED"}
HELD = {"REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
# Not a state of a scheduler: the job is not in the queue, and accounting does not know its end.
GONE = "GONE"
# Not a state of a scheduler: the scheduler of the job does not answer.
UNKNOWN = "UNKNOWN"

# Begins the reason of a job that is over by its queue and not by accounting.
STILL = "accounting still reports "


@dataclass(frozen=True)
class JobState:
    """The state of a job or array task."""

    state: str
    """By Slurm's names: PENDING, RUNNING, COMPLETED, FAILED, TIMEOUT, CANCELLED, NODE_FAIL, ...; or GONE, UNKNOWN."""
    reason: str | None = None
    """Reason that a pending job waits, or that the state is unknown."""
    expected_start: str | None = None
    """Expected start of a pending job, if the scheduler has computed it."""
    nodes: str | None = None
    """Nodes of an ended start, in Slurm's notation."""
    last_end: JobState | None = None
    """The end of an earlier start of a job that is not over, if accounting has it."""
    described: str = ""
    """Name and script of a job in the queue, as `name|script`."""
    is_unknown_to_controller: bool = False
    """True for a job that accounting has not ended and the controller does not know."""

    @property
    def is_alive(self) -> bool:
        """True if the job runs, or may be started again: COMPLETING is also the state of a job before its restart."""
        return self.state not in ENDED | {GONE, UNKNOWN}

    @property
    def is_late(self) -> bool:
        """True if the job is not in the queue, and accounting knows it and not its end."""
        return self.state == GONE and (self.reason or "").startswith(STILL)

    @property
    def is_suspended(self) -> bool:
        """True if its processes are stopped and will go on."""
        return self.state in SUSPENDED

    @property
    def waits(self) -> bool:
        """True if the job is in the queue and does not compute."""
        return self.state in WAITING

    @property
    def is_held(self) -> bool:
        """True if the job waits until somebody releases it."""
        return self.state in HELD or (self.state == "PENDING" and "held" in (self.reason or "").lower())
