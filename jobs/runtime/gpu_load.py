"""Read the use, the clock and the throttling of a rank's GPU through NVML, where NVIDIA's Python binding is installed.

Nothing is imported on a node without a GPU. Each value that NVML does not give is absent.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jobs import metrics as m
from jobs.metrics import Metric

if TYPE_CHECKING:
    import torch

MHZ = 1e6
# nvml.h, nvmlClocksEventReasons: hardware slowdown, software and hardware thermal slowdown, power brake. The software's
# power cap is none of them: a GPU at its power limit works as it should.
SLOWED_DOWN = 0x08 | 0x20 | 0x40 | 0x80


class GpuLoad:
    """The GPU of this rank, as NVML sees it."""

    def __init__(self, nvml: Any, uuid: str) -> None:
        """Open a GPU; raises what NVML raises."""
        self.nvml = nvml
        nvml.nvmlInit()
        self.handle = nvml.nvmlDeviceGetHandleByUUID(uuid)

    def sample(self) -> dict[Metric, float]:
        """Return its values now."""
        reading: dict[Metric, Callable[[], float]] = {
            m.GPU_BUSY: lambda: self.nvml.nvmlDeviceGetUtilizationRates(self.handle).gpu / 100,
            m.GPU_CLOCK: lambda: MHZ * self.nvml.nvmlDeviceGetClockInfo(self.handle, self.nvml.NVML_CLOCK_SM),
            m.GPU_THROTTLED: lambda: float(bool(self.reasons() & SLOWED_DOWN)),
            m.GPU_MEMORY_FREE: lambda: float(self.nvml.nvmlDeviceGetMemoryInfo(self.handle).free),
        }
        values = {}
        for metric, read in reading.items():
            try:
                values[metric] = read()
            except self.nvml.NVMLError:
                continue  # not supported by this GPU, or not permitted
        return values

    def reasons(self) -> int:
        """Return the reasons for the present clock as bits; drivers before 535 know the older name only."""
        try:
            return int(self.nvml.nvmlDeviceGetCurrentClocksEventReasons(self.handle))
        except (AttributeError, self.nvml.NVMLError):
            return int(self.nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self.handle))


def gpu_load(device: torch.device) -> GpuLoad | None:
    """Return the readings of a rank's GPU; None on a CPU, on another vendor's GPU, and without NVML or its binding."""
    import torch  # noqa: PLC0415 (commands that show the use of nodes import this module)

    if device.type != "cuda" or torch.version.cuda is None:
        return None
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        return GpuLoad(nvml, f"GPU-{torch.cuda.get_device_properties(device).uuid}")
    except nvml.NVMLError:
        return None
