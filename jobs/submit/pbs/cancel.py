"""End the PBS jobs of a sweep, and nothing else: its ledger may have been written by somebody else.

The server's own record decides whether a job is the sweep's: its owner, and the path of the script in the arguments of
its qsub, which lies in the sweep. PBS shows no user the text of a script, so a sweep that is not on record as this
user's proves nothing, and its jobs are not ended.
"""

from __future__ import annotations

import contextlib
import getpass
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from jobs.errors import SubmitError
from jobs.event_fields import JOB_ID
from jobs.rundir import SweepDir
from jobs.submit.cancellation import ForeignJobsError
from jobs.submit.pbs import commands
from jobs.submit.pbs.states import dependencies, jobs_after, state_of
from jobs.submit.trust.own_sweeps import is_own


def cancel_jobs(sweep: SweepDir, job_ids: Iterable[str]) -> None:
    """Run qdel once for those of these jobs that wait or run and are the sweep's; no others end with them.

    Raises SubmitError, and cancels none, if an id is not one of PBS; ForeignJobsError, after the qdel, if PBS knows one
    as a job of something else.
    """
    asked = list(dict.fromkeys(job_ids))
    if not asked:
        return
    if odd := [job_id for job_id in asked if not (JOB_ID.fullmatch(job_id) and job_id.isdecimal())]:
        raise SubmitError(f"{sweep.path} names job {odd[0]!r}, which is not a job id of PBS. Nothing was cancelled.")
    is_recorded = False
    with contextlib.suppress(SubmitError):
        is_recorded = is_own(sweep)
    alive = {job_id: job for job_id, job in commands.jobs(asked).items() if state_of(job).is_alive}
    # In the given order: jobs that wait for others come before them, and do not start at their end.
    own = [each for each in asked if each in alive and is_recorded and is_job_of(sweep, alive[each])]
    spare_others({each: alive[each] for each in own})
    commands.delete(own)
    done = "It was not cancelled." if own else "Nothing was cancelled."
    foreign = {
        job_id: f"{sweep.path} names job {job_id}, but PBS has it as {job.get('Job_Name')} of {job.get('Job_Owner')}, "
        f"submitted with `qsub {job.get('Submit_arguments')}`, which is not a script of this sweep of yours. {done} "
        f"If you want to end it, run `qdel {job_id}`."
        for job_id, job in alive.items()
        if job_id not in own
    }
    if foreign:
        raise ForeignJobsError(foreign)


def spare_others(jobs: Mapping[str, Mapping[str, Any]]) -> None:
    """Let other jobs no longer wait for the end of these, which are about to be deleted, but for what these wait for.

    PBS deletes what waits for a job that was deleted while it waited itself, and never starts what waits for one that
    was deleted before it ran.
    """
    not_run = {job_id: job for job_id, job in jobs.items() if state_of(job).waits}
    instead: dict[str, list[str]] = {}
    for job_id, job in not_run.items():
        instead[job_id] = [each for each in dependencies(job).get("afterany", []) if each not in jobs]
    waiting = {each for job in not_run.values() for each in jobs_after(job)} - jobs.keys()
    if waiting:
        commands.wait_instead(instead, waiting)


def is_job_of(sweep: SweepDir, job: Mapping[str, Any]) -> bool:
    """Return True if a job is this user's, and was submitted with a script in the logs of the sweep."""
    owner = str(job.get("Job_Owner", "")).partition("@")[0]
    script = Path(str(job.get("Submit_arguments", "")).rpartition(" ")[2])
    in_sweep = script.parent.resolve() == sweep.logs.resolve() and script.suffix == ".pbs"
    return owner == getpass.getuser() and in_sweep
