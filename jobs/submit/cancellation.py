"""End the jobs and processes of a sweep, and nothing else: its ledger may have been written by somebody else.

A ledger only proposes what to end. Slurm's own record of a job, its name and the path of its script, or the command
line and the start of a process, decide whether it is the sweep's; what nobody knows is not ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path

import psutil

from jobs.errors import SubmitError
from jobs.event_fields import JOB_ID
from jobs.rundir import SweepDir
from jobs.submit import slurm_commands
from jobs.submit.submissions import in_brackets

# The arguments of Python in the command line of a local queue, before the path of its sweep.
QUEUE = ["-m", "jobs.submit.local_queue"]
# A rank may need this long to reach its next step boundary; then it is killed.
GRACE_S = 20.0


def cancel_jobs(sweep: SweepDir, job_ids: Iterable[str]) -> None:
    """Run scancel once for the jobs that are in the queue.

    Raises SubmitError, and cancels none, if an id is none of Slurm's, or Slurm knows one as a job of something else.
    """
    asked = list(dict.fromkeys(job_ids))
    if not asked:
        return
    if odd := [job_id for job_id in asked if not JOB_ID.fullmatch(job_id)]:
        raise SubmitError(f"{sweep.path} names job {odd[0]!r}, which is no job id of Slurm. Nothing was cancelled.")
    # Jobs of this user only; the id of an array has a row for each of its tasks.
    rows = [line.split("\t") for line in slurm_commands.ask("squeue", "--me", "-h", "-o", "%F\t%j\t%o").splitlines()]
    known = {row[0]: (row[1], Path(row[2])) for row in rows if len(row) == 3}
    queued = [job_id for job_id in asked if job_id.partition("_")[0] in known]
    for job_id in queued:
        name, script = known[job_id.partition("_")[0]]
        if not is_script_of(sweep, name, script):
            raise SubmitError(
                f"{sweep.path} names job {job_id}, but Slurm has {script} as the script of its job {name}, which this "
                f"sweep did not submit. Nothing was cancelled. If you want to end it, run `scancel {job_id}`."
            )
    if queued:
        slurm_commands.ask("scancel", "--quiet", *in_brackets(queued))


def is_script_of(sweep: SweepDir, name: str, script: Path) -> bool:
    """Return True for the script of a job that a command submitted, of this name, and for one given to sbatch by hand.

    A link in the sweep to a folder with other scripts does not make them the sweep's.
    """
    folder = sweep.path.resolve()
    place = script.parent.resolve()
    submitted = place == folder / sweep.logs.name and script.name == script_name(name)
    by_hand = script.name == "job.sbatch" and folder in {place, place.parent}
    return submitted or by_hand


def script_name(mark: str) -> str:
    """Return the name of the script of a job of this name; a sweep may be named a/b, so only its end is used."""
    return f"{mark.rpartition('-')[2]}.sbatch"


def queue_command(sweep: SweepDir) -> list[str]:
    """Return the command that starts the local queue of a sweep."""
    return [sys.executable, *QUEUE, str(sweep.path)]


def queue_process(job_id: str) -> psutil.Process | None:
    """Return the living process of this id if it may be a local queue of this user; None for any other process."""
    try:
        process = psutil.Process(int(job_id))
        # A process that was just started has no command line; on a loaded node that takes a third of a second.
        mine = process.uids().real == os.getuid() and process.cmdline()[1:3] in (QUEUE, [])
        return process if mine and process.status() != psutil.STATUS_ZOMBIE else None
    except (psutil.NoSuchProcess, psutil.AccessDenied, ValueError, OverflowError):
        return None


def end_queues(sweep: SweepDir, job_ids: Iterable[str]) -> None:
    """End all processes of the sessions that the local queues of this sweep lead; other processes are left alone."""
    for process in filter(None, map(queue_process, job_ids)):
        if [Path(path).resolve() for path in process.cmdline()[3:4]] == [sweep.path.resolve()]:
            end_session(process)


def end_session(leader: psutil.Process) -> None:
    """Ask all processes of the session that a queue leads to end; kill those that are left after GRACE_S."""
    members = [process for process in psutil.process_iter() if session_of(process.pid) == leader.pid]
    # The queue first, or it would start the next run.
    for process in sorted(members, key=lambda process: process != leader):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill() if process == leader else process.send_signal(signal.SIGTERM)
    _, left = psutil.wait_procs(members, timeout=GRACE_S)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def session_of(pid: int) -> int | None:
    """Return the session of a process; None if the process is gone."""
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None
