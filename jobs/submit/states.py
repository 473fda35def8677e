"""The state of every run of a sweep, from its folder and one question to the scheduler.

What a run wrote itself (status.jsonl) is believed first; the ledger (submissions.jsonl) says where to ask; the
scheduler says whether a run without an end is still alive. Nothing is kept in memory or in another place, so any
shell, any day, sees the same.
"""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any

from submitit.core.utils import JobPaths

from jobs.causes import latest_attempt
from jobs.errors import RunDirError
from jobs.rundir import RunDir, SweepDir
from jobs.submit.launchers import by_launcher
from jobs.submit.slurm_commands import GONE, UNKNOWN, JobState
from jobs.submit.submissions import Submission, events_since, latest_submissions, own_end

# What a shared file system and accounting may take to show how a job ended.
END_GRACE_S = 60.0


class State(Enum):
    """Where a run stands."""

    prepared = "prepared"
    """A directory, never submitted, or never started by the pilot that it was given to."""
    waiting = "waiting"
    """In the sweep's own queue, until Slurm takes more jobs."""
    queued = "queued"
    """Submitted; its ranks have not met yet."""
    running = "running"
    finished = "finished"
    stopped = "stopped"
    """Ended at a step boundary because a signal asked; can be resumed."""
    failed = "failed"
    cancelled = "cancelled"
    lost = "lost"
    """Submitted, not alive any more, and it left no end."""
    ended = "ended"
    """Not alive any more; how it ended may still come to be known."""

    @property
    def is_alive(self) -> bool:
        """Whether the scheduler still holds it."""
        return self in {State.queued, State.running}

    @property
    def is_open(self) -> bool:
        """Whether it may change without anybody's doing."""
        return self.is_alive or self in {State.waiting, State.ended}


@dataclass(frozen=True)
class RunState:
    """One run's state and what a person wants to know beside it."""

    run: RunDir
    state: State
    detail: str = ""
    job_id: str | None = None
    launcher: str | None = None
    host: str | None = None
    expected_start: str | None = None
    """When Slurm expects a waiting job to start, in its local time."""


def open_sweep(path: Path) -> SweepDir:
    """The sweep directory at a path; raises RunDirError when it is none."""
    sweep = SweepDir(path.expanduser().absolute())
    if not sweep.runs():
        raise RunDirError(
            f"{path} is not a sweep directory: no run with a config.yaml in it. Give the directory that "
            "`slurmscale submit` named, for instance runs/demo."
        )
    return sweep


def states(sweep: SweepDir) -> list[RunState]:
    """Every run of the sweep, by name."""
    latest = latest_submissions(sweep)
    ends = {name: own_end(sweep.run(name), submission) for name, submission in latest.items()}
    unfinished = [latest[name] for name, end in ends.items() if end is None or end["event"] != "finished"]
    known = held_by_schedulers(unfinished)
    # A job that left the queue before it was asked has written its end by now.
    ends |= {submission.run: own_end(sweep.run(submission.run), submission) for submission in unfinished}
    known |= ended_by_schedulers([each for each in unfinished if each.run not in known and ends[each.run] is None])
    found = []
    for run in sweep.runs():
        submission = latest.get(run.name)
        if submission is None:
            found.append(RunState(run, State.prepared))
            continue
        job = known.get(run.name)
        state, detail = decide(run, submission, ends[run.name], job)
        found.append(
            RunState(
                run,
                state,
                detail,
                submission.job_id,
                submission.launcher,
                submission.host,
                job.expected_start if job and state is State.queued else None,
            )
        )
    return found


def decide(
    run: RunDir, submission: Submission, end: Mapping[str, Any] | None, job: JobState | None
) -> tuple[State, str]:
    """The state of a submitted run and a few words on it: finished is final, then what the scheduler still holds."""
    if end is not None and end["event"] == "finished":
        return State.finished, ""
    if submission.waits_for is not None:
        return State.waiting, f"Slurm takes no more jobs now ({submission.waits_for})"
    if job is not None and (alive := alive_state(run, submission, end, job)):
        return alive
    if end is not None and end["event"] == "failed":
        who = f"rank {end['rank']} on {end['node']}: " if {"rank", "node"} <= end.keys() else ""
        return State.failed, who + end["error"].partition("\n")[0]
    if end is not None:
        return State.cancelled if submission.cancelled else State.stopped, end["reason"]
    unprepared = submission.after is not None and not run.data.exists()
    if unprepared and not submission.cancelled and job is not None and job.state == "CANCELLED":
        return State.failed, f"its data could not be prepared: job {submission.after} ended without a word"
    if submission.cancelled or (job is not None and job.state == "CANCELLED"):
        return State.cancelled, ""
    if submission.waits_in_pilot:
        state = State.prepared if submission.launches == 0 else State.stopped
        return state, f"pilot {submission.job_id} ended before its turn; `slurmscale resume` sends another"
    if job is not None and job.state not in {"COMPLETED", "COMPLETING", GONE}:
        return State.failed, f"Slurm says {job.state}"
    return without_end(run, submission, job)


def without_end(run: RunDir, submission: Submission, job: JobState | None) -> tuple[State, str]:
    """The state of a run that is not alive and has no end on record, and how sure that is."""
    said = "" if job is None else f" ({job.reason or f'Slurm says {job.state}'})"
    if submission.in_slurm and time.time() - last_sign(run, submission) < END_GRACE_S:
        return State.ended, f"its job left the queue, and how it ended is not known yet{said}"
    return State.lost, f"its job is gone and left no end{said}; see `slurmscale logs {shlex.quote(str(run.path))}`"


def last_sign(run: RunDir, submission: Submission) -> float:
    """When a submission, its ranks or its batch script last wrote anything; seconds since the epoch."""
    output = JobPaths(SweepDir(run.path.parent).logs, submission.log_id or submission.job_id, 0).stdout
    signs = [0.0 if submission.time is None else datetime.fromisoformat(submission.time).timestamp()]
    for path in (run.status, run.metrics, run.heartbeats, Path(output)):
        with contextlib.suppress(FileNotFoundError):
            signs.append(path.stat().st_mtime)
    return max(signs)


def alive_state(
    run: RunDir, submission: Submission, end: Mapping[str, Any] | None, job: JobState
) -> tuple[State, str] | None:
    """The state of a run that its scheduler still holds; None when it does not."""
    attempt = latest_attempt(events_since(run, submission))
    started = any(event["event"] == "started" for event in attempt)
    if job.state == UNKNOWN:
        return None if end is not None else ((State.running if started else State.queued), job.reason or "")
    if job.state in {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SUSPENDED"}:
        again = [event for event in attempt if event["event"] == "requeued"]
        words = [f"goes on after {again[-1]['cause']}"] if again else []
        if end is not None and "stage" in end:
            words.append(end["error"].partition("\n")[0])
        return State.queued, "; ".join([*words, *filter(None, [job.reason])])
    if job.state in {"RUNNING", "STAGE_OUT"} or (job.state == "COMPLETING" and end is None):
        if end is not None:
            return State.running, "ending"
        words = [*([] if started else ["starting"]), *filter(None, [job.reason])]
        return State.running if started else State.queued, " ".join(words)
    return None


def held_by_schedulers(submissions: list[Submission]) -> dict[str, JobState]:
    """Return the state of the submissions that wait or run, by run name; UNKNOWN if their scheduler does not answer."""
    return {run: state for launcher, given in by_launcher(submissions) for run, state in launcher.states(given).items()}


def ended_by_schedulers(submissions: list[Submission]) -> dict[str, JobState]:
    """Return how submissions that no scheduler holds ended, by run name, if accounting has them."""
    return {run: state for launcher, given in by_launcher(submissions) for run, state in launcher.ends(given).items()}
