"""The state of every run of a sweep, from its directory and one call of its scheduler.

The records of a run (its events) come first; the ledger (submissions.jsonl) names the launcher and the job; the
scheduler reports whether a run without a recorded end is alive. No state is kept elsewhere, so every shell sees the
same.
"""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from typing import Any, TypeVar

from jobs.failure_causes import FailureCause, recorded_cause
from jobs.files import YAML_BYTES, UnsuitableFileError, exists, is_directory, read_text, reason
from jobs.rundir import RunDir, SweepDir
from jobs.submit.job_state import GONE, UNKNOWN, JobState
from jobs.submit.launchers import by_launcher
from jobs.submit.slurm.job_log import not_started, printed_since_start
from jobs.submit.sweeps.history import EXPLAINING, History
from jobs.submit.sweeps.submissions import Submission, latest_submissions

# A shared file system and accounting may need this long to show the end of a job.
END_GRACE_S = 60.0
# Where accounting still has a job that the controller does not know, one of them is wrong.
ACCOUNTING_GRACE_S = 900.0
# Among the first and last keys of the configuration of every release.
CONFIG_KEYS = {"sweep", "name", "launcher"}

T = TypeVar("T")
Key = tuple[int, str]
"""The place of a sweep among several, and the name of a run of it."""


class State(Enum):
    """The state of a run or stage."""

    prepared = "prepared"
    """Prepared and never submitted, or never started by its pilot."""
    waiting = "waiting"
    """In the backlog of the sweep, until Slurm accepts more jobs."""
    queued = "queued"
    """Submitted; its ranks have not started together yet."""
    held = "held"
    """In the queue, until somebody releases it."""
    running = "running"
    suspended = "suspended"
    """Its processes are stopped by the scheduler, as in gang scheduling, and go on later."""
    finished = "finished"
    stopped = "stopped"
    """Ended at a step boundary because of a signal; can be resumed."""
    failed = "failed"
    cancelled = "cancelled"
    lost = "lost"
    """Submitted, no longer alive, and without a recorded end."""
    ended = "ended"
    """No longer alive; its end may still become known."""

    @property
    def is_alive(self) -> bool:
        """True if the scheduler holds it."""
        return self in {State.queued, State.held, State.running, State.suspended}

    @property
    def is_open(self) -> bool:
        """True if it may change without the user."""
        return self.is_alive or self in {State.waiting, State.ended}


@dataclass(frozen=True)
class RunState:
    """The state of a run, and details for the user."""

    run: RunDir
    state: State
    detail: str = ""
    job_id: str | None = None
    launcher: str | None = None
    host: str | None = None
    expected_start: str | None = None
    """Expected start of a waiting job, in Slurm's local time."""
    doubt: str = ""
    """The reason why a run may continue although it recorded its end; empty if it may not."""


def states(sweep: SweepDir) -> list[RunState]:
    """Return the state of every run of the sweep, sorted by name."""
    return states_of([sweep])[0]


def states_of(sweeps: Sequence[SweepDir]) -> list[list[RunState]]:
    """Return the states of the runs of each sweep, sorted by name; each scheduler is asked once for all of them."""
    latest = [latest_submissions(sweep) for sweep in sweeps]
    # Runs of two sweeps may have one name.
    histories = {
        (place, name): History(sweep.run(name), submission)
        for place, sweep in enumerate(sweeps)
        for name, submission in latest[place].items()
    }
    # A finished run is final, so no scheduler is asked about it. For the others the order is queue, records,
    # accounting: what ends between two looks is found by the next one. Records first would show a job that ends
    # meanwhile as lost.
    unfinished = {key: each for key, each in histories.items() if not is_finished(each.end)}
    known = asked(held_by_schedulers, unfinished)
    # Read again: a job that left the queue meanwhile has written its end, or a shell that it cancels it.
    again = {place: latest_submissions(sweeps[place]) for place in {place for place, _ in unfinished}}
    histories |= {
        key: History(each.run, of_same_job(each.submission, again[key[0]])) for key, each in unfinished.items()
    }
    known = with_accounting({key: histories[key] for key in unfinished}, known)
    return [
        states_in(sweep, latest[place], of_place(histories, place), of_place(known, place))
        for place, sweep in enumerate(sweeps)
    ]


def asked(
    ask: Callable[[list[Submission]], dict[str, JobState]], histories: Mapping[Key, History]
) -> dict[Key, JobState]:
    """Ask schedulers about the submissions of several sweeps; return the answers by their keys."""
    keys = {str(key): key for key in histories}
    answers = ask([replace(histories[key].submission, key=label) for label, key in keys.items()])
    return {keys[label]: job for label, job in answers.items()}


def of_place(found: Mapping[Key, T], place: int) -> dict[str, T]:
    """Return what belongs to the runs of one sweep, by their names."""
    return {name: each for (at, name), each in found.items() if at == place}


def states_in(
    sweep: SweepDir, latest: Mapping[str, Submission], histories: Mapping[str, History], known: Mapping[str, JobState]
) -> list[RunState]:
    """Return the state of every run of a sweep, by what its records and the schedulers have."""
    found = []
    for run in runs_on_record(sweep, latest, known):
        if run.name not in latest:
            found.append(RunState(run, State.prepared))
            continue
        submission = histories[run.name].submission
        job = known.get(run.name)
        state, detail = decide(histories[run.name], job)
        if not is_directory(run.path):
            detail = "; ".join(filter(None, [detail, "its directory was moved or removed"]))
        elif state is not State.finished and not state.is_open:
            detail = "; ".join(filter(None, [detail, config_damage(run)]))
        found.append(
            RunState(
                run,
                state,
                detail,
                submission.job_id,
                submission.launcher,
                submission.host,
                job.expected_start if job and state is State.queued else None,
                doubt=doubt_of(state, job),
            )
        )
    return found


def doubt_of(state: State, job: JobState | None) -> str:
    """Return why a run that recorded its end may be restarted by its job: nobody can be asked. Empty otherwise."""
    if job is None or job.state != UNKNOWN or state is State.finished:
        return ""
    return job.reason or "its scheduler does not answer"


def of_same_job(submission: Submission, again: Mapping[str, Submission]) -> Submission:
    """Return what is on record by now of a submission; itself if its run was submitted again as another job."""
    now = again.get(submission.run, submission)
    return now if (now.job_id, now.time) == (submission.job_id, submission.time) else submission


def runs_on_record(sweep: SweepDir, latest: Mapping[str, Submission], known: Mapping[str, JobState]) -> list[RunDir]:
    """Return the runs of a sweep, by name: also those that lost their config.yaml.

    Runs whose directory was moved or removed are among them only while their job waits or runs.
    """
    submitted = [sweep.run(name) for name in latest]
    return sorted(
        {*sweep.runs(), *(run for run in submitted if is_directory(run.path) or is_alive(known.get(run.name)))},
        key=lambda run: run.path,
    )


def is_alive(job: JobState | None) -> bool:
    """Return True if a scheduler holds a job."""
    return job is not None and job.is_alive


def config_damage(run: RunDir) -> str:
    """Describe the damage of a configuration without which a run cannot be resumed; only its keys are read."""
    try:
        lines = read_text(run.config, YAML_BYTES).splitlines()
    except FileNotFoundError:
        return f"its {run.config.name} is missing: restore it to resume the run"
    except (UnsuitableFileError, PermissionError) as error:
        return f"its {run.config.name} cannot be read: {reason(error)}"
    keys = {line.partition(":")[0] for line in lines}
    return "" if keys >= CONFIG_KEYS else f"its {run.config.name} is damaged: restore it to resume the run"


def with_accounting(histories: Mapping[Key, History], known: Mapping[Key, JobState]) -> dict[Key, JobState]:
    """Add from accounting the ends of jobs, and of earlier starts, that the records of the runs do not explain."""
    unexplained = {
        key: each
        for key, each in histories.items()
        # sacct is the slowest of the calls and may be missing: it is asked only about what queue and records do not
        # explain.
        if (each.is_restarted_by_slurm(known[key]) if key in known else not is_explained(each.end))
    }
    held = {str(key): job for key, job in known.items()}
    found = dict(known)
    for key, job in asked(lambda submissions: ended_by_schedulers(submissions, held), unexplained).items():
        found[key] = replace(known[key], last_end=job if job.state != GONE else job.last_end) if key in known else job
    return found


def is_finished(end: Mapping[str, Any] | None) -> bool:
    """Return True for the end of a run that has done all its steps."""
    return end is not None and end["event"] == "finished"


def is_explained(end: Mapping[str, Any] | None) -> bool:
    """Return True if a recorded end names its cause; a signal, a lost peer and a killed rank have theirs elsewhere."""
    cause = None if end is None else recorded_cause(end)
    return cause is not None and not cause.is_symptom


def decide(history: History, job: JobState | None) -> tuple[State, str]:
    """Return the state of a submitted run and its reason.

    In this order: a recorded `finished` is final; a job that its scheduler holds is alive; a recorded end counts,
    unless the job was cancelled; then the records of cancellations and the output of the batch script; then accounting.
    What nothing explains is `ended` for END_GRACE_S, and `lost` after it.
    """
    run, submission, end = history.run, history.submission, history.end
    if is_finished(end):
        return State.finished, ""
    if submission.waits_for is not None:
        return State.waiting, f"Slurm accepts no more jobs now ({submission.waits_for})"
    if job is not None and (alive := alive_state(history, job)):
        return alive
    # scancel sends SIGTERM first, on which ranks record that they stopped: of a cancelled job Slurm's state counts.
    if end is not None and (job is None or job.state != "CANCELLED"):
        return recorded_state(history, end, job)
    # If the stage that prepares the data fails, Slurm cancels the run (--kill-on-invalid-dep) and names nobody.
    unprepared = submission.after is not None and not exists(run.data)
    if unprepared and not submission.cancelled and job is not None and job.state == "CANCELLED":
        return State.failed, f"its data could not be prepared: job {submission.after} ended without recording a cause"
    if submission.cancelled:
        return State.cancelled, ""
    if job is not None and job.state == "CANCELLED":
        return State.cancelled, job.reason or ""
    if submission.waits_in_pilot:
        if unstarted := not_started(printed_since_start(history.log)):
            return State.failed, unstarted
        state = State.prepared if submission.launches == 0 else State.stopped
        another = "starts it in another one" if submission.held_of else "submits another"
        return state, f"{submission.shared_job} ended before its turn; `slurmscale resume` {another}"
    # The batch script's own message explains more than FAILED, which is all that Slurm knows of it.
    if not history.begins and (unstarted := not_started(printed_since_start(history.log))):
        return State.failed, unstarted
    # COMPLETED only means that the batch script returned 0, which is no proof of a recorded end.
    if job is not None and job.state not in {"COMPLETED", GONE}:
        return State.failed, history.ended_words(job)
    return without_end(history, job)


def recorded_state(history: History, end: Mapping[str, Any], job: JobState | None) -> tuple[State, str]:
    """Return the state of a run that is not alive and recorded that it stopped or failed."""
    if end["event"] == "failed":
        words = [history.ended_words(job)] if job is not None and job.state in EXPLAINING else []
        return State.failed, "; ".join([*words, failure_words(end)])
    if history.submission.cancelled:
        # launcher=here stops its runs by the signal of a time limit.
        return State.cancelled, "" if recorded_cause(end) is FailureCause.time_limit else end["reason"]
    if job is not None and job.state == GONE and is_recent(history):
        return State.ended, f"{end['reason']}; {job.reason}"
    return State.stopped, end["reason"]


def failure_words(end: Mapping[str, Any]) -> str:
    """Return the first line of a recorded failure, after its rank and node."""
    who = f"rank {end['rank']} on {end['node']}: " if {"rank", "node"} <= end.keys() else ""
    return str(who + end["error"].partition("\n")[0])


def without_end(history: History, job: JobState | None) -> tuple[State, str]:
    """Return the state of a run that is not alive and has no recorded end: `ended` for END_GRACE_S, then `lost`."""
    if history.submission.launcher == "hand" and time.time() - last_sign(history) < ACCOUNTING_GRACE_S:
        return State.ended, "started outside Slurm: nobody here knows whether it still runs"
    reported = "" if job is None else f" ({job.reason or f'{history.submission.scheduler} reports {job.state}'})"
    # A controller that has lost its state, or lists less than it has, may still be corrected.
    grace_s = ACCOUNTING_GRACE_S if job is not None and job.is_unknown_to_controller else END_GRACE_S
    if is_recent(history, grace_s):
        return State.ended, f"its job left the queue; its end is not known yet{reported}"
    return (
        State.lost,
        f"its job is gone and recorded no end{reported}; see `slurmscale logs {shlex.quote(str(history.run.path))}`",
    )


def is_recent(history: History, grace_s: float = END_GRACE_S) -> bool:
    """Return True if a record of a job of a scheduler may still be on its way."""
    return history.submission.in_queue and time.time() - last_sign(history) < grace_s


def last_sign(history: History) -> float:
    """Return the time of the last record of a submission, its ranks or its batch script, in seconds since the epoch."""
    run, submitted = history.run, history.submission.time
    signs = [0.0 if submitted is None else datetime.fromisoformat(submitted).timestamp()]
    for path in (run.status, run.failures, run.metrics, run.heartbeats, history.log):
        with contextlib.suppress(OSError):
            signs.append(path.stat().st_mtime)
    return max(signs)


def alive_state(history: History, job: JobState) -> tuple[State, str] | None:
    """Return the state of a run that its scheduler holds; None if it does not hold it."""
    end, started = history.end, history.ranks_met
    if job.state == UNKNOWN:
        # Nobody answers: the records decide, and `doubt` has the reason why a recorded end may not be the last.
        return None if end is not None else ((State.running if started else State.queued), job.reason or "")
    if not job.is_alive:
        return None
    words = [history.restart_words(job)]
    if job.is_suspended:
        return State.suspended, "; ".join(
            filter(None, [*words, f"stopped by {history.submission.scheduler} until it is resumed"])
        )
    if job.is_held:
        return State.held, "; ".join(filter(None, [held_words(history.submission, job), *words]))
    if history.waits_for_start(job):
        if end is not None and "stage" in end:
            words.append(end["error"].partition("\n")[0])
        return State.queued, "; ".join(filter(None, [*words, job.reason]))
    # The batch script is not over: it records, requeues, and lets background writes end. Its nodes are not free yet.
    if end is not None and not history.starts_again:
        return State.running, f"ending: {failure_words(end) if end['event'] == 'failed' else end['reason']}"
    now = " ".join(filter(None, ["" if started else "starting", job.reason]))
    return State.running if started else State.queued, "; ".join(filter(None, [*words, now]))


def held_words(submission: Submission, job: JobState) -> str:
    """Return the reason of a held job, and the remedy."""
    who = "an administrator must run" if job.reason == "JobHeldAdmin" else "run"
    release = {"PBS": "qrls"}.get(submission.scheduler, "scontrol release")
    return f"held by {submission.scheduler}: {job.reason or job.state}; {who} `{release} {submission.job_id}`"


def held_by_schedulers(submissions: list[Submission]) -> dict[str, JobState]:
    """Return the state of the submissions that wait or run, by run name; UNKNOWN if their scheduler does not answer."""
    return {run: state for launcher, given in by_launcher(submissions) for run, state in launcher.states(given).items()}


def ended_by_schedulers(
    submissions: list[Submission], known: Mapping[str, JobState] | None = None
) -> dict[str, JobState]:
    """Return how submissions ended, by run name, if accounting has them; `known` are those that a scheduler holds."""
    found: dict[str, JobState] = {}
    for launcher, given in by_launcher(submissions):
        ends = launcher.ends(given)
        # By the queue these are over and by accounting they are not: the launcher knows whom to ask.
        late = {each.job_id: ends[each.asked_as] for each in given
                if each.asked_as in ends.keys() - (known or {}).keys() and ends[each.asked_as].is_late}  # fmt: skip
        alive = launcher.unlisted(late) if late else {}
        found |= ends | {each.asked_as: alive[each.job_id] for each in given if each.job_id in alive}
    return found
