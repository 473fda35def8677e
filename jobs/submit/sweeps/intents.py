"""Submissions that no interruption loses: the ledger names a job before sbatch or qsub is called.

    intended (mark, tasks)  --sbatch --job-name=MARK-->  submitted, a record per task

If the shell dies in between, the next command on the sweep looks for the job by its name: it is adopted if the
scheduler has it, and void once it can no longer appear. Until then its runs are unconfirmed and are not submitted
again.
"""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from typing import Any

from jobs.errors import SubmitError
from jobs.output import write_file
from jobs.run_events import seen
from jobs.rundir import RunDir, SweepDir, append_record, event_record, now, read_events
from jobs.submit import scheduler_call
from jobs.submit.queues import queue_of, scheduler_of
from jobs.submit.sweeps.ledger import record_cancelled, uninterrupted
from jobs.submit.sweeps.submissions import (
    Intent,
    intents,
    is_own_job,
    own_mark,
    script_name,
    shell_clusters,
    unannounced,
)

# sbatch and qsub end after COMMAND_TIMEOUT_S, also if their caller was killed; a busy server may show the job later.
VOID_AFTER_S = 3 * scheduler_call.COMMAND_TIMEOUT_S
# Slurm's munge accepts five minutes between the clocks of a host and of the server, so ten between two hosts.
CLOCKS_APART_S = 600.0


def run_task(directory: RunDir, **more: float | str) -> dict[str, Any]:
    """Return the ledger's record of a run, without job and launcher."""
    return {"event": "submitted", "run": directory.name, **seen(directory), **more}


def stage_task(sweep: SweepDir, stage: str, directory: RunDir | None, **more: float) -> dict[str, Any]:
    """Return the ledger's record of a stage, of a run or of the whole sweep, without job and launcher."""
    whose = {} if directory is None else {"run": directory.name}
    before = sum(1 for _ in read_events(sweep.stages if directory is None else directory.status))
    return {"event": "stage_submitted", "stage": stage, **whose, "events_before": before, **more}


def submit_marked(
    sweep: SweepDir, launcher: str, name: str, tasks: list[dict[str, Any]], script: Callable[[str], str], *, array: bool
) -> list[str]:
    """Submit the batch script of these tasks under a new job name; return their job ids, all of which are on record.

    Signals that end this process take effect afterwards. Raises SubmitError if the scheduler refuses the script,
    NoAnswerError if its job may be in the queue: then it stays an intent, which `settle` looks up.
    """
    # A sweep's name may be used twice in a queue, and the job is later found by its name alone.
    intent = Intent(f"{name}-{secrets.token_hex(4)}", now(), launcher, socket.gethostname(), tasks, array,
                    clusters=shell_clusters(sweep))  # fmt: skip
    file = sweep.logs / script_name(intent.mark, launcher)
    write_file(file, script(intent.mark))
    with uninterrupted():
        # The script lies in logs/ by now, so that whoever adopts the job can compare it with the one that Slurm keeps.
        append_record(sweep.submissions, {"event": "intended", **asdict(intent)})
        try:
            job_id = queue_of(launcher).submit(file)
        except scheduler_call.NoAnswerError:
            # The job may exist: it stays an intent.
            raise
        except SubmitError:
            append_record(sweep.submissions, event_record("void", mark=intent.mark))
            raise
        return record_submitted(sweep, intent, job_id)


def record_submitted(sweep: SweepDir, intent: Intent, job_id: str) -> list[str]:
    """Append the missing tasks of an intent to the ledger; return the job ids of all. Cancels the job if it cannot."""
    try:
        append_record(sweep.submissions, *intent.records(intent.ids(job_id))[intent.recorded :])
    except OSError:
        queue_of(intent.launcher).cancel(sweep, [job_id])
        raise
    return intent.ids(job_id)


def settle(sweep: SweepDir) -> list[str]:
    """Adopt or give up the jobs of interrupted submissions; the caller holds the lock. Return sentences for the user.

    While a scheduler does not answer, nothing is assumed about its jobs.
    """
    adopted = {} if is_own_job(sweep) else unannounced(sweep)
    if adopted:
        append_record(sweep.submissions, *(event_record("announced", mark=mark) for mark in adopted))
    lines = [adopted_line(job_id) for job_id in adopted.values()]
    unsettled = intents(sweep)
    if not unsettled:
        return lines
    for scheduler in sorted({scheduler_of(intent.launcher) for intent in unsettled}):
        lines += settle_in(sweep, [intent for intent in unsettled if scheduler_of(intent.launcher) == scheduler])
    return lines


def settle_in(sweep: SweepDir, unsettled: list[Intent]) -> list[str]:
    """Adopt or give up the jobs of interrupted submissions to one scheduler; return sentences for the user."""
    lines = []
    times = {intent.mark: datetime.fromisoformat(intent.time) for intent in unsettled}
    try:
        jobs = queue_of(unsettled[0].launcher).named(set(times), min(times.values()))
    except SubmitError:
        # No answer is not the answer that there is no job.
        return []
    for intent in unsettled:
        job_id = intent.job_id or jobs.get(intent.mark)
        if job_id is not None:
            lines.append(adopt(sweep, intent, job_id))
        elif age_s(intent) > VOID_AFTER_S:
            append_record(sweep.submissions, event_record("void", mark=intent.mark))
            scheduler = scheduler_of(intent.launcher)
            lines.append(f"{intent.mark} never reached {scheduler}: its submission was interrupted")
    return lines


def age_s(intent: Intent) -> float:
    """Return the least age of an intent in seconds: the clock of another host, which wrote its time, may be behind."""
    apart_s = 0.0 if intent.host == socket.gethostname() else CLOCKS_APART_S
    return time.time() - datetime.fromisoformat(intent.time).timestamp() - apart_s


def adopt(sweep: SweepDir, intent: Intent, job_id: str) -> str:
    """Record the job of an interrupted submission; end it if its runs were cancelled meanwhile.

    Return a sentence for the user; where a job looks, the next `settle` of a shell returns it.
    """
    # Before it is on record: if this shell dies here, the intent is left, and the next `settle` ends the job.
    if intent.cancelled:
        queue_of(intent.launcher).cancel(sweep, [job_id])
    job_ids = record_submitted(sweep, intent, job_id)
    append_record(
        sweep.submissions, event_record("adopted", mark=intent.mark, job_id=job_id, announced=not is_own_job(sweep))
    )
    if intent.cancelled:
        record_cancelled(sweep, job_ids)
    return adopted_line(job_id)


def adopted_line(job_id: str) -> str:
    """Return the sentence for the user about an adopted job."""
    return f"adopted job {job_id}, whose submission was interrupted"


def adopt_own(sweep: SweepDir, job_id: str) -> None:
    """Adopt the job that runs this process, if its record is missing; the caller holds the lock."""
    for intent in intents(sweep):
        if intent.mark == own_mark():
            adopt(sweep, intent, job_id.partition("_")[0])
