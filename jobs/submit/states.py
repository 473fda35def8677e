"""The state of every run of a sweep, from its directory and one call of its scheduler.

The records of a run (status.jsonl) come first; the ledger (submissions.jsonl) names the launcher and the job; the
scheduler reports whether a run without a recorded end is alive. No state is kept elsewhere, so every shell sees the
same.
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

from jobs.errors import RunDirError
from jobs.failures import latest_attempt
from jobs.rundir import RunDir, SweepDir
from jobs.submit.job_state import GONE, UNKNOWN, JobState
from jobs.submit.launchers import by_launcher
from jobs.submit.submissions import Submission, events_since, latest_submissions, own_end

# A shared file system and accounting may need this long to show the end of a job.
END_GRACE_S = 60.0


class State(Enum):
    """The state of a run or stage."""

    prepared = "prepared"
    """Prepared and never submitted, or never started by its pilot."""
    waiting = "waiting"
    """In the backlog of the sweep, until Slurm accepts more jobs."""
    queued = "queued"
    """Submitted; its ranks have not started together yet."""
    running = "running"
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
        return self in {State.queued, State.running}

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


def open_sweep(path: Path) -> SweepDir:
    """Return the sweep directory at a path; raises RunDirError if it has no run."""
    sweep = SweepDir(path.expanduser().absolute())
    if not sweep.runs():
        raise RunDirError(
            f"{path} is not a sweep directory: it contains no run with a config.yaml. Give the directory that "
            "`slurmscale submit` printed, for instance runs/demo."
        )
    return sweep


def states(sweep: SweepDir) -> list[RunState]:
    """Return the state of every run of the sweep, sorted by name."""
    latest = latest_submissions(sweep)
    ends = {name: own_end(sweep.run(name), submission) for name, submission in latest.items()}
    unfinished = [latest[name] for name, end in ends.items() if end is None or end["event"] != "finished"]
    known = held_by_schedulers(unfinished)
    # Read again: a job that left the queue meanwhile has written its end.
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
    """Return the state of a submitted run and its reason: finished is final, then the state in the scheduler counts."""
    if end is not None and end["event"] == "finished":
        return State.finished, ""
    if submission.waits_for is not None:
        return State.waiting, f"Slurm accepts no more jobs now ({submission.waits_for})"
    if job is not None and (alive := alive_state(run, submission, end, job)):
        return alive
    if end is not None and end["event"] == "failed":
        who = f"rank {end['rank']} on {end['node']}: " if {"rank", "node"} <= end.keys() else ""
        return State.failed, who + end["error"].partition("\n")[0]
    if end is not None:
        return State.cancelled if submission.cancelled else State.stopped, end["reason"]
    unprepared = submission.after is not None and not run.data.exists()
    if unprepared and not submission.cancelled and job is not None and job.state == "CANCELLED":
        return State.failed, f"its data could not be prepared: job {submission.after} ended without recording a cause"
    if submission.cancelled or (job is not None and job.state == "CANCELLED"):
        return State.cancelled, ""
    if submission.waits_in_pilot:
        state = State.prepared if submission.launches == 0 else State.stopped
        return state, f"pilot {submission.job_id} ended before its turn; `slurmscale resume` submits another"
    if job is not None and job.state not in {"COMPLETED", "COMPLETING", GONE}:
        return State.failed, f"Slurm reports {job.state}"
    return without_end(run, submission, job)


def without_end(run: RunDir, submission: Submission, job: JobState | None) -> tuple[State, str]:
    """Return the state of a run that is not alive and has no recorded end: `ended` for END_GRACE_S, then `lost`."""
    reported = "" if job is None else f" ({job.reason or f'Slurm reports {job.state}'})"
    if submission.in_slurm and time.time() - last_sign(run, submission) < END_GRACE_S:
        return State.ended, f"its job left the queue; its end is not known yet{reported}"
    return (
        State.lost,
        f"its job is gone and recorded no end{reported}; see `slurmscale logs {shlex.quote(str(run.path))}`",
    )


def last_sign(run: RunDir, submission: Submission) -> float:
    """Return the time of the last record of a submission, its ranks or its batch script, in seconds since the epoch."""
    output = JobPaths(SweepDir(run.path.parent).logs, submission.log_id or submission.job_id, 0).stdout
    signs = [0.0 if submission.time is None else datetime.fromisoformat(submission.time).timestamp()]
    for path in (run.status, run.metrics, run.heartbeats, Path(output)):
        with contextlib.suppress(FileNotFoundError):
            signs.append(path.stat().st_mtime)
    return max(signs)


def alive_state(
    run: RunDir, submission: Submission, end: Mapping[str, Any] | None, job: JobState
) -> tuple[State, str] | None:
    """Return the state of a run that its scheduler holds; None if it does not hold it."""
    attempt = latest_attempt(events_since(run, submission))
    started = any(event["event"] == "started" for event in attempt)
    if job.state == UNKNOWN:
        return None if end is not None else ((State.running if started else State.queued), job.reason or "")
    if job.state in {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SUSPENDED"}:
        requeues = [event for event in attempt if event["event"] == "requeued"]
        words = [f"restarts after {requeues[-1]['cause']}"] if requeues else []
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
