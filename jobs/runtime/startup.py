"""The start-up time of a process until its first step, by cause."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from jobs import metrics as m
from jobs.metrics import Metric
from jobs.plan.cost import checkpoint_bytes, weights_bytes
from jobs.runtime.checkpoints.directory import size_bytes
from jobs.runtime.machine import staged_environment
from jobs.runtime.storage_io import own_counters
from jobs.runtime.watchdog import IMPORTING, STAGING, Watchdog
from jobs.schema import Run

ACTIVITIES = {
    m.STARTUP_STAGING_TIME: STAGING,
    m.STARTUP_IMPORT_TIME: IMPORTING,
    m.STARTUP_RENDEZVOUS_TIME: "meeting the other ranks",
    m.STARTUP_DATA_TIME: "opening the data",
    m.STARTUP_MODEL_TIME: "building the model",
    m.STARTUP_WEIGHTS_TIME: "loading the weights",
    m.STARTUP_CHECKPOINT_TIME: "reading a checkpoint",
    m.STARTUP_OTHER_TIME: "preparing to train",
}


class Startup:
    """A clock that adds every second from the process's start to one of STARTUP_PARTS; they sum to STARTUP_TIME.

    The first parts are staging, the interpreter and all imports, which end before the clock is created.
    """

    def __init__(self, process_started: float, watchdog: Watchdog, reads_bytes: Mapping[Metric, int]) -> None:
        self.process_started = process_started
        self.parts = dict.fromkeys(m.STARTUP_PARTS, 0.0)
        self.parts[m.STARTUP_STAGING_TIME] = staged_environment()[1]
        self.parts[m.STARTUP_IMPORT_TIME] = time.time() - process_started - self.parts[m.STARTUP_STAGING_TIME]
        self.part = m.STARTUP_OTHER_TIME
        self.watchdog = watchdog
        self.reads_bytes = reads_bytes
        self.data_bytes = 0
        self.import_read_bytes = own_counters().get("read_bytes", 0.0)
        """Bytes of the imports that were not in the page cache."""

    def begins(self, part: Metric) -> None:
        """Begin a part, which lasts until the next one begins; the watchdog names it in its errors."""
        self.spend(time.time())
        self.part = part
        self.watchdog.begins(ACTIVITIES[part], self.reads_bytes.get(part, 0) + self.data_bytes)

    def reads_data(self, directory: Path) -> None:
        """Allow this part, and those after it, the time in which the first rank reads all files of a data set.

        The other ranks go on and wait for it in a later part. Every rank calls it.
        """
        self.data_bytes = size_bytes(directory)
        self.begins(self.part)

    def ends(self) -> float:
        """End the start-up before the first step; return the time in seconds since the epoch."""
        now = time.time()
        self.spend(now)
        return now

    def spend(self, until: float) -> None:
        """Add the time since the last call to the current part."""
        self.parts[self.part] += until - self.process_started - sum(self.parts.values())


def reads_bytes(run: Run) -> dict[Metric, int]:
    """Return the bytes that all ranks together read in a part of the start-up."""
    return {m.STARTUP_WEIGHTS_TIME: weights_bytes(run), m.STARTUP_CHECKPOINT_TIME: checkpoint_bytes(run)}
