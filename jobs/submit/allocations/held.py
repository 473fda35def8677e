"""launcher=here: the runs of a sweep take turns in a job that the user holds (`salloc`, a batch script, `qsub -I`).

`submit` starts this program in the job (`python -m jobs.submit.allocations.held SWEEP`), with the code of each run on
standard input, and waits for it. It works as a pilot does (pilot.py), with these differences: the job is the user's, so
it is neither requeued nor cancelled; a run whose time limit is longer than the job may begin, and is asked to stop when
the job is about to end.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from filelock import FileLock, Timeout

from jobs.errors import SubmitError
from jobs.output import own_program
from jobs.plan.time_limit import stop_before_limit_s
from jobs.ranks import hosts
from jobs.rundir import SweepDir
from jobs.schema import Run
from jobs.submit.allocations.allocation import Allocation, HeldSlurm
from jobs.submit.allocations.pbs import HeldPbs
from jobs.submit.allocations.pilot import Pilot, Turn
from jobs.submit.requeue import end_by_slurm
from jobs.submit.slurm import commands as slurm_commands
from jobs.submit.sweeps.ledger import HELD_BACK
from jobs.submit.trust.own_sweeps import state_directory


class Held(Pilot):
    """A job of the user, its nodes, and the runs that wait for them and run on them."""

    def __init__(self, sweep: SweepDir, allocation: Allocation, codes: Mapping[str, str]) -> None:
        super().__init__(sweep, allocation, codes)
        self.half_s = (self.stop_at - time.monotonic()) / 2

    def spare_s(self, runs: list[Run]) -> float:
        """Return the seconds before its end at which all runs are asked to stop."""
        return stop_before_s(runs)

    def has_time(self, turn: Turn) -> bool:
        """Return True if there is time for the whole limit of a run, or half of the time of the job is left."""
        return super().has_time(turn) or time.monotonic() + self.half_s <= self.stop_at

    def look_at_job(self) -> None:
        """Start nothing more if the scheduler ends the job: this program may outlive it."""
        super().look_at_job()
        self.ending = self.ending or self.allocation.over


def stop_before_s(runs: list[Run]) -> int:
    """Return the seconds before the end of a job at which these runs are asked to stop."""
    return max(stop_before_limit_s(run) for run in runs)


def held_allocation() -> Allocation:
    """Return the job that this process is in, by the variables of its scheduler; raise SubmitError outside a job."""
    job_id = os.environ.get("SLURM_JOB_ID")
    if job_id is not None:
        job = slurm_commands.shown_job(job_id)
        if end_by_slurm(job) is not None:
            raise SubmitError(
                f"launcher=here: this shell was in job {job_id}, which is over ({job['JobState']}). Run `salloc` again."
            )
        return HeldSlurm(job_id, hosts(job["NodeList"]))
    pbs = re.match(r"\d+", os.environ.get("PBS_JOBID", ""))
    if pbs is not None and "PBS_NODEFILE" in os.environ:
        return HeldPbs(pbs[0], Path(os.environ["PBS_NODEFILE"]))
    raise SubmitError(
        "launcher=here starts runs in the job that runs this command, and this shell is in none. Run it in `salloc`, "
        "in `qsub -I` or in a batch script, or set launcher=slurm, pilot or pbs to submit a job."
    )


def turn_in(allocation: Allocation) -> FileLock:
    """Return the lock that the program of one sweep holds in a job."""
    return FileLock(state_directory() / f"here-{allocation.scheduler}-{allocation.job_id}.lock", timeout=0)


def is_taken(allocation: Allocation) -> bool:
    """Return True if a program of launcher=here gives away the nodes of this job."""
    try:
        with turn_in(allocation):
            return False
    except Timeout:
        return True


def main(sweep_path: str, codes: Mapping[str, str]) -> None:
    """Give the nodes of this job to the runs that were submitted to it, each with its code."""
    allocation = held_allocation()
    with turn_in(allocation):
        held = Held(SweepDir(Path(sweep_path)), allocation, codes)

        def stop(_number: int, _frame: object) -> None:
            held.ending = True

        # From `submit`, or from the scheduler when it ends the job: the ranks get it, too, and save.
        signal.signal(signal.SIGTERM, stop)
        held.work()
    left = len(held.waiting)
    print(f"job {allocation.job_id}: {f'{left} runs left' if left else 'all runs have ended'}", flush=True)


if __name__ == "__main__":
    # The submitting shell blocked signals while it wrote its record; a child inherits the mask.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_BACK)
    with own_program():
        main(sys.argv[1], json.load(sys.stdin))
