"""The folder of a tuning: runs_dir/sweep.

runs/NAME/
    tuning.jsonl            one line per start of the command and per end: space, settings, next proposals
    trials/                 a sweep: the runs of all trials
    confirmation/           a campaign: the best in turns with the baseline
    experiment/best.yaml    the best configuration
    report.html report.md runs.csv
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from jobs.errors import RunDirError
from jobs.output import own_directory
from jobs.rundir import TUNING, SweepDir, append_record, now, read_records

TRIALS = "trials"
CONFIRMATION = "confirmation"
BEST = "best"


@dataclass(frozen=True)
class TuningFolder:
    """The files of one tuning."""

    path: Path

    @property
    def ledger(self) -> Path:
        """Starts and ends of the command."""
        return self.path / TUNING

    @property
    def trials(self) -> SweepDir:
        """The sweep of all trials."""
        return SweepDir(self.path / TRIALS)

    @property
    def confirmation(self) -> SweepDir:
        """The campaign that compares the best with the baseline."""
        return SweepDir(self.path / CONFIRMATION)

    @property
    def best(self) -> Path:
        """The experiment file of the best configuration."""
        return self.path / "experiment" / f"{BEST}.yaml"

    def records(self, event: str) -> list[dict[str, Any]]:
        """Return the records of one kind, oldest first."""
        return [record for record in read_records(self.ledger) if record.get("event") == event]

    def record(self, event: str, **fields: Any) -> None:
        """Append a record."""
        append_record(self.ledger, {"time": now(), "event": event, **fields})

    @contextmanager
    def held(self) -> Iterator[None]:
        """Make the folder and lock it; raise RunDirError if another shell tunes here.

        The lock of a killed process is released by the system.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        own_directory(self.path, mode=0o700)
        lock = FileLock(self.path / ".lock", timeout=0)
        try:
            lock.acquire()
        except Timeout:
            raise RunDirError(
                f"{self.path} is being tuned by another shell. Wait for its end, or set sweep=NAME for another tuning."
            ) from None
        try:
            yield
        finally:
            lock.release()
