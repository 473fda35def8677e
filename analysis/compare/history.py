"""The history of a reference: which of its values count, by the shifts of its level and by hosts that differ.

A reference of several reports has one value per report and hosts, the median of the repeats: repeats of one report
share the state of the machine at that time, so they vary less than reports do. A single report has its repeats.

Shift: the split into two levels of the largest two-sample t, with Bonferroni's bound over all splits as its p-value
(likelihood ratio test for a change in location; Worsley, J. Am. Stat. Assoc. 74, 1979); what follows the split is split
again (Vostrikova, Sov. Math. Dokl. 24, 1981). Only values since the last shift count.

Hosts: one-way analysis of variance of the logarithms (Fisher, 1925). If hosts differ, only values of the hosts of now
count. If the reference has too few of those, the hosts are a sample of hosts: their means are the values.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import fdtrc, stdtr

from analysis.compare.reference import HOSTS, SOURCE
from analysis.formatting import listed, plural
from analysis.intervals import FEWEST_FOR_MEAN
from jobs import metrics as m
from jobs.metrics import Metric

RunRow = Mapping[str, str]
ERROR = 0.01
"""Probability that equal reports appear to have a shift, or equal hosts to differ."""
MOST_HOSTS = 4


@dataclass(frozen=True)
class Unit:
    """A value of the reference: a run, or the runs of one report on the same hosts."""

    value: float
    source: str
    hosts: str
    rows: Sequence[RunRow]


@dataclass(frozen=True)
class Level:
    """The part of a reference that counts for one metric of one point."""

    values: Sequence[float]
    """Those that predict the next one."""
    rows: Sequence[RunRow]
    """Their runs."""
    notes: Sequence[str]
    shifted_at: str | None = None
    """The report with which its present level begins."""
    shift: float | None = None
    """Relative change of the level there."""
    hosts_differ: bool = False

    @property
    def has_spread(self) -> bool:
        """Return whether the values tell how much a further one may differ from them."""
        fewest = 2 if self.hosts_differ else FEWEST_FOR_MEAN
        return len(self.values) >= fewest and len(set(self.values)) > 1 and min(self.values) > 0


def level_of(metric: Metric, before: Sequence[RunRow], after: Sequence[RunRow]) -> Level:
    """Return the part of a reference that counts for the rows of now."""
    units = units_of(metric, before)
    # A loss must agree, whatever the state of the machine.
    if metric is m.FINAL_LOSS or not units or min(unit.value for unit in units) <= 0:
        return Level([unit.value for unit in units], before, [])
    logs = [math.log(unit.value) for unit in units]
    differ = hosts_differ(units, logs)
    place = last_shift(centred(units, logs) if differ else logs) if len({unit.source for unit in units}) > 1 else 0
    kept, notes = units[place:], []
    change = None
    if place:
        change = math.expm1(statistics.fmean(logs[place:]) - statistics.fmean(logs[:place]))
        notes.append(
            f"the level of the reference shifted by {change * 100:+.1f} % at {units[place].source}: only "
            f"{plural(len(kept), 'value')} since then {'counts' if len(kept) == 1 else 'count'}"
        )
    shifted_at = units[place].source if place else None
    if not differ:
        return Level([unit.value for unit in kept], rows_of(kept), notes, shifted_at, change)
    here = {row.get(HOSTS, "") for row in after}
    same = [unit for unit in kept if unit.hosts in here]
    if len(same) >= FEWEST_FOR_MEAN and here <= {unit.hosts for unit in same}:
        notes.append(f"hosts of the reference differ: only its values on {listed(sorted(here), MOST_HOSTS)} count")
        return Level([unit.value for unit in same], rows_of(same), notes, shifted_at, change, hosts_differ=True)
    means = [math.exp(mean) for mean in host_means(kept, [math.log(unit.value) for unit in kept]).values()]
    notes.append(
        f"hosts of the reference differ, and it has too few values on {listed(sorted(here), MOST_HOSTS)}: the limit is "
        f"by the spread of {plural(len(means), 'host')}"
    )
    return Level(means, rows_of(kept), notes, shifted_at, change, hosts_differ=True)


def units_of(metric: Metric, rows: Sequence[RunRow]) -> list[Unit]:
    """Return the values of a metric in the order of reports: of runs if there is one report only."""
    measured = [row for row in rows if row.get(metric.name)]
    if len({row.get(SOURCE) for row in measured}) <= 1:
        return [Unit(float(row[metric.name]), row.get(SOURCE, ""), row.get(HOSTS, ""), [row]) for row in measured]
    together: dict[tuple[str, str], list[RunRow]] = defaultdict(list)
    for row in measured:
        together[row[SOURCE], row.get(HOSTS, "")].append(row)
    return [
        Unit(statistics.median(float(row[metric.name]) for row in several), source, hosts, several)
        for (source, hosts), several in together.items()
    ]


def rows_of(units: Sequence[Unit]) -> list[RunRow]:
    """Return the runs of some values."""
    return [row for unit in units for row in unit.rows]


def last_shift(logs: Sequence[float]) -> int:
    """Return the place where the present level of some values begins, 0 if it never shifted."""
    n = len(logs)
    splits = range(FEWEST_FOR_MEAN, n - FEWEST_FOR_MEAN + 1)
    if not splits:
        return 0
    found = {split: two_sample_t(logs[:split], logs[split:]) for split in splits}
    best = max(found, key=lambda split: found[split])
    p = 2 * float(stdtr(n - 2, -found[best])) * len(splits)
    return best + last_shift(logs[best:]) if p < ERROR else 0


def two_sample_t(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the absolute two-sample t of equal variances; 0 if nothing varies."""
    freedom = len(a) + len(b) - 2
    pooled = (np.var(a) * len(a) + np.var(b) * len(b)) / freedom
    error = math.sqrt(pooled * (1 / len(a) + 1 / len(b)))
    return abs(statistics.fmean(a) - statistics.fmean(b)) / error if error else 0.0


def host_means(units: Sequence[Unit], logs: Sequence[float]) -> dict[str, float]:
    """Return the mean logarithm on each host."""
    of_host: dict[str, list[float]] = defaultdict(list)
    for unit, value in zip(units, logs, strict=True):
        of_host[unit.hosts].append(value)
    return {host: statistics.fmean(values) for host, values in of_host.items()}


def centred(units: Sequence[Unit], logs: Sequence[float]) -> list[float]:
    """Return logarithms without the means of their hosts."""
    means = host_means(units, logs)
    return [value - means[unit.hosts] for unit, value in zip(units, logs, strict=True)]


def hosts_differ(units: Sequence[Unit], logs: Sequence[float]) -> bool:
    """Return whether hosts differ by more than chance; False if no host is named or each has one value."""
    means = host_means(units, logs)
    if "" in means or not 1 < len(means) < len(logs):
        return False
    whole = statistics.fmean(logs)
    between = sum((means[unit.hosts] - whole) ** 2 for unit in units) / (len(means) - 1)
    within = sum(value**2 for value in centred(units, logs)) / (len(logs) - len(means))
    if within == 0:
        return between > 0
    return float(fdtrc(len(means) - 1, len(logs) - len(means), between / within)) < ERROR
