"""The restarts of a run: by slurmscale, which records their causes, or by Slurm, whose accounting reports them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jobs.failures import restart_of
from jobs.rundir import RunDir
from jobs.submit import job_log
from jobs.submit.job_state import JobState
from jobs.submit.submissions import Submission, events_since

# Ends after which Slurm itself starts a job again.
REQUEUES = {
    "NODE_FAIL": "a node failure",
    "PREEMPTED": "a preemption",
    "REQUEUED": "a requeue by scontrol or an administrator",
}
# Ends of a job by Slurm that explain the ends of its ranks.
EXPLAINING = {*REQUEUES, "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY", "TIMEOUT"}


def is_restarted_by_slurm(run: RunDir, submission: Submission, job: JobState) -> bool:
    """Return True if Slurm ended the previous start of a job that it holds; the run has no record of the cause."""
    if not submission.has_own_job:
        return False
    event = event_before(run, submission, job)
    return event is not None and event["event"] == "started"


def restart_words(run: RunDir, submission: Submission, job: JobState) -> str:
    """Return the cause of the latest restart of a run that its scheduler holds; empty if it has not restarted."""
    event = event_before(run, submission, job)
    if event is None:
        return ""
    cause = (
        recorded_words(run, submission, event) if event["event"] == "requeued" else slurm_words(run, submission, job)
    )
    if waits_for_start(run, submission, job):
        return f"restarts after {cause}"
    starts = [each for each in events_since(run, submission) if each["event"] == "started"]
    restarts = restart_of(starts[-1], 0) if starts else 0
    return f"restart {restarts + (not ranks_met(run, submission))}, after {cause}"


def recorded_words(run: RunDir, submission: Submission, requeue: Mapping[str, Any]) -> str:
    """Return the cause of a requeue, and the rank to which it happened."""
    failures = [event for event in events_since(run, submission) if event["event"] == "failed"]
    blamed = [
        event for event in failures if event.get("cause") == requeue["cause"] and {"rank", "node"} <= event.keys()
    ]
    who = f" (rank {blamed[-1]['rank']} on {blamed[-1]['node']})" if blamed else ""
    return f"{requeue['cause']}{who}"


def slurm_words(run: RunDir, submission: Submission, job: JobState) -> str:
    """Return the cause of a restart by Slurm, as far as accounting knows it."""
    if job.last_end is None:
        return "a requeue by Slurm"
    return ended_words(run, submission, job.last_end)


def ended_words(run: RunDir, submission: Submission, end: JobState) -> str:
    """Return in words how Slurm ended a job or one of its starts, with the node that failed."""
    words = REQUEUES.get(end.state, f"Slurm reports {end.state}")
    if end.state != "NODE_FAIL":
        return words
    # Accounting has only the nodes of the job; srun names the failed one, unless it was on that node.
    node = job_log.failed_node(job_log.log_of(run, submission))
    return f"{words} on {node or f'one of {end.nodes}'}"


def event_before(run: RunDir, submission: Submission, job: JobState) -> Mapping[str, Any] | None:
    """Return the event before the present start or wait of a run: a recorded requeue, or a start that Slurm ended."""
    begins = begins_of(run, submission)
    if begins and not waits_for_start(run, submission, job) and ranks_met(run, submission):
        begins.pop()
    return begins[-1] if begins else None


def waits_for_start(run: RunDir, submission: Submission, job: JobState) -> bool:
    """Return True if a run that its scheduler holds has not begun its next start; COMPLETING comes before a restart."""
    begins = begins_of(run, submission)
    return job.waits or (job.state == "COMPLETING" and bool(begins) and begins[-1]["event"] == "requeued")


def begins_of(run: RunDir, submission: Submission) -> list[dict[str, Any]]:
    """Return the starts of the ranks and the recorded requeues of a submission, in order."""
    return [event for event in events_since(run, submission) if event["event"] in {"started", "requeued"}]


def ranks_met(run: RunDir, submission: Submission) -> bool:
    """Return True if the ranks have met since the latest start of the batch script."""
    begins = begins_of(run, submission)
    return bool(begins) and begins[-1]["event"] == "started" and not starts_again(run, submission)


def starts_again(run: RunDir, submission: Submission) -> bool:
    """Return True if Slurm has restarted the batch script since the ranks last met; only its log reports that."""
    begins = begins_of(run, submission)
    if not submission.has_own_job or not begins or begins[-1]["event"] != "started":
        return False
    return job_log.restarts(job_log.log_of(run, submission)) > restart_of(begins[-1], 0)
