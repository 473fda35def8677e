"""Made events of a run that was killed and went on, by the clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from jobs.run_events import seen
from jobs.rundir import RunDir, SweepDir, append_record
from tests.support.fake_runs import a_run, ended, event, started, step


def clock(second: float) -> str:
    """So many seconds after an hour of a day, as records carry it."""
    return (datetime(2026, 1, 2, 3, tzinfo=UTC) + timedelta(seconds=second)).isoformat(timespec="milliseconds")


def submit(directory: RunDir, at: float, launcher: str = "slurm") -> None:
    """The ledger's record of a submission."""
    append_record(
        SweepDir(directory.path.parent).submissions,
        {"time": clock(at), "event": "submitted", "run": directory.name, "launcher": launcher, "job_id": "7",
         "host": "login", **seen(directory)},
    )  # fmt: skip


def meet(directory: RunDir, at: float, *, startup: float, attempt: int = 1, from_step: int = 0, **fields: Any) -> None:
    """All ranks have met at a moment, so many seconds after the process of rank 0 began."""
    started(directory, a_run(), attempt=attempt, from_step=from_step, time=clock(at), startup_time_s=startup, **fields)


def compute(directory: RunDir, first: int, last: int, *, attempt: int = 1, **fields: Any) -> None:
    """Steps of 2 s, of which the fourth and the eighth are saved in 1 s; half a second after each is lost."""
    elapsed = 0.0
    for number in range(first, last + 1):
        stall = 1.0 if number % 4 == 0 else None
        elapsed += 2.5 + (stall or 0.0)
        values = {"step_time_s": 2.0, "checkpoint_time_s": stall, "elapsed_s": elapsed}
        step(directory, number, attempt=attempt, **(values | fields))


def killed_once(directory: RunDir) -> None:
    """Submitted at 0, in the queue until 10; killed at 33 in step 7, which was to go on from step 4; ended at 100."""
    submit(directory, 0)
    meet(directory, 14, startup=4, restart=0)
    compute(directory, 1, 6)  # until 14 + 6 * 2.5 + 1 = 30
    event(directory, "failed", time=clock(33), restart=0, cause="lost_peer", rank=0, node="n0", error="gone")
    event(directory, "failed", time=clock(34), restart=0, cause="killed", rank=1, node="n1", error="Killed")
    event(directory, "requeued", time=clock(35), cause="killed", pause_s=30)
    meet(directory, 75, startup=5, attempt=2, from_step=4, restart=1)
    compute(directory, 5, 10, attempt=2)  # until 75 + 6 * 2.5 + 1 = 91
    ended(directory, attempt=2, time=clock(100))
