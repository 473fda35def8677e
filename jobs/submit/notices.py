"""Notices: a command of the user's that is called when a run restarts, ends, is held or is lost, or a sweep has ended.

The job tells of restarts and ends, once it is decided whether the run restarts. Whoever waits or watches tells of what
no job can: that a run is held, cancelled or lost. Each tells only what notices.jsonl does not have yet, and holds a
lock while the command runs. So each event is told once, whoever dies; only if the teller is killed within the command
itself is it called again.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict
from pathlib import Path

import orjson

from jobs.answers import Notice
from jobs.errors import SuiteError
from jobs.failure_causes import recorded_cause
from jobs.run_events import events_or_failure
from jobs.rundir import NOTICES, RunDir, SweepDir, append_record, load_run, now, read_records
from jobs.schema import Notify
from jobs.secrets import redact
from jobs.submit.states import RunState, State
from jobs.submit.sweeps.submissions import latest_submissions, own_end
from jobs.submit.trust.own_sweeps import is_own
from jobs.submit.watching.progress import last_step

TIMEOUT_S = 60
# What no job can tell of itself.
SEEN_BY_OTHERS = {State.held, State.cancelled, State.failed, State.lost, State.stopped, State.finished}


def tell_restart(run: RunDir) -> None:
    """Tell that a run restarts, which its last event records."""
    event = events_or_failure(run)[-1]
    tell(run, Notice("requeued", str(run.path.parent), run.name, cause=event.get("cause"), step=last_step(run)),
         identity=str(event["time"]))  # fmt: skip


def tell_end(sweep: SweepDir, run: RunDir) -> None:
    """Tell how a run has ended for good, and that its sweep has if it was the last."""
    latest = latest_submissions(sweep)
    if run.name in latest and (end := own_end(run, latest[run.name])) is not None:
        tell_state(run, str(end["event"]), latest[run.name].job_id)
    ends = {
        name: "cancelled" if each.cancelled else end["event"] if (end := own_end(sweep.run(name), each)) else None
        for name, each in latest.items()
    }
    if None not in ends.values():
        tell_sweep(sweep, Counter(map(str, ends.values())), run)


class Watched:
    """The notices of whoever waits for a sweep or watches it."""

    def __init__(self, sweep: SweepDir) -> None:
        self.sweep = sweep
        self.known: set[tuple[str, State, str | None]] = set()

    def tell(self, found: Sequence[RunState]) -> None:
        """Tell of the runs whose state is another one than at the last look."""
        new = [each for each in found if (each.run.name, each.state, each.job_id) not in self.known]
        self.known |= {(each.run.name, each.state, each.job_id) for each in new}
        told = [each for each in new if each.state in SEEN_BY_OTHERS]
        if not told or not is_own(self.sweep):
            return
        for each in told:
            tell_state(each.run, each.state.value, each.job_id, each.detail)
        if self.sweep.only is None and not any(each.state.is_open or each.state is State.prepared for each in found):
            tell_sweep(self.sweep, Counter(each.state.value for each in found), told[0].run)


def tell_state(run: RunDir, state: str, job_id: str | None, detail: str = "") -> None:
    """Tell the state of a run; an end is known by its record, another state by the job."""
    submission = latest_submissions(SweepDir(run.path.parent)).get(run.name)
    end = None if submission is None else own_end(run, submission)
    cause = recorded_cause(end) if end is not None else None
    error, _, _ = str((end or {}).get("error", "")).partition("\n")
    notice = Notice(
        event=state,
        sweep=str(run.path.parent),
        run=run.name,
        step=last_step(run),
        cause=cause.name if cause else None,
        detail=redact(error or detail) or None,
        job_id=job_id,
    )
    tell(run, notice, identity=f"{job_id} {state}" if end is None else str(end["time"]))


def tell_sweep(sweep: SweepDir, counts: Counter[str], run: RunDir) -> None:
    """Tell that no run of a sweep waits or runs any more; a sweep that is resumed ends again."""
    starts = sum(event["event"] == "started" for each in sweep.runs() for event in events_or_failure(each))
    notice = Notice("sweep_ended", str(sweep.path), None, counts=dict(counts))
    tell(run, notice, identity=f"{starts} starts", record=sweep.path / NOTICES)


def tell(run: RunDir, notice: Notice, *, identity: str, record: Path | None = None) -> None:
    """Call the command that a run names with a notice, unless it was told already; what fails is only printed."""
    try:
        notify = load_run(run.config).notify
    except (SuiteError, OSError):
        return
    if (notify.command is None and notify.apprise is None) or notice.event not in {each.name for each in notify.events}:
        return
    from filelock import FileLock  # noqa: PLC0415 (few runs have a command)

    place = record or run.path / NOTICES
    try:
        with FileLock(place.with_name(f".{NOTICES}.lock"), timeout=3 * TIMEOUT_S):
            told = read_records(place)
            if any((each.get("event"), each.get("identity")) == (notice.event, identity) for each in told):
                return
            failures = called(notify, notice)
            append_record(place, {"time": now(), "event": notice.event, "identity": identity, "failures": failures})
    except OSError as error:
        failures = [f"{place}: {error}"]
    for failure in failures:
        print(f"slurmscale: nobody was told of {notice.event}: {failure}", file=sys.stderr, flush=True)


def command_of(text: str) -> list[str]:
    """Return the words of a command; ~ is the home directory."""
    program, *arguments = shlex.split(text)
    return [str(Path(program).expanduser()), *arguments]


def called(notify: Notify, notice: Notice) -> Collection[str]:
    """Call what a run names, and return why that failed."""
    text = orjson.dumps(asdict(notice)).decode()
    commands = [command_of(notify.command)] if notify.command else []
    if notify.apprise:
        title = f"{notice.run or Path(notice.sweep).name}: {notice.event}"
        body = notice.detail or " ".join(f"{count} {state}" for state, count in notice.counts.items()) or notice.sweep
        addresses = Path(notify.apprise).expanduser()
        program = [sys.executable, "-c", "from apprise.cli import main; main()", f"--config={addresses}"]
        commands.append([*program, f"--title={title}", f"--body={body}"])
    failures = []
    for command in commands:
        try:
            subprocess.run(command, input=text, text=True, capture_output=True, timeout=TIMEOUT_S, check=True)
        except subprocess.CalledProcessError as error:
            failures.append(f"{command[0]} ended with {error.returncode}: {redact(error.stderr.strip()[-500:])}")
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            failures.append(redact(str(error)))
    return failures
