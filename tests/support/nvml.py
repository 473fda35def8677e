"""Stands in for NVIDIA's binding pynvml, whose functions it has as far as they are called: no test machine has a GPU.

A test copies it to pynvml.py in a directory of PYTHONPATH, where processes of a run import it. The GPUs are in
gpus.json beside it, as they last were set.
"""
# ruff: noqa: N802 (the names are NVIDIA's)

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

STATE = Path(__file__).with_name("gpus.json")


class NVMLError(Exception):
    """An error of NVML."""


def some_gpus(count: int) -> list[dict[str, Any]]:
    """Return the state of GPUs that nobody has limited."""
    return [
        {"uuid": f"GPU-{place}a", "limit_mw": 700_000, "locked": None, "allows": True, "history": []}
        for place in range(count)
    ]


@contextmanager
def gpus() -> Iterator[list[dict[str, Any]]]:
    """Change the GPUs; one process at a time."""
    with STATE.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = json.loads(STATE.read_text())
        yield found
        # A test that reads it meets a whole file.
        new = STATE.with_suffix(".new")
        new.write_text(json.dumps(found))
        new.replace(STATE)


def changed(handle: int, key: str, value: Any) -> None:
    """Set a value of a GPU, if that is allowed."""
    with gpus() as found:
        if not found[handle]["allows"]:
            raise NVMLError("Insufficient Permissions")
        found[handle][key] = value
        found[handle]["history"].append([key, value])


def nvmlInit() -> None:
    """Open NVML."""
    if not STATE.exists():
        raise NVMLError("Driver Not Loaded")


def nvmlDeviceGetCount() -> int:
    """Return the number of GPUs."""
    with gpus() as found:
        return len(found)


def nvmlDeviceGetHandleByIndex(index: int) -> int:
    """Return the handle of a GPU."""
    return index


def nvmlDeviceGetIndex(handle: int) -> int:
    """Return the index of a GPU."""
    return handle


def nvmlDeviceGetName(handle: int) -> str:
    """Return the kind of a GPU."""
    return "NVIDIA H100 80GB HBM3"


def nvmlDeviceGetUUID(handle: int) -> str:
    """Return the UUID of a GPU."""
    with gpus() as found:
        return str(found[handle]["uuid"])


def nvmlDeviceGetPowerManagementLimitConstraints(handle: int) -> list[int]:
    """Return the least and the highest power limit in milliwatts."""
    return [200_000, 700_000]


def nvmlDeviceGetPowerManagementLimit(handle: int) -> int:
    """Return the power limit in milliwatts."""
    with gpus() as found:
        return int(found[handle]["limit_mw"])


def nvmlDeviceSetPowerManagementLimit(handle: int, limit: int) -> None:
    """Set the power limit in milliwatts."""
    changed(handle, "limit_mw", limit)


def nvmlDeviceGetSupportedMemoryClocks(handle: int) -> list[int]:
    """Return the clocks of the memory in MHz."""
    return [2619, 1593]


def nvmlDeviceGetSupportedGraphicsClocks(handle: int, memory: int) -> list[int]:
    """Return the clocks of the processors with a clock of the memory, in MHz."""
    return list(range(1980, 195, -15)) if memory == 2619 else [345]


def nvmlDeviceSetGpuLockedClocks(handle: int, least: int, most: int) -> None:
    """Lock the clock."""
    changed(handle, "locked", [least, most])


def nvmlDeviceResetGpuLockedClocks(handle: int) -> None:
    """Unlock the clock."""
    changed(handle, "locked", None)
