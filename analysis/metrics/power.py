"""Power in every second of a run, by the readings in its directory, against the limits of a contest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from analysis.formatting import plural
from analysis.metrics.energy import readings

LONGEST_GAP_S = 2.0
"""Between readings farther apart than this the power of a second is unknown."""


LONGEST_RUN_S = 100 * 86_400


@dataclass(frozen=True)
class PowerLimits:
    """Highest power in any second; None: no limit."""

    total_w: float | None
    node_w: float | None


def over_power(
    logs: Sequence[Path], begin_s: float, end_s: float, limits: PowerLimits, *, nodes: float | None
) -> str | None:
    """Return a sentence if readings are missing for a second of a run, or a second is above a limit; else None.

    Of the seconds in which a run begins and ends those count that have readings. A log is a node. Moments are in
    seconds since the epoch.
    """
    needed = int(nodes or 1)
    if len(logs) < needed:
        return (
            f"has power readings of {plural(len(logs), 'node')}, and the contest limits the power of all {needed}: "
            "write power-NODE.csv of each node into the run directory"
        )
    if not 0 < end_s - begin_s < LONGEST_RUN_S:
        return "has an end that is not within 100 days after its start, so no power is that of the run"
    seconds = np.arange(math.floor(begin_s), math.ceil(end_s))
    powers_w = [power_of(log, seconds) for log in logs]
    # A meter that starts with the run may first read in the second after the one in which both began.
    whole = (seconds >= begin_s) & (seconds + 1 <= end_s)
    for log, power_w in zip(logs, powers_w, strict=True):
        missing = np.isnan(power_w)
        if (unread := int((missing if missing.all() else missing & whole).sum())) > 0:
            return f"{log.name} has no reading for {unread} of {len(seconds)} seconds of the run"
    checked = [("all nodes together", np.nansum(powers_w, axis=0), limits.total_w)]
    checked += [(log.name, power_w, limits.node_w) for log, power_w in zip(logs, powers_w, strict=True)]
    for what, power_w, limit_w in checked:
        if limit_w is not None and (over := int((power_w > limit_w).sum())):
            return (
                f"took {np.nanmax(power_w):,.0f} W ({what}), and the contest allows {limit_w:,.0f} W: "
                f"{over} of {len(seconds)} seconds are above it"
            )
    return None


def power_of(log: Path, seconds: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return the watts of a node in each second: the sum of its devices; not a number where one was not read."""
    devices: dict[str, dict[float, float]] = {}
    for device, time_s, power_w in readings(log):
        devices.setdefault(device, {})[time_s] = power_w
    if not devices:
        return np.full(len(seconds), np.nan)
    total: npt.NDArray[np.float64] = np.zeros(len(seconds))
    for found in devices.values():
        total += of_device(found, seconds)
    return total


def of_device(found: dict[float, float], seconds: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return the highest reading in each second; between two readings that are near, the higher one of both."""
    times_s, powers_w = (np.array(each) for each in zip(*sorted(found.items()), strict=True))
    power_w = np.full(len(seconds), np.nan)
    places = np.floor(times_s).astype(int) - (seconds[0] if len(seconds) else 0)
    for place, value in zip(places, powers_w, strict=True):
        if 0 <= place < len(seconds):
            power_w[place] = np.fmax(power_w[place], value)
    after = np.searchsorted(times_s, seconds)
    for place in np.flatnonzero(np.isnan(power_w)):
        right = after[place]
        if 0 < right < len(times_s) and times_s[right] - times_s[right - 1] <= LONGEST_GAP_S:
            power_w[place] = max(powers_w[right - 1], powers_w[right])
    return power_w
