"""Read the ledger of a sweep (submissions.jsonl): the launcher of each run, and the id of its job.

No scheduler is asked here; jobs.submit.states combines both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jobs.failures import end_of, latest_attempt
from jobs.rundir import RunDir, SweepDir, read_events
from jobs.schema import LauncherKind

# Stands for the job id of a run without one.
NO_JOB = "-"


@dataclass
class Submission:
    """The latest submission of a run, or of a stage."""

    run: str
    launcher: str
    job_id: str
    events_before: int
    """Lines of status.jsonl that belong to earlier submissions; clocks of different hosts are not compared."""
    host: str | None = None
    """The machine that submitted it; a process of launcher=local is known only there."""
    process_started: float | None = None
    log_id: str | None = None
    """The id in the names of its log files."""
    nodes: int | None = None
    """Nodes that it needs of its pilot; None for other launchers."""
    place: str | None = None
    """The nodes of its pilot that it runs on; None while it waits for them."""
    launches: int = 0
    """Number of starts by its local queue or pilot."""
    ended: bool = False
    cancelled: bool = False
    time: str | None = None
    waits_for: str | None = None
    """For a run in the backlog: the limit of Slurm that keeps it out of the queue."""
    after: str | None = None
    """The job that prepares its data; None without one."""

    @property
    def in_slurm(self) -> bool:
        """True if its job id is Slurm's."""
        return self.job_id != NO_JOB and is_in_slurm(self.launcher)

    @property
    def has_own_job(self) -> bool:
        """True if its Slurm job runs nothing else."""
        kind = kind_of(self.launcher)
        return kind is not None and kind.job_per_run

    @property
    def waits_in_pilot(self) -> bool:
        """True if it was given to a pilot and has no nodes of it."""
        return self.nodes is not None and self.place is None


def kind_of(launcher: str | None) -> LauncherKind | None:
    """Return the launcher of this name in a ledger; None for a run that a person started by hand."""
    return LauncherKind.__members__.get(str(launcher))


def is_in_slurm(launcher: str | None) -> bool:
    """Return True if the job ids of the launcher of this name are Slurm's."""
    kind = kind_of(launcher)
    return kind is not None and kind.in_slurm


def latest_submissions(sweep: SweepDir) -> dict[str, Submission]:
    """Return the latest submission of each run, by run name."""
    latest = submissions_on_record(sweep)
    for run in sweep.runs():
        if run.name not in latest and (by_hand := submission_by_hand(run)):
            latest[run.name] = by_hand
    return latest


def submissions_on_record(sweep: SweepDir) -> dict[str, Submission]:
    """Return the latest submission of each run in the ledger, by run name."""
    latest: dict[str, Submission] = {}
    of_job: dict[str, list[Submission]] = defaultdict(list)
    for record in read_events(sweep.submissions):
        match record["event"]:
            case "submitted":
                latest[record["run"]] = Submission(
                    record["run"],
                    record["launcher"],
                    record["job_id"],
                    record["events_before"],
                    record["host"],
                    record.get("process_started"),
                    nodes=record.get("nodes"),
                    time=record["time"],
                    after=record.get("after"),
                )
                if latest[record["run"]].has_own_job:
                    latest[record["run"]].log_id = record["job_id"]
                of_job[record["job_id"]].append(latest[record["run"]])
            case "waiting":
                latest[record["run"]] = Submission(
                    record["run"], "slurm", NO_JOB, record["events_before"], time=record["time"],
                    waits_for=record["limit"],
                )  # fmt: skip
            case "launched" | "nodes_returned" | "ended" if record["run"] not in latest:
                continue
            case "launched":
                launched = latest[record["run"]]
                launched.log_id, launched.place = record["log_id"], record.get("place")
                launched.launches += 1
            case "nodes_returned":
                latest[record["run"]].place = None
            case "ended":
                latest[record["run"]].ended = True
            case "cancelled":
                of_run = [each for each in latest.values() if each.run == record.get("run")]
                for submission in of_job[str(record["job_id"])] if "job_id" in record else of_run:
                    submission.cancelled = True
                    submission.waits_for = None
    return latest


def submission_by_hand(run: RunDir) -> Submission | None:
    """Return the submission of a run that a person started with a script: only the events of the run show it."""
    started = [event for event in read_events(run.status) if event["event"] == "started"]
    failed = any(event["event"] == "failed" for event in read_events(run.status))
    if not started and not failed:
        return None
    job_id = started[-1].get("job_id") if started else None
    return Submission(run.name, "slurm" if job_id else "hand", job_id or NO_JOB, 0, log_id=job_id)


def events_since(run: RunDir, submission: Submission) -> list[dict[str, Any]]:
    """Return the events of a run that belong to a submission."""
    return list(read_events(run.status))[submission.events_before :]


def own_end(run: RunDir, submission: Submission) -> Mapping[str, Any] | None:
    """Return the end that the latest attempt of a run recorded; None without one."""
    return end_of(latest_attempt(events_since(run, submission)))
