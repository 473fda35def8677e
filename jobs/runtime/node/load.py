"""Record the load of the node of rank 0 while a run trains: other processes, steal, clocks, throttling, free memory.

Rank 0 reads /proc, /sys and its GPU between two steps, every EVERY_S seconds and at the end; nothing is started. The
processor time of the ranks and of what they started, such as loader workers, is not other work. Where the ranks of the
node cannot be found, other work is absent.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any

import psutil

from jobs import metrics as m
from jobs.metrics import Metric
from jobs.runtime.gpus.nvidia import NvidiaGpu

EVERY_S = 60.0
# A shorter time has too few clock ticks (10 ms) for shares of it.
SHORTEST_S = 0.5
THROTTLE_COUNTS = "devices/system/cpu/cpu*/thermal_throttle/core_throttle_count"
CLOCKS = "devices/system/cpu/cpu*/cpufreq/scaling_cur_freq"
KHZ = 1e3
SYSTEM_USERS = 1000
SYS = Path("/sys")


class NodeLoad:
    """The load of this node by others, as means over the time since the last sample."""

    def __init__(self, ranks_on_node: int) -> None:
        self.gpu: NvidiaGpu | None = None
        self.ranks = ranks_here(ranks_on_node)
        self.cpus = psutil.cpu_count() or 1
        self.begin()

    def begin(self) -> None:
        """Begin the next interval now."""
        self.since = time.monotonic()
        self.node = psutil.cpu_times()
        self.own_s = self.own_time_s()
        self.throttled = throttle_count()

    def own_time_s(self) -> float | None:
        """Return the processor time of the run's ranks on this node and of what they started; None if not known."""
        try:
            # Those that have ended are in the times of their parents.
            processes = [each for rank in self.ranks for each in (rank, *rank.children(recursive=True))]
            return sum(sum(process.cpu_times()) for process in processes) if processes else None
        except psutil.Error:
            return None

    def due(self) -> bool:
        """Return True if the last sample is old enough for another one."""
        return time.monotonic() - self.since >= EVERY_S

    def sample(self) -> dict[Metric, float] | None:
        """Return the load since the last sample and begin the next interval; None after too short a time."""
        elapsed_s, before, own_before, throttled = (
            time.monotonic() - self.since,
            self.node,
            self.own_s,
            self.throttled,
        )
        if elapsed_s < SHORTEST_S:
            return None
        self.begin()
        available_s = elapsed_s * self.cpus
        values = {
            m.CPU_STEAL: (getattr(self.node, "steal", 0.0) - getattr(before, "steal", 0.0)) / available_s,
            m.MEMORY_AVAILABLE: float(psutil.virtual_memory().available),
        }
        if self.own_s is not None and own_before is not None:
            others_s = busy_s(self.node) - busy_s(before) - (self.own_s - own_before)
            values[m.OTHER_LOAD] = min(1.0, max(0.0, others_s / available_s))
            values[m.CPU_CORES] = max(0.0, self.own_s - own_before) / elapsed_s / len(self.ranks)
        if self.throttled is not None and throttled is not None:
            values[m.CPU_THROTTLED] = float(self.throttled - throttled)
        return values | now(self.gpu)


def now(gpu: NvidiaGpu | None) -> dict[Metric, float]:
    """Return the clock of the processors, and what is known of the GPU."""
    known = {m.CPU_CLOCK: clock_hz} if (clock_hz := clock()) else {}
    return known | (gpu.state() if gpu else {})


def at_start(gpu: NvidiaGpu | None = None) -> dict[Metric, float]:
    """Return the load of the node as it is now; the processes of other users are counted here only."""
    values = {
        m.LOAD_AVERAGE: os.getloadavg()[0],
        m.MEMORY_AVAILABLE: float(psutil.virtual_memory().available),
        m.OTHER_USERS_PROCESSES: float(other_users_processes()),
    }
    return values | now(gpu)


def busy_s(times: Any) -> float:
    """Return the processor time that was not idle, and not taken by other virtual machines."""
    return float(times.user + times.nice + times.system + times.irq + times.softirq)


def clock() -> float | None:
    """Return the mean clock of the processors in Hz; None if the kernel does not show it."""
    if clocks_khz := numbers_in(CLOCKS):
        return KHZ * sum(clocks_khz) / len(clocks_khz)
    try:
        frequency = psutil.cpu_freq()
    except (OSError, NotImplementedError):
        return None
    return frequency.current * 1e6 if frequency and frequency.current else None


def throttle_count() -> int | None:
    """Return how often the processors were throttled by heat since boot; None if the kernel does not count it."""
    counts = numbers_in(THROTTLE_COUNTS)
    return sum(counts) if counts else None


def numbers_in(pattern: str) -> list[int]:
    """Return the numbers in the files of /sys that match a pattern and can be read."""
    found: list[int] = []
    for file in SYS.glob(pattern):
        with contextlib.suppress(OSError, ValueError):
            found.append(int(file.read_text()))
    return found


def other_users_processes() -> int:
    """Return the number of processes of other users, without those of the system."""
    uids = [process.info["uids"] for process in psutil.process_iter(["uids"])]
    return sum(uid.real >= SYSTEM_USERS and uid.real != os.getuid() for uid in uids if uid is not None)


def ranks_here(count: int) -> list[psutil.Process]:
    """Return the processes of the run's ranks on this node; none if they cannot be identified.

    Ranks have equal command lines and, whatever starts them (srun, torchrun, submitit), a common ancestor.
    """
    own = psutil.Process()
    if count == 1:
        return [own]
    command = own.cmdline()
    with contextlib.suppress(psutil.Error):
        for ancestor in own.parents():
            ranks = [each for each in ancestor.children(recursive=True) if command_of(each) == command]
            if len(ranks) >= count:
                return ranks if len(ranks) == count else []
    return []


def command_of(process: psutil.Process) -> list[str] | None:
    """Return the command line of a process; None if it has ended."""
    try:
        return process.cmdline()
    except psutil.Error:
        return None
