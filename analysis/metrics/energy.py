"""Energy from power readings, integrated by trapezoids over the time of a run; unread time adds nothing.

Pure functions of readings, for logs of our own runs and of other programs alike (multiply MLPerf's readings by its
conversion efficiency first), and the reader of the power logs in a run directory: ours, nvidia-smi's, a meter's.
"""

from __future__ import annotations

import csv
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from analysis.metrics.goodput import Start
from analysis.parsers import log_metrics as a
from analysis.parsers.base import Text
from analysis.parsers.cluster import nvidia_smi
from analysis.parsers.detect import read_log
from analysis.untrusted import printed_number
from jobs.files import read_lines

# Between readings farther apart than this the power is unknown.
LONGEST_GAP_S = 30.0
# Below this share of the time an energy is not that of the run (as in the definition of ENERGY_PER_TOKEN).
LEAST_COVERED = 0.95
METER = ("time", "power_w")
"""Columns of the readings of a meter: moment (ISO 8601 with its zone, or seconds since the epoch) and watts."""
GPU = " GPU "
"""In the names of devices that are GPUs."""
Reading = tuple[str, float, float]
"""Device, moment in seconds since the epoch, power in W."""


@dataclass(frozen=True)
class Energy:
    """The energy of devices over some intervals, as far as readings cover them."""

    energy_j: float
    covered_s: float
    """Time with known power, summed over devices."""
    interval_s: float
    """Time of the intervals."""
    devices: tuple[str, ...]
    """Devices with readings in the intervals."""
    left_out: tuple[str, ...]
    """Devices with readings at other times only: their clock may be off."""
    expected: int | None = None
    """Number of devices to be read; None if unknown."""

    @property
    def covered(self) -> float | None:
        """Return ENERGY_COVERED; None if there are no devices or no time."""
        whole_s = len(self.devices) * self.interval_s
        return self.covered_s / whole_s if whole_s else None

    @property
    def complete(self) -> bool:
        """Return True if every device and nearly all of the time is covered."""
        all_read = not self.left_out and self.expected in {None, len(self.devices)}
        return all_read and self.covered is not None and self.covered >= LEAST_COVERED


def energy_j(samples: Iterable[Reading], begin_s: float, end_s: float, *, expected: int | None = None) -> Energy:
    """Return the energy of all devices from `begin_s` to `end_s`, in seconds since the epoch.

    Readings of one device at one moment count as their mean. Gaps above LONGEST_GAP_S are not bridged. `expected` is
    the number of devices to be read.
    """
    return energy_over(samples, [(begin_s, end_s)], expected)


def energy_over(samples: Iterable[Reading], intervals: Sequence[tuple[float, float]], expected: int | None) -> Energy:
    """Return the energy of all devices over several intervals that do not overlap."""
    readings: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for device, time_s, power_w in samples:
        if math.isfinite(time_s) and math.isfinite(power_w) and power_w >= 0:
            readings[device][time_s].append(power_w)
    joules: list[float] = []
    covered_s: dict[str, float] = {}
    for device, powers in readings.items():
        parts = [integral(powers, begin_s, end_s) for begin_s, end_s in intervals]
        joules += [part for part, _ in parts]
        covered_s[device] = math.fsum(time_s for _, time_s in parts)
    return Energy(
        energy_j=math.fsum(joules),
        covered_s=math.fsum(covered_s.values()),
        interval_s=math.fsum(max(0.0, end_s - begin_s) for begin_s, end_s in intervals),
        devices=tuple(sorted(device for device, time_s in covered_s.items() if time_s > 0)),
        left_out=tuple(sorted(device for device, time_s in covered_s.items() if time_s <= 0)),
        expected=expected,
    )


def integral(readings: Mapping[float, Sequence[float]], begin_s: float, end_s: float) -> tuple[float, float]:
    """Return the joules of one device in an interval, and the seconds that readings cover."""
    times_s = np.array(sorted(readings))
    powers_w = np.array([statistics.fmean(readings[time_s]) for time_s in times_s])
    # Each stretch between two readings, cut to the interval.
    since_s, until_s = np.maximum(times_s[:-1], begin_s), np.minimum(times_s[1:], end_s)
    known = (np.diff(times_s) <= LONGEST_GAP_S) & (until_s > since_s)
    since_s, until_s = since_s[known], until_s[known]
    mean_w = (np.interp(since_s, times_s, powers_w) + np.interp(until_s, times_s, powers_w)) / 2
    return float(np.sum(mean_w * (until_s - since_s))), float(np.sum(until_s - since_s))


# --- our own runs ----------------------------------------------------------------------------------------------


def energy_of_run(logs: Sequence[Path], intervals: Sequence[tuple[float, float]], ranks: int) -> Energy | None:
    """Return the energy of the nodes in some intervals by their power logs; None if there are no readings."""
    samples = [sample for log in logs for sample in readings(log)]
    # Each rank has a GPU; a meter reads a node, and RAPL a socket.
    expected = ranks if any(GPU in device for device, *_ in samples) else None
    return energy_over(samples, intervals, expected) if samples else None


def intervals_of(starts: Sequence[Start]) -> list[tuple[float, float]]:
    """Return the time from the process of each start to its end."""
    return [(start.process_started, last_seen(start)) for start in starts]


def readings(log: Path) -> Iterator[Reading]:
    """Yield the readings of a log of nvidia-smi, or of a table with the columns METER. Raise OSError.

    A device is named by its file, and by its own name if the table has a column `device`.
    """
    lines = read_lines(log)
    heading = next(lines, b"").decode(errors="replace").strip().split(",")
    if not set(METER) <= set(heading):
        yield from nvidia_smi_samples(log)
        return
    for row in csv.DictReader((line.decode(errors="replace") for line in lines), fieldnames=heading):
        time_s, power_w = epoch_s(str(row["time"])), printed_number(str(row["power_w"]))
        if time_s is not None and power_w is not None:
            yield f"{log.stem} {row.get('device') or ''}".rstrip(), time_s, power_w


def epoch_s(text: str) -> float | None:
    """Return seconds since the epoch; None for a text that is neither a number nor a moment with its zone."""
    if (seconds := printed_number(text)) is not None:
        return seconds
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return None if found.tzinfo is None else found.timestamp()


def nvidia_smi_samples(log: Path) -> Iterator[Reading]:
    """Yield the power readings of a log of `nvidia-smi --query-gpu=timestamp,index,power.draw`, taken under TZ=UTC.

    A device is named by file and index, because every node counts its GPUs from 0. Raise OSError.
    """
    for each, records in read_log(log):
        for record in records if each is nvidia_smi.FORMAT else ():
            time_s = moment_of(record.texts.get(Text.timestamp, ""))
            if time_s is not None and a.POWER in record.values:
                yield f"{log.stem}{GPU}{record.texts.get(Text.device, '?')}", time_s, record.values[a.POWER]


def moment_of(timestamp: str) -> float | None:
    """Return the epoch seconds of nvidia-smi's `2026/01/31 12:34:56.789` in UTC; None for anything else."""
    try:
        return datetime.strptime(timestamp, "%Y/%m/%d %H:%M:%S.%f").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def last_seen(start: Start) -> float:
    """Return the end of a start; its last record if the end was not recorded."""
    if start.ended is not None:
        return start.ended
    return start.met + max((step.elapsed_s for step in start.steps if step.elapsed_s is not None), default=0.0)
