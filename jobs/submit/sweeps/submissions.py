"""Read the ledger of a sweep (submissions.jsonl): the launcher of each run, and the id of its job.

No scheduler is asked here; jobs.submit.states combines both.
"""

from __future__ import annotations

import os
import shlex
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jobs.errors import SubmitError
from jobs.event_fields import JOB_TASKS, NO_JOB, checked_event
from jobs.failure_causes import end_of, latest_attempt
from jobs.plan.mesh import spans
from jobs.run_events import events_or_failure
from jobs.rundir import RunDir, SweepDir, read_events
from jobs.schema import LauncherKind


@dataclass
class Intent:
    """A job that a shell is about to submit, with the records of its runs or stages but their job ids."""

    mark: str
    """The name of the job, by which its scheduler finds it."""
    time: str
    launcher: str
    host: str
    tasks: list[dict[str, Any]]
    array: bool
    """True if each task is a task of a job array, in this order; else they share one job."""
    job_id: str | None = None
    """The job, of an array the array's id; None until it is on record."""
    recorded: int = 0
    """Number of tasks on record as submitted."""
    cancelled: bool = False
    clusters: str | None = None
    """SLURM_CLUSTERS of the shell that submitted; None for the default cluster."""

    @property
    def runs(self) -> set[str]:
        """The names of its runs."""
        return {task["run"] for task in self.tasks if task["event"] == "submitted"}

    @property
    def common(self) -> dict[str, Any]:
        """The fields that its records share."""
        return {"time": self.time, "mark": self.mark, "launcher": self.launcher, "host": self.host}

    def ids(self, job_id: str) -> list[str]:
        """Return the job id of each task."""
        return [f"{job_id}_{number}" if self.array else job_id for number in range(len(self.tasks))]

    def records(self, job_ids: Iterable[str]) -> list[dict[str, Any]]:
        """Return the ledger's records of its tasks with these job ids."""
        return [self.common | task | {"job_id": job_id} for task, job_id in zip(self.tasks, job_ids, strict=True)]


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
    """The job that prepares its data; None if no job does."""
    mark: str | None = None
    """The name of its job; None for a job that was submitted by hand."""
    failures_before: int = 0
    """The highest number of a failure that belongs to earlier submissions; 0 in ledgers of versions without numbers."""

    held_of: str | None = None
    """The scheduler of the job in which launcher=here runs it."""
    process: int | None = None
    """The program in that job that starts it."""
    key: str | None = None
    """Its name among the submissions of several sweeps that are asked about at once."""

    @property
    def asked_as(self) -> str:
        """The key of its state in the answer of a launcher."""
        return self.key or self.run

    @property
    def in_queue(self) -> bool:
        """True if its job id is a scheduler's."""
        return self.job_id != NO_JOB and is_in_queue(self.launcher)

    @property
    def scheduler(self) -> str:
        """The name of its scheduler in sentences for the user."""
        kind = kind_of(self.launcher)
        return self.held_of or (kind and kind.scheduler) or "Slurm"

    @property
    def shared_job(self) -> str:
        """The job that it shares with other runs, in sentences for the user."""
        kind = kind_of(self.launcher)
        return f"{'pilot' if kind is not None and kind.one_job else 'job'} {self.job_id}"

    def is_its_job(self, described: str) -> bool:
        """Return True for the `name|script` of its job: schedulers use ids again, and users rename jobs."""
        if self.mark is None or not described:
            return True
        return described.startswith(f"{self.mark}|") or described.endswith(f"/{script_name(self.mark, self.launcher)}")

    @property
    def is_unconfirmed(self) -> bool:
        """True if its submission was interrupted, and the scheduler has not shown its job."""
        in_backlog = self.waits_for is not None or self.cancelled
        return self.job_id == NO_JOB and not in_backlog and is_in_queue(self.launcher)

    @property
    def has_own_job(self) -> bool:
        """True if its job runs nothing else."""
        kind = kind_of(self.launcher)
        return self.job_id != NO_JOB and kind is not None and kind.job_per_run

    @property
    def waits_in_pilot(self) -> bool:
        """True if it was given to a pilot and has no nodes of it."""
        return self.nodes is not None and self.place is None


def script_name(mark: str, launcher: str) -> str:
    """Return the name of the script of a job of this name; a sweep may be named a/b, so only its end is used."""
    kind = kind_of(launcher)
    ending = "pbs" if kind is not None and kind.scheduler == "PBS" else "sbatch"
    return f"{mark.rpartition('-')[2]}.{ending}"


def kind_of(launcher: str | None) -> LauncherKind | None:
    """Return the launcher of this name in a ledger; None for a run that a person started by hand."""
    return LauncherKind.__members__.get(str(launcher))


def is_in_queue(launcher: str | None) -> bool:
    """Return True if the job ids of the launcher of this name are a scheduler's."""
    kind = kind_of(launcher)
    return kind is not None and kind.in_queue


def tasks_of(job_id: str) -> list[str]:
    """Return the job ids in Slurm's notation: 12, 12_3, or 12_[0,2-5%4] for several tasks."""
    array, ranges = ranges_of(job_id)
    return [f"{array}_{task}" for each in ranges for task in each] or [job_id]


def ranges_of(job_id: str) -> tuple[str, list[range]]:
    """Return the array of several tasks in Slurm's notation, and their numbers; no numbers for another id."""
    match = JOB_TASKS.fullmatch(job_id)
    if match is None:
        return job_id, []
    ends = [part.partition("-") for part in match[2].split(",")]
    return match[1], [range(int(first), int(last or first) + 1) for first, _, last in ends]


def included(job_id: str, known: Collection[str]) -> list[str]:
    """Return those of the known job ids that an id in Slurm's notation stands for; it may name billions of others."""
    array, ranges = ranges_of(job_id)
    if not ranges:
        return [job_id] if job_id in known else []
    # Known ids are looked up among the ranges: to expand the ranges of a received ledger could take for ever.
    ranges.sort(key=lambda each: each.start)
    found = []
    for each in known:
        own, _, task = each.partition("_")
        place = bisect_right(ranges, int(task), key=lambda each: each.start) if own == array and task else 0
        if place and int(task) in ranges[place - 1]:
            found.append(each)
    return found


def in_brackets(job_ids: Iterable[str]) -> list[str]:
    """Return job ids in Slurm's short notation, one of each array: 12_[0-3,7], 13."""
    tasks: dict[str, list[int]] = {}
    for job_id in job_ids:
        array, _, task = job_id.partition("_")
        tasks.setdefault(array, []).extend([int(task)] if task else [])
    found = []
    for array, numbers in tasks.items():
        short = ",".join(spans(sorted(numbers), to="-"))
        found.append(f"{array}_[{short}]" if len(numbers) > 1 else f"{array}_{short}" if numbers else array)
    return found


def intents(sweep: SweepDir) -> list[Intent]:
    """Return the intents of the ledger that are neither void nor completely on record."""
    found: dict[str, Intent] = {}
    for record in read_events(sweep.submissions):
        intent = found.get(record.get("mark", ""))
        match record["event"]:
            case "intended":
                found[record["mark"]] = intent_of(record)
            case "void":
                found.pop(record["mark"], None)
            case "submitted" | "stage_submitted" if intent is not None:
                intent.recorded += 1
                intent.job_id = record["job_id"].partition("_")[0]
            case "cancelled" if intent is not None:
                intent.cancelled = True
    return [intent for intent in found.values() if intent.recorded < len(intent.tasks)]


def intent_of(record: Mapping[str, Any]) -> Intent:
    """Return the intent of a record of the ledger, with those of its tasks that become events."""
    intent = Intent(
        record["mark"], record["time"], record["launcher"], record["host"], [], record["array"],
        clusters=record.get("clusters"),
    )  # fmt: skip
    common = intent.common | {"job_id": NO_JOB}
    # A ledger may come from somebody else: tasks that are not events of ours are left out.
    events = [checked_event(common | task) for task in record["tasks"] if isinstance(task, dict)]
    intent.tasks = [{key: event[key] for key in event.keys() - common.keys()} for event in events if event is not None]
    return intent


def unannounced(sweep: SweepDir) -> dict[str, str]:
    """Return the jobs that adopted themselves and that no command has announced, by their mark."""
    found: dict[str, str] = {}
    for record in read_events(sweep.submissions):
        if record["event"] == "adopted" and record.get("announced") is False:
            found[record["mark"]] = record["job_id"]
        elif record["event"] == "announced":
            found.pop(record["mark"], None)
    return found


def is_own_job(sweep: SweepDir) -> bool:
    """Return True in the batch script of a job of the sweep."""
    marks = {event["mark"] for event in read_events(sweep.submissions) if event["event"] == "intended"}
    return own_mark() in marks


def own_mark() -> str | None:
    """Return the name of the job that runs this process; None outside a job."""
    return os.environ.get("SLURM_JOB_NAME") or os.environ.get("PBS_JOBNAME")


def shell_clusters(sweep: SweepDir) -> str | None:
    """Return the clusters that this shell's Slurm commands ask: SLURM_CLUSTERS; None for the default one.

    Raises SubmitError if the sweep's latest jobs were submitted elsewhere: here they would seem to be lost. A job of
    the sweep runs where its Slurm commands ask by default, and returns what its sweep has.
    """
    here = os.environ.get("SLURM_CLUSTERS")
    submitted = [event.get("clusters") for event in read_events(sweep.submissions) if event["event"] == "intended"]
    # Inside a job Slurm's commands ask its own cluster, whatever the variable was where it was submitted.
    if not submitted or submitted[-1] == here or is_own_job(sweep):
        return submitted[-1] if submitted else here
    remedy = f"export SLURM_CLUSTERS={shlex.quote(submitted[-1])}" if submitted[-1] else "unset SLURM_CLUSTERS"
    raise SubmitError(
        f"The jobs of {sweep.path} were submitted with SLURM_CLUSTERS={submitted[-1] or ''}, and this shell has "
        f"SLURM_CLUSTERS={here or ''}: it would ask another cluster. Run `{remedy}`."
    )


def entries(sweep: SweepDir) -> Iterator[dict[str, Any]]:
    """Yield the events of the ledger, an intent that is not void as submissions without a job."""
    events = list(read_events(sweep.submissions))
    void = {event["mark"] for event in events if event["event"] == "void"}
    for event in events:
        if event["event"] == "intended" and event["mark"] not in void:
            intent = intent_of(event)
            # Its runs count as submitted, without a job, so that nobody submits them again while their job may appear.
            yield from intent.records([NO_JOB] * len(intent.tasks))
        else:
            yield event


def latest_submissions(sweep: SweepDir) -> dict[str, Submission]:
    """Return the latest submission of each run, by run name."""
    latest = submissions_on_record(sweep)
    for run in sweep.runs():
        if run.name not in latest and (by_hand := submission_by_hand(run)):
            latest[run.name] = by_hand
    return latest


def submissions_on_record(sweep: SweepDir) -> dict[str, Submission]:
    """Return the latest submission of each run in the ledger that is meant, by run name."""
    latest: dict[str, Submission] = {}
    of_job: dict[str, list[Submission]] = defaultdict(list)
    for record in entries(sweep):
        match record["event"]:
            case "submitted":
                latest[record["run"]] = Submission(
                    record["run"],
                    record["launcher"],
                    record["job_id"],
                    record["events_before"],
                    record["host"],
                    record.get("process_started"),
                    nodes=record["nodes"] if isinstance(record.get("nodes"), int) else None,
                    time=record["time"],
                    after=record.get("after"),
                    mark=record.get("mark"),
                    failures_before=record.get("failures_before", 0),
                    held_of=record.get("scheduler"),
                    process=record.get("process"),
                )
                if latest[record["run"]].has_own_job:
                    latest[record["run"]].log_id = record["job_id"]
                of_job[record["job_id"]].append(latest[record["run"]])
            case "waiting":
                latest[record["run"]] = Submission(
                    record["run"], "slurm", NO_JOB, record["events_before"], time=record["time"],
                    waits_for=record["limit"], failures_before=record.get("failures_before", 0),
                )  # fmt: skip
            # The run was removed since, or the ledger is not whole.
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
            case "removed":
                latest.pop(record["run"], None)
            case "cancelled":
                runs = {record.get("run"), *record.get("runs", ())}
                of_runs = [each for each in latest.values() if each.run in runs]
                of_jobs = [each for job_id in included(record.get("job_id", ""), of_job) for each in of_job[job_id]]
                for submission in [*of_runs, *of_jobs]:
                    submission.cancelled = True
                    submission.waits_for = None
    return {name: each for name, each in latest.items() if sweep.has(name)}


def submission_by_hand(run: RunDir) -> Submission | None:
    """Return the submission of a run that a person started with a script: only the events of the run show it."""
    events = events_or_failure(run)
    started = [event for event in events if event["event"] == "started"]
    failed = any(event["event"] == "failed" for event in events)
    if not started and not failed:
        return None
    job_id = started[-1].get("job_id") if started else None
    return Submission(run.name, "slurm" if job_id else "hand", job_id or NO_JOB, 0, log_id=job_id)


def events_since(run: RunDir, submission: Submission) -> list[dict[str, Any]]:
    """Return the events of a run that belong to a submission."""
    return events_or_failure(run, submission.events_before, submission.failures_before)


def own_end(run: RunDir, submission: Submission) -> Mapping[str, Any] | None:
    """Return the end that the latest attempt of a run recorded; None if it recorded no end."""
    return end_of(latest_attempt(events_since(run, submission)))
