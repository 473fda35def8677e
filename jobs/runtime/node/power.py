"""Record the power of this node in every second, in power-NODE.csv of the run directory (cluster.record_power).

Read are its GPUs, by NVML or by the files of the amdgpu driver, and on a node without GPUs its processors, by the
energy counters of RAPL, which most systems let only root read. None of them has fans, disks and the losses of the power
supply: for the power at the socket put the table of an external meter into the run directory.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from jobs.runtime.gpus.nvidia import nvidia_gpus
from jobs.runtime.node import use as node_use
from jobs.runtime.node.use import amd_gpus, number_in, text_in

SHORTEST_S = 0.05
COLUMNS = "time,device,power_w"
MICRO = 1e-6
# A package of processors; its cores and memory are intel-rapl:0:0 and so on (Documentation/power/powercap).
PACKAGES = "class/powercap/intel-rapl:?"


class Meter(Protocol):
    """A device of this node whose power can be read."""

    def power_w(self) -> float | None:
        """Return its power now, or since the reading before; None if it cannot be read."""


@dataclass
class Package:
    """The processors of a socket, by their energy counter."""

    files: Path
    seen: tuple[float, int] | None = field(default=None)
    """Moment and microjoules of the reading before."""

    def power_w(self) -> float | None:
        """Return the mean power since the reading before; None at the first one."""
        now_s, energy_uj, before = time.monotonic(), number_in(self.files / "energy_uj"), self.seen
        self.seen = None if energy_uj is None else (now_s, energy_uj)
        if before is None or energy_uj is None or now_s <= before[0]:
            return None
        grown_uj = energy_uj - before[1]
        if grown_uj < 0:  # It began again at 0.
            if (last_uj := number_in(self.files / "max_energy_range_uj")) is None:
                return None
            grown_uj += last_uj
        return MICRO * grown_uj / (now_s - before[0])


def meters() -> dict[str, Meter]:
    """Return what this node has, by name: its GPUs, else its processors."""
    gpus: Sequence[Meter] = [*nvidia_gpus(), *amd_gpus()]
    if gpus:
        return {f"GPU {index}": gpu for index, gpu in enumerate(gpus)}
    packages = sorted(node_use.SYS.glob(PACKAGES))
    # psys and other domains have names of their own.
    packages = [files for files in packages if text_in(files / "name").startswith("package")]
    return {f"CPU {index}": Package(files) for index, files in enumerate(packages)}


def readings(known: Mapping[str, Meter]) -> list[tuple[str, float]]:
    """Return the powers that can be read now, by the names of the devices."""
    found = ((name, meter.power_w()) for name, meter in known.items())
    return [(name, power_w) for name, power_w in found if power_w is not None]


class PowerLog:
    """The readings of this node, from its creation on."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self.watch, name="power", daemon=True)
        self.thread.start()

    def watch(self) -> None:
        """Read every second until stopped. What a full disk refuses is missing."""
        # In this thread: the library of the GPUs may take a second to open them.
        known = meters()
        readings(known)
        # RAPL's counters grow every millisecond.
        self.stopped.wait(SHORTEST_S)
        found = readings(known)
        if not found:
            print(
                "cluster.record_power: this node shows no power (NVML, amdgpu, or readable counters of RAPL). Put the "
                f"readings of a meter into {self.file}, or set cluster.record_power=false.",
                file=sys.stderr,
            )
            return
        with suppress(OSError), self.file.open("a", encoding="utf-8") as log:
            if not log.tell():
                print(COLUMNS, file=log)
            is_last = False
            while True:
                now_s = time.time()
                log.writelines(f"{now_s:.3f},{name},{power_w:.2f}\n" for name, power_w in found)
                log.flush()
                if is_last:
                    return
                # In the middle of every second of the clock: a reading that comes late on a busy node is still in it.
                self.stopped.wait(max(0.0, int(now_s) + 1.5 - time.time()))
                # The time until the end has a reading too.
                is_last = self.stopped.is_set()
                found = readings(known)

    def stop(self) -> None:
        """End."""
        self.stopped.set()
        self.thread.join()


@contextmanager
def power_recorded(file: Path) -> Iterator[None]:
    """Record the power of this node inside this context."""
    log = PowerLog(file)
    try:
        yield
    finally:
        log.stop()
