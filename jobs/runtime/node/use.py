"""Read how busy this node is: processors, memory, network, disks and GPUs, by all of its processes.

Shares of time are counted in seconds: their difference between two readings, divided by the time between these, is the
mean share. What the machine does not show is absent. GPUs are those that the driver shows to the job: NVIDIA's by NVML,
where its Python binding is installed, AMD's by the files of the amdgpu driver.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psutil

from jobs import metrics as m
from jobs.metrics import Metric
from jobs.runtime.gpus.nvidia import nvidia_gpus
from jobs.runtime.node.load import busy_s

SYS = Path("/sys")
NODE_NUMBER = "node_number"
"""In the header of a record with the use of a node: its number among the nodes of the run."""
NETWORK = ("node_receive_bytes", "node_send_bytes")
DISKS = ("node_disk_read_bytes", "node_disk_write_bytes")
RATES: Mapping[str, Metric] = dict(
    zip(
        ("node_cpu_s", "node_gpu_s", *NETWORK, *DISKS),
        (m.NODE_CPU_BUSY, m.NODE_GPU_BUSY, m.NODE_RECEIVED, m.NODE_SENT, m.NODE_DISK_READ, m.NODE_DISK_WRITTEN),
        strict=True,
    )
)
"""Keys that a record counts over its interval, each with the metric that is its mean."""
LEVELS = (m.NODE_MEMORY_USED, m.NODE_GPU_MEMORY_USED)
"""Metrics that a record has as they were at the end of its interval."""
# /sys/class/net/*/type, from the kernel's if_arp.h.
INFINIBAND = "32"
# Ports of InfiniBand and RoCE count data in units of four bytes (Documentation/ABI/stable/sysfs-class-infiniband).
PORTS = "class/infiniband/*/ports/*/counters"
PORT_UNIT_BYTES = 4


class NodeUse:
    """The counters of this node, from now on."""

    def __init__(self) -> None:
        self.gpus: Sequence[Gpu] = [*nvidia_gpus(), *amd_gpus()]
        self.gpu_s = 0.0
        self.read_s = time.monotonic()

    def counters(self) -> dict[str, float]:
        """Return what only grows; GPUs count as busy since the last reading as they are now."""
        now_s = time.monotonic()
        found = {"node_cpu_s": busy_s(psutil.cpu_times()) / (psutil.cpu_count() or 1)}
        if busy := [share for gpu in self.gpus if (share := gpu.busy()) is not None]:
            self.gpu_s += (now_s - self.read_s) * statistics.fmean(busy)
            found["node_gpu_s"] = self.gpu_s
        self.read_s = now_s
        return found | network_bytes() | disk_bytes()

    def levels(self) -> dict[str, float]:
        """Return the shares of memory that are in use now."""
        memory = psutil.virtual_memory()
        found = {m.NODE_MEMORY_USED.name: 1 - memory.available / memory.total}
        used = [share for gpu in self.gpus if (share := gpu.memory_used()) is not None]
        return found | ({m.NODE_GPU_MEMORY_USED.name: max(used)} if used else {})


def use_of(record: Mapping[str, Any]) -> dict[Metric, float]:
    """Return the use of a node in the interval of a record; values that are not numbers are absent."""
    interval_s = record.get("interval_s")
    if not is_amount(interval_s) or not interval_s:
        return {}
    means = {metric: record[name] / interval_s for name, metric in RATES.items() if is_amount(record.get(name))}
    # On a machine without a free processor, a reading and its time lie apart.
    means |= {metric: min(1.0, means[metric]) for metric in (m.NODE_CPU_BUSY, m.NODE_GPU_BUSY) if metric in means}
    return means | {metric: record[metric.name] for metric in LEVELS if is_amount(record.get(metric.name))}


def is_amount(value: Any) -> bool:
    """Return True for a finite number from 0 on."""
    return type(value) in {int, float} and math.isfinite(value) and value >= 0


# --- GPUs ----------------------------------------------------------------------------------------------------------


class Gpu(Protocol):
    """A GPU of the node; a share that cannot be read is None."""

    def busy(self) -> float | None:
        """Return the share of the last second, or less, in which a kernel ran."""

    def memory_used(self) -> float | None:
        """Return the share of its memory that is taken."""


@dataclass(frozen=True)
class AmdGpu:
    """A GPU of the amdgpu driver (Linux, Documentation/gpu/amdgpu/thermal.rst and driver-misc.rst)."""

    files: Path

    def busy(self) -> float | None:
        """Return gpu_busy_percent."""
        percent = number_in(self.files / "gpu_busy_percent")
        return None if percent is None else percent / 100

    def memory_used(self) -> float | None:
        """Return the share of the video memory that is in use."""
        used, total = (number_in(self.files / f"mem_info_vram_{each}") for each in ("used", "total"))
        return used / total if used is not None and total else None

    def power_w(self) -> float | None:
        """Return its power: power1_average of the hardware monitor, or power1_input, in microwatts."""
        names = ("power1_average", "power1_input")
        found = (number_in(file) for name in names for file in sorted(self.files.glob(f"hwmon/hwmon*/{name}")))
        power_uw = next((each for each in found if each is not None), None)
        return None if power_uw is None else power_uw / 1e6


def amd_gpus() -> list[AmdGpu]:
    """Return the GPUs of the amdgpu driver."""
    return [AmdGpu(file.parent) for file in sorted(SYS.glob("class/drm/card*/device/gpu_busy_percent"))]


# --- network and disks ---------------------------------------------------------------------------------------------


def network_bytes() -> dict[str, float]:
    """Return the bytes that the adapters received and sent since boot; empty without an adapter of its own.

    Bridges and bonds pass on what an adapter counts, and IP over InfiniBand is counted by the port.
    """
    moved = [
        (counts.bytes_recv, counts.bytes_sent)
        for name, counts in psutil.net_io_counters(pernic=True).items()
        if (SYS / "class/net" / name / "device").exists() and text_in(SYS / "class/net" / name / "type") != INFINIBAND
    ]
    for port in SYS.glob(PORTS):
        received, sent = (number_in(port / f"port_{each}_data") for each in ("rcv", "xmit"))
        if received is not None and sent is not None:
            moved.append((PORT_UNIT_BYTES * received, PORT_UNIT_BYTES * sent))
    return dict(zip(NETWORK, map(float, map(sum, zip(*moved, strict=True))), strict=True)) if moved else {}


def disk_bytes() -> dict[str, float]:
    """Return the bytes read from the disks of the node and written to them since boot; empty where it shows none."""
    counts = psutil.disk_io_counters()
    return {} if counts is None else dict(zip(DISKS, map(float, (counts.read_bytes, counts.write_bytes)), strict=True))


def number_in(file: Path) -> int | None:
    """Return the number in a file of the kernel; None if it cannot be read."""
    with suppress(ValueError):
        return int(text_in(file))
    return None


def text_in(file: Path) -> str:
    """Return the text of a file of the kernel; empty if it cannot be read."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""
