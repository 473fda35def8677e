"""Facts of a rank's process and machine, and requests to stop; no torch."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from jobs.failure_causes import STOPS
from jobs.ranks import started_after_boot_s

VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
"""Variables that limit the GPUs of a process."""


def process_start() -> float:
    """Return the start of this process, in seconds since the epoch."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + started_after_boot_s("self")


STAGED, STAGING_S = "SLURMSCALE_STAGED", "SLURMSCALE_STAGING_S"
"""Set by staged_python.sh before it becomes the rank."""


def staged_environment() -> tuple[str, float]:
    """Return where this process found the copy of its environment, in words, and the seconds of its copying.

    Empty and 0 without cluster.stage_environment.
    """
    try:
        time_s = float(os.environ.get(STAGING_S, "0"))
    except ValueError:
        time_s = 0.0
    return os.environ.get(STAGED, ""), time_s


def boot_id() -> str:
    """Return the identity of this machine since its boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def cpu_name() -> str:
    """Return the model name of the processor."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "CPU"


class StopRequest:
    """A request to stop by SIGTERM or SIGUSR2: cancellation, preemption, or the warning before the time limit."""

    def __init__(self) -> None:
        self.signal = 0
        """The received signal, 0 without one; all ranks act on the maximum over all ranks."""
        for number in STOPS:
            signal.signal(number, self.ask)

    def ask(self, number: int, _frame: object) -> None:
        """Store the signal; the loop acts on it at the next step boundary, on all ranks."""
        self.signal = max(self.signal, number)
