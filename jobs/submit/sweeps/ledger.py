"""Write the ledger of a sweep (submissions.jsonl), under its lock."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from jobs.errors import SubmitError
from jobs.run_events import seen
from jobs.rundir import RunDir, SweepDir, append_record, now
from jobs.submit.sweeps.submissions import in_brackets, intents, latest_submissions

# A terminal sends SIGINT (Ctrl-C) and SIGHUP (closed), a login node that ends sessions SIGTERM.
HELD_BACK = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def held(sweep: SweepDir, *, patience_s: float = -1) -> Iterator[None]:
    """Lock the sweep: no other shell or job launches or cancels its runs inside the block.

    Waits for the lock, at most `patience_s` seconds if that is not negative, then raises filelock's Timeout. Raises
    SubmitError if the directory of the sweep cannot be written.
    """
    from filelock import FileLock, Timeout  # noqa: PLC0415 (status and logs take no lock)

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
    """Delay signals that end this process, and sbatch, until a submission and its record are complete.

    Raises KeyboardInterrupt with the number of the signal afterwards.
    """
    received: list[int] = []
    # An ignored signal stays ignored: nohup ignores SIGHUP.
    caught = [number for number in HELD_BACK if signal.getsignal(number) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, lambda number, _frame: received.append(number)) for number in caught}
    # sbatch inherits the mask. For this process a mask is not enough: Python handles a signal that any of its threads
    # does not block.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, caught)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in previous.items():
            signal.signal(number, handler)
    if received:
        raise KeyboardInterrupt(received[0])


def record_cancelled(sweep: SweepDir, job_ids: Iterable[str]) -> None:
    """Append to the ledger that these jobs were cancelled: one record per job array."""
    records = ({"time": now(), "event": "cancelled", "job_id": each} for each in in_brackets(job_ids))
    append_record(sweep.submissions, *records)


def record_given_up(sweep: SweepDir, waiting: list[str]) -> None:
    """Append to the ledger that runs of the backlog, and jobs that Slurm has not shown yet, are not wanted."""
    runs = [{"time": now(), "event": "cancelled", "runs": waiting}] if waiting else []
    unsettled = [intent for intent in intents(sweep) if sweep.only is None or intent.runs == {sweep.only}]
    jobs = [{"time": now(), "event": "cancelled", "mark": intent.mark} for intent in unsettled]
    append_record(sweep.submissions, *runs, *jobs)


def record_waiting(sweep: SweepDir, left: list[tuple[RunDir, str]]) -> bool:
    """Append to the ledger the runs that wait in the backlog, and the limit; return True if any record is new."""
    latest = latest_submissions(sweep) if left else {}
    newly = False
    for directory, limit in left:
        known = latest.get(directory.name)
        if known is None or known.waits_for != limit:
            record = {"time": now(), "event": "waiting", "run": directory.name, "limit": limit, **seen(directory)}
            append_record(sweep.submissions, record)
            newly = True
    return newly
