"""Energy of an MLPerf result, from its power logs.

MLPerf's rules place them in power/RESULT/ next to RESULT.txt: one file per node and one for the switches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from analysis.logs.file import LogFile
from analysis.metrics.energy import Energy, Reading, energy_j
from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Text

POWER_FOLDER = "power"


def energy_of_log(log: LogFile, files: Sequence[LogFile]) -> Energy | None:
    """Return the energy from run_start to the last run_stop of a log; None if it has no power logs."""
    begins, ends = moments(log, "run_start"), moments(log, "run_stop")
    if not begins or not ends:
        return None
    samples = [sample for file in power_logs_of(log, files) for sample in readings(file)]
    return energy_j(samples, begins[0], ends[-1]) if samples else None


def power_logs_of(log: LogFile, files: Sequence[LogFile]) -> list[LogFile]:
    """Return the files in its power folder; without one, those next to it if it is the only result there."""
    folder = log.path.parent / POWER_FOLDER / log.path.stem
    own = [file for file in files if file.path.parent == folder]
    if own:
        return own
    beside = [file for file in files if file.path.parent == log.path.parent and file.path != log.path]
    return [] if any(moments(file, "run_stop") for file in beside) else beside


def moments(log: LogFile, event: str) -> list[float]:
    """Return the times of an event in seconds since the epoch, by the clock of the log's machine."""
    return [
        record.values[a.UNIX_TIME]
        for record in log.of(Kind.event)
        if record.texts.get(Text.event) == event and a.UNIX_TIME in record.values
    ]


def readings(file: LogFile) -> Iterator[Reading]:
    """Yield the power readings of a file in W, times its conversion efficiency; each file is a device."""
    efficiency = file.settings.get(a.CONVERSION_EFFICIENCY, 1.0)
    for record in file.of(Kind.sample):
        if a.UNIX_TIME in record.values and a.POWER in record.values:
            yield file.path.stem, record.values[a.UNIX_TIME], efficiency * record.values[a.POWER]
