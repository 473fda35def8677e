"""Write the ledger of a sweep (submissions.jsonl): each submission is recorded as soon as it is made."""

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
    """Lock the sweep: no other shell or job launches or cancels its runs inside the block.

    Waits for the lock, at most `patience_s` seconds if that is not negative, then raises filelock's Timeout. Raises
    SubmitError if the directory of the sweep cannot be written.
    """
    lock = FileLock(sweep.lock, timeout=patience_s)
    try:
        lock.acquire()
    except Timeout:
        raise
    except OSError as error:
        raise SubmitError(
            f"{sweep.lock} cannot be written: {error.strerror or error}. Nothing was submitted or cancelled. "
            "Free some space, or run the command as a user and on a machine that can write there."
        ) from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay Ctrl-C, for this process and for sbatch, until a submission and its record are complete."""
    received: list[int] = []
    previous = signal.signal(signal.SIGINT, lambda number, _frame: received.append(number))
    # sbatch inherits the mask. For this process a mask is not enough: Python handles a signal that any of its threads
    # does not block.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, previous)
    if received:
        raise KeyboardInterrupt


def record_submission(sweep: SweepDir, directory: RunDir, launcher: str, job_id: str, **more: float | str) -> None:
    """Append to the ledger that a run was submitted to the launcher under this id."""
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
    """Append to the ledger the runs that wait in the backlog, and the limit; return True if any record is new."""
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
