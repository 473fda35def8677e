"""End the jobs and processes of a sweep, and nothing else: its ledger may have been written by somebody else.

A ledger only proposes what to end. Slurm's own record of a job, the path or the text of its script, or the command line
and the start of a process, decide whether it is the sweep's; what nobody knows is not ended.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import stat
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import psutil

from jobs.errors import SubmitError
from jobs.event_fields import JOB_ID
from jobs.files import is_directory, read_text
from jobs.rundir import NOT_STARTED, SweepDir
from jobs.submit.slurm import call as slurm_call
from jobs.submit.slurm import commands as slurm_commands
from jobs.submit.slurm.commands import QueuedJob
from jobs.submit.sweeps.submissions import in_brackets
from jobs.submit.trust.own_sweeps import is_own

# The arguments of Python in the command line of a local queue, before the path of its sweep.
QUEUE = ["-m", "jobs.submit.local_queue"]
# A rank may need this long to reach its next step boundary; then it is killed.
GRACE_S = 20.0


class ForeignJobsError(SubmitError):
    """The ledger names jobs that Slurm knows as jobs of something else; all others were cancelled."""

    def __init__(self, sentences: Mapping[str, str]) -> None:
        super().__init__(" ".join(sentences.values()))
        self.sentences = sentences
        """A sentence on each job, by its id."""


def cancel_jobs(sweep: SweepDir, job_ids: Iterable[str]) -> None:
    """Run scancel once for those of these jobs that are in the queue and the sweep's.

    Raises SubmitError, and cancels none, if an id is not one of Slurm's; ForeignJobsError, after the scancel, if Slurm
    knows one as a job of something else.
    """
    asked = list(dict.fromkeys(job_ids))
    if not asked:
        return
    if odd := [job_id for job_id in asked if not JOB_ID.fullmatch(job_id)]:
        raise SubmitError(f"{sweep.path} names job {odd[0]!r}, which is not a job id of Slurm. Nothing was cancelled.")
    is_recorded = False
    with contextlib.suppress(SubmitError):
        is_recorded = is_own(sweep)
    own: list[str] = []
    foreign: dict[str, tuple[str, str]] = {}
    for job in slurm_commands.queued_jobs(asked):
        # The id of an array stands for all its tasks; a task may be asked for by its number in its environment.
        named = next((each for each in (job.job_id, job.own_id, job.array) if each in asked), None)
        if named is not None and is_job_of(sweep, job, is_recorded=is_recorded):
            own.append(job.job_id)
        elif named is not None:
            sentence = (
                f"{sweep.path} names job {job.job_id}, but Slurm has {job.command} as the script of its job "
                f"{job.name}, which this sweep did not submit."
            )
            foreign[named] = sentence, f"If you want to end it, run `scancel {job.job_id}`."
    if own:
        slurm_call.ask("scancel", "--quiet", *in_brackets(own))
    if foreign:
        done = "It was not cancelled." if own else "Nothing was cancelled."
        raise ForeignJobsError(
            {job_id: f"{sentence} {done} {remedy}" for job_id, (sentence, remedy) in foreign.items()}
        )


def is_job_of(sweep: SweepDir, job: QueuedJob, *, is_recorded: bool) -> bool:
    """Return True if Slurm's record of a job proves that it is the sweep's, whatever its present name.

    A script in the sweep is enough if the sweep is on record as this user's. Any other one may have been put where an
    earlier sweep was: it must have the very script that Slurm keeps. A link in it does not make other scripts its own.
    """
    folder = sweep.path.resolve()
    # Until Slurm 22.05 the arguments of a script follow its path.
    script = Path(re.sub(r"(\.sbatch) .*", r"\1", job.command, flags=re.DOTALL))
    place = script.parent.resolve()
    if script.name == "train.sbatch":
        # It makes runs/SWEEP/job-ID in the directory in which the job runs; anybody can guess the name.
        in_runs = Path(job.work_dir).resolve() / "runs" == folder.parent
        return is_recorded and in_runs and is_directory(sweep.run(f"job-{job.own_id}").path)
    if place == folder / sweep.logs.name or (script.name == "job.sbatch" and folder in {place, place.parent}):
        return is_recorded or is_script_of(place / script.name, job)
    # The sweep was moved since it submitted the job.
    moved = not script.exists() and not sweep.logs.is_symlink()
    return moved and is_script_of(sweep.logs / script.name, job)


def is_script_of(file: Path, job: QueuedJob) -> bool:
    """Return True for a script of slurmscale that has the text of the script that Slurm keeps of a job.

    The texts of other scripts may be known to others.
    """
    if not is_regular(file):
        return False
    with contextlib.suppress(SubmitError, OSError):
        text = read_text(file)
        return NOT_STARTED in text and text == slurm_commands.stored_script(job.job_id)
    return False


def is_regular(file: Path) -> bool:
    """Return True for a regular file that is not a link."""
    with contextlib.suppress(OSError):
        return stat.S_ISREG(file.lstat().st_mode)
    return False


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
    for leader in filter(None, map(queue_process, job_ids)):
        if is_queue_of(leader, sweep):
            members = [process for process in psutil.process_iter() if session_of(process.pid) == leader.pid]
            # The queue first, or it would start the next run.
            with contextlib.suppress(psutil.NoSuchProcess):
                leader.kill()
            ask_to_end(members)


def is_queue_of(process: psutil.Process, sweep: SweepDir) -> bool:
    """Return True if a queue is that of a sweep; the path in its command line is relative to where it was started."""
    try:
        return [Path(process.cwd(), path).resolve() for path in process.cmdline()[3:4]] == [sweep.path.resolve()]
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


def turn_process(job_id: str, log_id: str) -> psutil.Process | None:
    """Return the process, of this id, that has started the ranks of a run for a living queue; None if it has ended."""
    with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied, ValueError, OverflowError):
        queue, process = queue_process(job_id), psutil.Process(int(log_id))
        if queue is not None and process.ppid() == queue.pid and process.status() != psutil.STATUS_ZOMBIE:
            return process
    return None


def end_turn(sweep: SweepDir, job_id: str, log_id: str) -> None:
    """End the processes of the run that a local queue of this sweep has started; the queue goes on."""
    queue, process = queue_process(job_id), turn_process(job_id, log_id)
    if queue is not None and process is not None and is_queue_of(queue, sweep):
        ask_to_end([*process.children(recursive=True), process])


def ask_to_end(members: list[psutil.Process]) -> None:
    """Ask processes to end; kill those that are left after GRACE_S."""
    for process in members:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGTERM)
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
