"""Counters of a filer or switch that were recorded next to a run: tables in the sweep's directory over the run's time.

`report.side_files` names CSV files in the directory of the sweep or run. A column `time` has moments, every other
column of numbers but `node` is a counter; a column with the heading of a quantity of the study (`report.words`) is this
quantity. A value of a run is the mean of the rows within its own time; rows of one moment, as of the nodes of a filer,
are one.
"""

from __future__ import annotations

import csv
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from analysis.metrics.energy import epoch_s
from analysis.parsers import log_metrics as a
from analysis.run import RunResult
from analysis.untrusted import as_list, moment, printed_number
from jobs.files import exists, read_lines, reason
from jobs.metrics import PERCENT, Better, DisplayUnit, Metric, declared
from jobs.settings.report import UNITS, is_side_file

TIME, NODE = "time", "node"
# Rows farther apart than so many times the usual distance leave a gap.
GAP = 3.0
# Below this share of its time the mean is not that of the run.
LEAST_COVERED = 0.95
MOST_COUNTERS = 12
LONGEST_HEADING = 60
HOUR_S = 3600
# Time zones are from -12 to +14 hours.
ZONES_H = sorted(range(-26, 27), key=abs)
QUANTITIES = {a.STORAGE_CPU_BUSY: PERCENT, a.STORAGE_OPERATIONS: DisplayUnit("1", 1.0)}
"""Counters that are published, and the unit of a column whose heading names none."""
DEFINITION = "Mean over the time of the run of a counter that another machine recorded."


@dataclass(frozen=True)
class Counters:
    """The readable rows of a side file: the values of each counter at each moment."""

    rows: Mapping[float, Mapping[str, float]] = field(default_factory=dict)
    """By seconds since the epoch, in order."""
    fault: str = ""
    """Why it has no values, as a sentence."""


@dataclass(frozen=True)
class SideRecord:
    """A side file over the time of one run."""

    run: RunResult
    name: str
    means: Mapping[Metric, float] = field(default_factory=dict)
    over_time: Mapping[Metric, Sequence[tuple[float, float]]] = field(default_factory=dict)
    """Seconds since the run started, and the value."""
    covered: float | None = None
    """The share of the run's time that rows cover."""
    remark: str = ""
    """What is wrong with the file, as sentences; empty if nothing is."""


def side_records(runs: Iterable[RunResult]) -> list[SideRecord]:
    """Return the side files of runs, each file read once."""
    read: dict[Path, Counters] = {}
    found = []
    for run in runs:
        for name in map(str, as_list(run.setting("report.side_files"))):
            # The configuration may be a stranger's: no other directory is read.
            if not is_side_file(name) or not run.started:
                continue
            path = next((each for each in (run.path / name, run.path.parent / name) if exists(each)), None)
            if path is None:
                remark = f"There is no {name} in {run.path.parent.name}: export it into the directory of the sweep."
                found.append(SideRecord(run, name, remark=remark))
                continue
            if path not in read:
                read[path] = counters(path)
            found.append(over(run, name, read[path]))
    return found


def with_counters(runs: Iterable[RunResult], records: Iterable[SideRecord]) -> list[RunResult]:
    """Return runs with the means of their side files among their values."""
    means: dict[Path, dict[Metric, float]] = defaultdict(dict)
    for record in records:
        means[record.run.path] |= record.means
    return [replace(run, values={**run.values, **means[run.path]}) if run.path in means else run for run in runs]


def counters(path: Path) -> Counters:
    """Return the counters of a CSV file, or why it has none."""
    sums: dict[float, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    unread = ""
    try:
        lines = csv.reader(line.decode("utf-8-sig", errors="replace") for line in read_lines(path))
        headings = [each.strip() for each in next(lines, [])]
        if TIME not in [each.lower() for each in headings]:
            return Counters(
                fault=f"{path.name} has no column {TIME}; its columns are {', '.join(headings[:6]) or '-'}."
            )
        place = [each.lower() for each in headings].index(TIME)
        for row in lines:
            time_s = epoch_s(row[place].strip()) if len(row) > place else None
            if time_s is None:
                unread = unread or (row[place].strip() if len(row) > place else "")
                continue
            for i, (heading, text) in enumerate(zip(headings, row, strict=False)):
                value = (
                    None if i == place or heading.lower() in {"", NODE} else printed_number(text.strip().rstrip("%"))
                )
                if value is not None:
                    sums[time_s][heading[:LONGEST_HEADING]].append(value)
    except (OSError, csv.Error) as error:
        why = reason(error) if isinstance(error, OSError) else str(error)
        return Counters(fault=f"{path.name} cannot be read: {why}.")
    if not sums and unread:
        return Counters(
            fault=f"{path.name}: the time {unread[:40]} has no time zone or is no moment. "
            "Write 2026-01-31T12:34:56+01:00, or seconds since 1970."
        )
    if not sums:
        return Counters(fault=f"{path.name} has no rows with numbers.")
    return Counters({time: {name: statistics.fmean(own) for name, own in sums[time].items()} for time in sorted(sums)})


def over(run: RunResult, name: str, found: Counters) -> SideRecord:
    """Return a side file over the time of a run: from its start to its last record, of each of its starts."""
    spans = [span for span in intervals(run) if span[1] > span[0]]
    if found.fault or not spans:
        return SideRecord(run, name, remark=found.fault or f"{run.name} recorded no time of its own.")
    inside = {time: row for time, row in found.rows.items() if any(low <= time <= high for low, high in spans)}
    if not inside:
        return SideRecord(run, name, remark=elsewhere(name, list(found.rows), spans))
    distances = [b - a for a, b in pairwise(found.rows)]
    usual_s = statistics.median(distances) if distances else math.inf
    covered_s, longest = coverage(list(found.rows), spans, usual_s)
    covered = covered_s / math.fsum(high - low for low, high in spans)
    series: dict[Metric, list[tuple[float, float]]] = defaultdict(list)
    for heading in list(dict.fromkeys(each for row in inside.values() for each in row))[:MOST_COUNTERS]:
        metric, unit = counter(run, heading)
        series[metric] = [(time - spans[0][0], row[heading] * unit) for time, row in inside.items() if heading in row]
    gap = f"{name} has no row for {longest:.0f} s" if longest > GAP * usual_s else f"{name} begins late or ends early"
    remark = "" if covered >= LEAST_COVERED else f"{gap}, so its means are over {covered:.0%} of the time of the run."
    means = {metric: statistics.fmean(value for _, value in own) for metric, own in series.items()}
    return SideRecord(run, name, means, series, covered, remark)


def intervals(run: RunResult) -> list[tuple[float, float]]:
    """Return the time of each start of a run, from its first to its last event."""
    found: list[tuple[float, float]] = []
    for event in run.events:
        time_s = moment(event)
        if time_s is None:
            continue
        if event["event"] == "started":
            found.append((time_s, time_s))
        elif found:
            found[-1] = (found[-1][0], max(found[-1][1], time_s))
    return found


def coverage(times_s: Sequence[float], spans: Sequence[tuple[float, float]], usual_s: float) -> tuple[float, float]:
    """Return the seconds of a run within rows that are no gap apart, and the longest gap that it meets."""
    covered_s = longest_s = 0.0
    # A row stands for the time around it.
    edges = [times_s[0] - usual_s, *times_s, times_s[-1] + usual_s] if math.isfinite(usual_s) else list(times_s)
    for begin, end in pairwise(edges):
        within = math.fsum(max(0.0, min(end, high) - max(begin, low)) for low, high in spans)
        if end - begin <= GAP * usual_s:
            covered_s += within
        elif within:
            longest_s = max(longest_s, end - begin)
    return covered_s, longest_s


def elsewhere(name: str, times_s: Sequence[float], spans: Sequence[tuple[float, float]]) -> str:
    """Return the sentence on a file without a row in the time of a run, and the hours its clock may be off."""
    low, high = spans[0][0], spans[-1][1]
    hours = next((h for h in ZONES_H if times_s[0] + h * HOUR_S <= low and times_s[-1] + h * HOUR_S >= high), None)
    zone = (
        f" {abs(hours)} h {'later' if hours > 0 else 'earlier'} it would cover the run: another time zone?"
        if hours is not None
        else ""
    )
    return f"{name} has no row in the time of the run.{zone}"


def counter(run: RunResult, heading: str) -> tuple[Metric, float]:
    """Return the metric of a column, and the size of its unit: a quantity of the study with its heading, or its own."""
    words = run.setting("report.words")
    bare, named = split_unit(heading.strip())
    for metric, usual in QUANTITIES.items():
        names = {metric.name, words.get(metric.name) if isinstance(words, Mapping) else None}
        unit = UNITS[metric.unit].get(named) if named else usual
        if bare in names and unit is not None:
            return metric, unit.size
    # Its unit is part of its heading, and no metric of a run has this unit.
    return declared(heading, "", DEFINITION, Better.low), 1.0


def split_unit(heading: str) -> tuple[str, str]:
    """Return the heading of a column and its unit, if it names one: `CPU (%)`, `CPU %`, `NFS Ops/node (million)`."""
    bare, unit = heading, ""
    if heading.endswith("%"):
        bare, unit = heading[:-1], "%"
    elif heading.endswith(")"):
        bare, _, unit = heading[:-1].rpartition("(")
    return bare.strip(), unit.strip()


def is_counter(metric: Metric) -> bool:
    """Return True for a counter of another machine."""
    return metric in QUANTITIES or metric.definition == DEFINITION
