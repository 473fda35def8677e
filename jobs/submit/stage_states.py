"""The state of the stages around training: own records first, then the scheduler, as jobs.submit.states for runs."""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.errors import SuiteError
from jobs.event_fields import NO_JOB
from jobs.files import exists
from jobs.plan.rules.stages import OF_EACH_RUN, stages_of_each_run
from jobs.run_events import events_or_failure
from jobs.rundir import RunDir, SweepDir, load_to_launch, read_events, unreadable_event
from jobs.stages.record import DONE, failed, started
from jobs.submit.job_state import GONE, UNKNOWN, JobState
from jobs.submit.slurm.job_log import not_started, printed_since_start
from jobs.submit.stages import MissingStages
from jobs.submit.states import END_GRACE_S, RunState, State, ended_by_schedulers, held_by_schedulers, held_words
from jobs.submit.sweeps.submissions import Submission, entries, included, is_in_queue

# Most reasons of a state that a line shows.
MOST_DETAILS = 3


@dataclass(frozen=True)
class StageState:
    """The state of a stage, or of its task for one run."""

    stage: str
    run: str | None
    state: State
    detail: str
    job_id: str
    launcher: str
    host: str | None


@dataclass(frozen=True)
class StageOf:
    """A stage of the whole sweep, or of one run."""

    stage: str
    run: str | None

    def __str__(self) -> str:
        return f"{self.stage} {self.run or ''}"


def latest_stages(sweep: SweepDir) -> dict[StageOf, Submission]:
    """Return the latest submission of each stage, in the order of the chain."""
    latest: dict[StageOf, Submission] = {}
    of_job: dict[str, list[Submission]] = defaultdict(list)
    for entry in entries(sweep):
        if entry["event"] == "stage_submitted" and entry["stage"] in DONE:
            key = StageOf(entry["stage"], entry.get("run"))
            latest[key] = Submission(
                str(key),
                entry["launcher"],
                entry["job_id"],
                entry["events_before"],
                entry["host"],
                entry.get("process_started"),
                mark=entry.get("mark"),
            )
            of_job[entry["job_id"]].append(latest[key])
        elif entry["event"] == "removed":
            latest = {key: each for key, each in latest.items() if key.run != entry["run"]}
        elif entry["event"] == "cancelled":
            of_runs = [each for key, each in latest.items() if key.run in entry.get("runs", ())]
            of_jobs = [each for job_id in included(entry.get("job_id", ""), of_job) for each in of_job[job_id]]
            for submission in [*of_runs, *of_jobs]:
                submission.cancelled = True
    order = list(DONE)
    return dict(sorted(latest.items(), key=lambda item: order.index(item[0].stage)))


def stage_states(sweep: SweepDir) -> list[StageState]:
    """Return the state of every submitted stage, of one run if `sweep` stands for one.

    Asks the scheduler only for those that are not done.
    """
    latest = {key: each for key, each in latest_stages(sweep).items() if sweep.has(key.run)}
    known: dict[str, JobState] = {}
    ends = {key: last_event(events_of(sweep, key, each)) for key, each in latest.items()}
    unfinished = {key: each for key, each in latest.items() if ends[key] != DONE[key.stage]}
    if unfinished:
        known |= held_by_schedulers(list(unfinished.values()))
        gone = [each for key, each in unfinished.items() if str(key) not in known and ends[key] != failed(key.stage)]
        known |= ended_by_schedulers(gone)
    found = []
    for key, submission in latest.items():
        # Read again: a job that left the queue meanwhile has written its end.
        state, detail = decide(sweep, key, submission, events_of(sweep, key, submission), known.get(str(key)))
        found.append(
            StageState(key.stage, key.run, state, detail, submission.job_id, submission.launcher, submission.host)
        )
    return found


def events_of(sweep: SweepDir, key: StageOf, submission: Submission) -> list[dict[str, Any]]:
    """Return the events that a stage wrote since it was submitted."""
    own = {started(key.stage), failed(key.stage), DONE[key.stage]}
    record = record_of(sweep, key)
    try:
        events = list(read_events(record))[submission.events_before :]
    except OSError as error:
        return [unreadable_event(record, error, failed(key.stage))]
    return [event for event in events if event["event"] in own]


def record_of(sweep: SweepDir, key: StageOf) -> Path:
    """Return the file of a stage's events."""
    return sweep.stages if key.run is None else sweep.run(key.run).status


def last_event(events: list[dict[str, Any]]) -> str | None:
    """Return the name of the last event of a stage; None before its start."""
    return str(events[-1]["event"]) if events else None


def decide(
    sweep: SweepDir,
    key: StageOf,
    submission: Submission,
    events: list[dict[str, Any]],
    job: JobState | None,
) -> tuple[State, str]:
    """Return the state of a stage and its reason."""
    last = events[-1] if events else {}
    if last.get("event") == DONE[key.stage]:
        return State.finished, ""
    # In a queue a stage has a job of its own, which may be started again.
    may_restart = submission.in_queue and job is not None and job.is_alive
    if last.get("event") == failed(key.stage) and not may_restart:
        return State.cancelled if submission.cancelled else State.failed, last["error"].partition("\n")[0]
    if job is not None and job.is_suspended:
        return State.suspended, ""
    if job is not None and (job.is_alive or job.state == UNKNOWN):
        # A local queue is alive as a whole: only the stage's own record shows that its turn has come.
        waits = not last or (job.waits and submission.in_queue)
        waiting = held_words(submission, job) if job.is_held else job.reason or "starting"
        return (State.queued, waiting) if waits else (State.running, "")
    if submission.cancelled:
        return State.cancelled, ""
    if job is not None and job.state == "CANCELLED":
        # Schedulers name who cancelled a job; Slurm names nobody for a dependency that failed.
        waited = not last and not (key.run is not None and has_finished(sweep.run(key.run)))
        return State.cancelled, job.reason or ("its dependency failed" if waited else "")
    if job is not None and job.state not in {"COMPLETED", GONE}:
        unstarted = not_started(printed_since_start(sweep.output(submission.job_id)))
        return State.failed, unstarted or job.reason or f"{submission.scheduler} reports {job.state}"
    reported = "" if job is None else f" ({job.reason or f'{submission.scheduler} reports {job.state}'})"
    if submission.in_queue and time.time() - last_sign(sweep, key, submission) < END_GRACE_S:
        return State.ended, f"its job left the queue; its end is not known yet{reported}"
    return State.lost, f"its job is gone and recorded no end{reported}"


def has_finished(run: RunDir) -> bool:
    """Return True if a run has done all its steps, so that the stages that wait for it can start."""
    return any(event["event"] == "finished" for event in events_or_failure(run))


def last_sign(sweep: SweepDir, key: StageOf, submission: Submission) -> float:
    """Return the time of the last output or record of a stage, in seconds since the epoch."""
    output = sweep.output(submission.job_id)
    return max(path.stat().st_mtime for path in (record_of(sweep, key), output, sweep.submissions) if exists(path))


def stage_lines(found: Iterable[StageState]) -> list[str]:
    """Return one line per stage: the numbers of its tasks by state, with reasons."""
    by_stage: dict[str, list[StageState]] = defaultdict(list)
    for item in found:
        by_stage[item.stage].append(item)
    return [f"{stage}: {', '.join(counted_states(items))}" for stage, items in by_stage.items()]


def counted_states(items: list[StageState]) -> list[str]:
    """Return the numbers of tasks by state, with reasons; no number for a stage of a single job."""
    texts = []
    for state in State:
        here = [item for item in items if item.state is state]
        if not here:
            continue
        number = f"{len(here)} " if here[0].run is not None else ""
        details = Counter(item.detail for item in here if item.detail)
        reasons = "; ".join(text for text, _ in details.most_common(MOST_DETAILS))
        texts.append(f"{number}{state.value}{f' ({reasons})' if reasons else ''}")
    return texts


def missing_stages(sweep: SweepDir, found: list[RunState]) -> list[MissingStages]:
    """Return the runs that train or have finished, and want a stage after it that is not done and does not wait."""
    cared_for = {(item.stage, item.run) for item in stage_states(sweep) if item.state.is_open or is_over(item)}
    missing = []
    for item in found:
        trains = item.state.is_alive and is_in_queue(item.launcher) and item.job_id != NO_JOB
        if not (item.state is State.finished or trains):
            continue
        if all((name, item.run.name) in cared_for for name in OF_EACH_RUN):
            continue
        try:
            run = load_to_launch(item.run)
        except SuiteError as error:
            # This run has finished; the others must not wait for its stages.
            print(f"The stages after {item.run.name} are not submitted: {error}", file=sys.stderr)
            continue
        wanted = tuple(name for name in stages_of_each_run(run) if (name, item.run.name) not in cared_for)
        if wanted:
            missing.append(MissingStages(run, item.run, item.job_id if trains else None, wanted))
    return missing


def is_over(item: StageState) -> bool:
    """Return True if a stage has finished."""
    return item.state is State.finished
