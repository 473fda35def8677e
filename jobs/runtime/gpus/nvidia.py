"""NVIDIA's GPUs as NVML sees them: use, memory, clock and throttling, where NVIDIA's Python binding is installed.

Nothing is imported on a node without a GPU. A value that NVML does not give, or a GPU does not support, is absent. What
does not change is asked of nvidia-smi, which every driver brings.
"""

from __future__ import annotations

import importlib
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs import metrics as m
from jobs.metrics import Metric

if TYPE_CHECKING:
    import torch

# NVML needs it.
DEVICE = Path("/dev/nvidiactl")
MHZ = 1e6
# nvml.h, nvmlClocksEventReasons: hardware slowdown, software and hardware thermal slowdown, power brake. The software's
# power cap is not among them: a GPU at its power limit works as it should.
SLOWED_DOWN = 0x08 | 0x20 | 0x40 | 0x80


@dataclass(frozen=True)
class NvidiaGpu:
    """A GPU that NVML shows."""

    nvml: Any
    handle: Any

    def busy(self) -> float | None:
        """Return the share of the last second, or less, in which a kernel ran; a GPU that MIG divides has none."""
        return self.read(lambda: self.nvml.nvmlDeviceGetUtilizationRates(self.handle).gpu / 100)

    def memory_used(self) -> float | None:
        """Return the share of its memory that is not free."""

        def share() -> float:
            memory = self.nvml.nvmlDeviceGetMemoryInfo(self.handle)
            return 1 - float(memory.free) / float(memory.total)

        return self.read(share)

    def power_w(self) -> float | None:
        """Return its power, of the board with its memory (nvmlDeviceGetPowerUsage: milliwatts)."""
        return self.read(lambda: float(self.nvml.nvmlDeviceGetPowerUsage(self.handle)) / 1000)

    def state(self) -> dict[Metric, float]:
        """Return what other programs may take from a rank: time, clock, and memory."""
        values = {
            m.GPU_BUSY: self.busy(),
            m.GPU_CLOCK: self.read(
                lambda: MHZ * self.nvml.nvmlDeviceGetClockInfo(self.handle, self.nvml.NVML_CLOCK_SM)
            ),
            m.GPU_THROTTLED: self.read(lambda: float(bool(self.reasons() & SLOWED_DOWN))),
            m.GPU_MEMORY_FREE: self.read(lambda: float(self.nvml.nvmlDeviceGetMemoryInfo(self.handle).free)),
        }
        return {metric: value for metric, value in values.items() if value is not None}

    def reasons(self) -> int:
        """Return the reasons for the present clock as bits; drivers before 535 know the older name only."""
        try:
            return int(self.nvml.nvmlDeviceGetCurrentClocksEventReasons(self.handle))
        except (AttributeError, self.nvml.NVMLError):
            return int(self.nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self.handle))

    def read(self, value: Callable[[], float]) -> float | None:
        """Return a value; None if this GPU does not support it, or it is not permitted."""
        try:
            return value()
        except self.nvml.NVMLError:
            return None


def nvidia_gpus() -> list[NvidiaGpu]:
    """Return the GPUs that the driver shows to this process."""
    return opened(all_gpus) if DEVICE.exists() else []


def all_gpus(nvml: Any) -> list[NvidiaGpu]:
    """Return the GPUs of an NVML that is open, in its order."""
    return [NvidiaGpu(nvml, nvml.nvmlDeviceGetHandleByIndex(i)) for i in range(nvml.nvmlDeviceGetCount())]


def gpu_of_rank(device: torch.device) -> NvidiaGpu | None:
    """Return the GPU of a rank; None on a CPU and on another vendor's GPU."""
    import torch  # noqa: PLC0415 (commands that show the use of nodes import this module)

    if device.type != "cuda" or torch.version.cuda is None:
        return None
    uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
    return next(iter(opened(lambda nvml: [NvidiaGpu(nvml, nvml.nvmlDeviceGetHandleByUUID(uuid))])), None)


def opened(gpus: Callable[[Any], list[NvidiaGpu]]) -> list[NvidiaGpu]:
    """Return GPUs by NVML; none without its Python binding, or without a driver."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return []
    try:
        nvml.nvmlInit()
        return gpus(nvml)
    except nvml.NVMLError:
        return []


def gpu_name() -> str | None:
    """Return the name of the first visible GPU, which torch calls it by too; None without nvidia-smi."""
    found = nvidia_smi("--query-gpu", ["name"])
    return found[0]["name"] if found else None


def nvidia_smi(query: str, fields: Sequence[str], timeout_s: float = 60.0) -> list[dict[str, str]] | None:
    """Return these fields of each visible GPU as nvidia-smi prints them; None if it is missing or fails."""
    if shutil.which("nvidia-smi") is None:
        return None
    command = ["nvidia-smi", f"{query}={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        printed = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=True).stdout
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return [dict(zip(fields, map(str.strip, line.split(",")), strict=False)) for line in printed.splitlines() if line]
