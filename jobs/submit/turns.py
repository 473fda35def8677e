"""The turns of local queues: what a run that waits for its turn waits for.

Runs of all local queues of a user on one machine take turns by one lock (jobs.submit.local_queue), so a run waits for
those before it in its own queue, and for the queue that holds the lock. Queues that wait for the lock have no order.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from jobs.plan.rules.rule import counted
from jobs.ranks import started_after_boot_s
from jobs.rundir import SweepDir
from jobs.submit.cancellation import queue_process
from jobs.submit.sweeps.submissions import Submission, submissions_on_record

HOME = "XDG_STATE_HOME"
MOST_QUEUES = 2


@dataclass(frozen=True)
class Queue:
    """A local queue of this user that lives, and its runs that have not ended, in their order."""

    job_id: str
    path: Path
    left: tuple[Submission, ...]

    @property
    def is_running(self) -> bool:
        """True if it has started one of them."""
        return any(each.log_id is not None for each in self.left)

    def described(self) -> str:
        """Return its sweep, as a user here would type it, and the number of its runs."""
        here = Path.cwd()
        shown = self.path.relative_to(here) if self.path.is_relative_to(here) else self.path
        return f"{shown} ({counted(len(self.left))})"


def living_queues() -> list[Queue]:
    """Return the local queues of this user on this machine, which share one lock."""
    return list(filter(None, map(queue_of, psutil.pids())))


def queue_of(pid: int) -> Queue | None:
    """Return the local queue that a process is; None for another process, and a queue with another lock."""
    with suppress(psutil.NoSuchProcess, psutil.AccessDenied, OSError, IndexError):
        process = queue_process(str(pid))
        if process is not None and process.environ().get(HOME) == os.environ.get(HOME):
            path = Path(process.cmdline()[3])
            started = started_after_boot_s(pid)
            given = submissions_on_record(SweepDir(path)).values()
            own = [each for each in given if each.job_id == str(pid) and each.process_started == started]
            return Queue(str(pid), path, tuple(each for each in own if not (each.ended or each.cancelled)))
    return None


def behind(submission: Submission, queues: Sequence[Queue]) -> str | None:
    """Describe what a run that has not started waits for; None for one that is first."""
    own = next((each for each in queues if each.job_id == submission.job_id), None)
    names = [each.run for each in own.left] if own else []
    # A stage comes after the runs.
    before = names.index(submission.run) if submission.run in names else len(names)
    others = [each for each in queues if each is not own and each.left]
    # While the own queue holds the lock, no other queue runs anything.
    ahead = [each for each in others if each.is_running] if own is None or not own.is_running else []
    words = [each.described() for each in ahead[:MOST_QUEUES]]
    words += [f"{counted(before)} of this sweep"] if before else []
    return f"its turn, behind {' and '.join(words)}" if words else None
