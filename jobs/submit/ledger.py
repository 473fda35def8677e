"""Writing the ledger of a sweep: which run went where, on record the moment it did."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from filelock import FileLock, Timeout

from jobs.errors import SubmitError
from jobs.rundir import RunDir, SweepDir, append_record, now, read_events
from jobs.submit.submissions import latest_submissions


@contextmanager
def held(sweep: SweepDir, *, patience_s: float = -1) -> Iterator[None]:
    """Keep other shells and jobs from launching or cancelling runs of the sweep while the block goes on.

    Waits for its turn, for ever unless a patience is given; then raises filelock's Timeout. Raises SubmitError where
    the sweep's directory cannot be written.
    """
    lock = FileLock(sweep.lock, timeout=patience_s)
    try:
        lock.acquire()
    except Timeout:
        raise
    except OSError as error:
        raise SubmitError(
            f"{sweep.lock} cannot be written: {error.strerror or error}. Nothing was submitted or cancelled. "
            "Make room, or do it as the user and on the machine that can write there."
        ) from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold Ctrl-C back, for us and for sbatch, until a submission and its record are both done."""
    asked: list[int] = []
    previous = signal.signal(signal.SIGINT, lambda number, _frame: asked.append(number))
    # The mask is for sbatch, which inherits it; for us it would not do, since Python hears of a signal that any of
    # its threads lets through.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, previous)
    if asked:
        raise KeyboardInterrupt


def record_submission(sweep: SweepDir, directory: RunDir, launcher: str, job_id: str, **more: float | str) -> None:
    """Append to the ledger that a run went to the launcher under this id."""
    record = {
        "time": now(),
        "event": "submitted",
        "run": directory.name,
        "launcher": launcher,
        "job_id": job_id,
        "host": socket.gethostname(),
        "events_before": sum(1 for _ in read_events(directory.status)),
        **more,
    }
    append_record(sweep.submissions, record)


def record_waiting(sweep: SweepDir, left: list[tuple[RunDir, str]]) -> bool:
    """Append to the ledger which runs wait until Slurm takes them, and why; returns whether that was not there yet."""
    latest = latest_submissions(sweep) if left else {}
    newly = False
    for directory, limit in left:
        known = latest.get(directory.name)
        if known is None or known.waits_for != limit:
            events = sum(1 for _ in read_events(directory.status))
            record = {"time": now(), "event": "waiting", "run": directory.name, "limit": limit, "events_before": events}
            append_record(sweep.submissions, record)
            newly = True
    return newly
