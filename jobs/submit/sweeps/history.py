"""The history of a submission: its starts and restarts, by slurmscale, which records their causes, or by Slurm."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from jobs import metrics as m
from jobs.failure_causes import end_of, latest_attempt, restart_of
from jobs.rundir import RunDir
from jobs.submit.job_state import JobState
from jobs.submit.slurm import job_log
from jobs.submit.sweeps.submissions import Submission, events_since

# Ends after which Slurm itself starts a job again.
REQUEUES = {
    "NODE_FAIL": "a node failure",
    "PREEMPTED": "a preemption",
    "REQUEUED": "a requeue by scontrol or an administrator",
}
# Ends of a job by Slurm that explain the ends of its ranks.
EXPLAINING = {*REQUEUES, "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY", "TIMEOUT"}


@dataclass
class History:
    """The events of a run since a submission; they and the log of its job are read once, when first asked for."""

    run: RunDir
    submission: Submission

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        """The events of the run that belong to the submission."""
        return events_since(self.run, self.submission)

    @cached_property
    def end(self) -> Mapping[str, Any] | None:
        """The end that the latest attempt recorded; None if it recorded no end."""
        return end_of(latest_attempt(self.events))

    @property
    def log(self) -> Path:
        """The log of the batch script."""
        return job_log.log_of(self.run, self.submission)

    @cached_property
    def begins(self) -> list[dict[str, Any]]:
        """The starts of the ranks and the recorded requeues, in order."""
        return [event for event in self.events if event["event"] in {"started", "requeued"}]

    @cached_property
    def starts_again(self) -> bool:
        """True if Slurm has restarted the batch script since the ranks last met; only its log reports that."""
        if not self.submission.has_own_job or not self.begins or self.begins[-1]["event"] != "started":
            return False
        return job_log.restarts(self.log) > restart_of(self.begins[-1], 0)

    @property
    def ranks_met(self) -> bool:
        """True if the ranks have met since the latest start of the batch script."""
        return bool(self.begins) and self.begins[-1]["event"] == "started" and not self.starts_again

    def waits_for_start(self, job: JobState) -> bool:
        """Return True if the next start of this job has not begun; COMPLETING comes before a restart."""
        requeued = bool(self.begins) and self.begins[-1]["event"] == "requeued"
        return job.waits or (job.state == "COMPLETING" and requeued)

    def event_before(self, job: JobState) -> Mapping[str, Any] | None:
        """Return the event before the present start or wait: a recorded requeue, or a start that Slurm ended."""
        began = not self.waits_for_start(job) and self.ranks_met
        # If the ranks have met, the last entry is the present start itself, and the one before it is meant.
        return next(iter(self.begins[: -1 if began else None][-1:]), None)

    def is_restarted_by_slurm(self, job: JobState) -> bool:
        """Return True if Slurm ended the previous start of a job that it holds; the run has no record of the cause."""
        event = self.event_before(job) if self.submission.has_own_job else None
        # A requeue of ours is on record before it happens, so a start that follows a start was made by Slurm.
        return event is not None and event["event"] == "started"

    def restart_words(self, job: JobState) -> str:
        """Return the cause of the latest restart of a run that its scheduler holds; empty if it has not restarted."""
        event = self.event_before(job)
        if event is None:
            return ""
        if event["event"] == "requeued":
            cause = self.recorded_words(event) + self.words_behind(job)
        else:
            cause = self.slurm_words(job)
        if self.waits_for_start(job):
            return f"restarts after {cause}"
        starts = [each for each in self.begins if each["event"] == "started"]
        restarts = restart_of(starts[-1], 0) if starts else 0
        if not self.ranks_met:
            # Ranks of starts in between may never have met.
            restarts = max(restarts + 1, job_log.restarts(self.log) if self.submission.has_own_job else 0)
        return f"restart {restarts}, after {cause}"

    def recorded_words(self, requeue: Mapping[str, Any]) -> str:
        """Return the cause of a requeue, and the rank to which it happened."""
        failures = [event for event in self.events if event["event"] == "failed"]
        blamed = [
            each for each in failures if each.get("cause") == requeue["cause"] and {"rank", "node"} <= each.keys()
        ]
        who = f" (rank {blamed[-1]['rank']} on {blamed[-1]['node']})" if blamed else ""
        return f"{requeue['cause']}{who}{self.spare_words(requeue)}"

    def words_behind(self, job: JobState) -> str:
        """Return the node failure behind a requeue of a start whose ranks never met; empty for another one.

        Slurm starts a job that lost a node again, perhaps with the same node as soon as that answers, which then ends
        what it still had of the job, and with it ranks of the new start.
        """
        if not self.submission.has_own_job:
            return ""
        met = {restart_of(each, 0) for each in self.begins if each["event"] == "started"}
        ended = job_log.restarts(self.log) - (not self.waits_for_start(job))
        before = [restart for restart in met if restart < ended]
        if ended in met or not before:
            return ""
        node = job_log.node_failed_in_start(self.log, max(before))
        return "" if node is None else f", in a start after a node failure on {node}"

    def spare_words(self, requeue: Mapping[str, Any]) -> str:
        """Return the spare nodes of a restart inside the job, and when the run trained again; empty for another one."""
        if "in_job" not in requeue:
            return ""
        spares, gone = requeue.get("instead"), requeue.get("left_out")
        words = f", {', '.join(spares)} instead of {', '.join(gone)}" if spares and gone else ", in the same job"
        back = [event for event in self.events[self.events.index(dict(requeue)) :] if event["event"] == "recovered"]
        return words + (f", back after {back[0][m.RECOVERY_TIME.name]:.0f} s" if back else "")

    def slurm_words(self, job: JobState) -> str:
        """Return the cause of a restart by the scheduler, as far as accounting knows it."""
        return f"a requeue by {self.submission.scheduler}" if job.last_end is None else self.ended_words(job.last_end)

    def ended_words(self, end: JobState) -> str:
        """Describe how Slurm ended the job or one of its starts, with the node that failed."""
        words = REQUEUES.get(end.state, end.reason or f"{self.submission.scheduler} reports {end.state}")
        if end.state != "NODE_FAIL":
            return words
        # Accounting has only the nodes of the job; srun names the failed one, unless it was on that node.
        one_of = "one of " if re.search(r"[\[,]", end.nodes or "") else ""
        return f"{words} on {job_log.failed_node(self.log) or f'{one_of}{end.nodes}'}"
