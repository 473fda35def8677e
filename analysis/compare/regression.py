"""The regression gate: match the points of a report with those of a reference table, and judge metric by metric.

A metric is judged by the reference's own spread if its values have one (analysis.compare.history): worse is a median
outside the prediction interval of one further value. All such metrics of a report together raise a false alarm with a
probability of at most FALSE_ALARMS (Bonferroni). With fewer values, or equal ones, a fixed share is the limit.

Pure functions of two tables of runs (analysis.compare.reference).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from analysis.compare.core import change_direction, clauses, matched, relative_change, unequal_keys
from analysis.compare.history import Level, level_of
from analysis.compare.loss import final_losses_agree
from analysis.compare.reference import CHECKED, DEVICE, IDENTITY, RunsTable
from analysis.formatting import percent
from analysis.intervals import FEWEST_FOR_MEAN, Spread, prediction_limit
from analysis.scaling.groups import RATES
from jobs import metrics as m
from jobs.errors import ReportError
from jobs.metrics import Better, Metric
from jobs.parallelism import AXIS_NAMES

# The columns that name a point; further columns of IDENTITY are added where they distinguish points.
NAMING = ("parallelism", "nodes", "ranks")
# These follow from others and would only make names longer.
IMPLIED = {"parameters", *AXIS_NAMES, "accumulation"}
MOST_COLUMNS = 3
# The limit of a relative change where the reference has no spread of its own.
TOLERANCE = 0.05
# Share of reports of unchanged runs that fail by chance, at most; twice as many after a shift too small to be seen
# (tests/benchmarks/reference_history.py).
FALSE_ALARMS = 0.05
# Smaller changes pass, however little the repeats of the reference differ.
SMALLEST = 0.005
Identity = tuple[str, ...]
RunRow = Mapping[str, str]


class Verdict(Enum):
    """The verdict on one metric of one point; the value is printed."""

    passed = "passed"
    better = "better"
    worse = "WORSE"
    other_loss = "OTHER LOSS"
    missing = "NOT MEASURED"
    unjudged = "NOT JUDGED"


WORSE = (Verdict.worse, Verdict.other_loss)
FAILING = (*WORSE, Verdict.missing)


@dataclass(frozen=True)
class Check:
    """One metric of one point; the whole point if `metric` is None."""

    point: str
    verdict: Verdict
    metric: Metric | None = None
    reference: Spread | None = None
    now: Spread | None = None
    why: str = ""
    by_spread: bool = False
    """True if the limit follows from the reference's own spread."""
    level: Level | None = None
    """The part of the reference that counts; None if it has nothing to compare with."""

    @property
    def change(self) -> float | None:
        """Change of the median relative to the reference's; None if either is missing or the reference is 0."""
        if self.reference is None or self.now is None or self.reference.median == 0:
            return None
        return relative_change(self.now.median, self.reference.median)


@dataclass(frozen=True)
class Regression:
    """The result of a report against a reference table."""

    reference: Path
    tolerance: float | None
    """The limit of a relative change, if the user set one."""
    allow_missing: bool
    checks: Sequence[Check]
    added: Sequence[str]
    """Points that the reference does not contain."""
    not_matched_on: Sequence[str]
    """Columns of IDENTITY that the reference does not contain."""

    @property
    def compared(self) -> list[Check]:
        """The checks of metrics that both sides have."""
        return [check for check in self.checks if check.reference is not None and check.now is not None]

    @property
    def by_spread(self) -> int:
        """Number of checks whose limits follow from the reference's own spread."""
        return sum(check.by_spread for check in self.checks)

    @property
    def unjudged(self) -> Mapping[str, int]:
        """Number of points by name of a metric that was measured and that the reference does not contain."""
        return Counter(check.metric.name for check in self.checks if check.metric and check.verdict is Verdict.unjudged)

    @property
    def failing(self) -> list[Check]:
        """The checks that make it fail."""
        forgiven = {Verdict.missing} if self.allow_missing else set()
        return [check for check in self.checks if check.verdict in FAILING and check.verdict not in forgiven]

    @property
    def passed(self) -> bool:
        """Return True if something was compared and nothing fails."""
        return bool(self.compared) and not self.failing


def regression_of(
    reference: RunsTable, now: RunsTable, path: Path, tolerance: float | None, *, allow_missing: bool
) -> Regression:
    """Compare the runs of now with those of a reference, read from `path`.

    With a `tolerance` it is the limit of every change, else the spread of the reference where it has one.
    Raises ReportError if they share no device, or if the reference has no value of any measured metric.
    """
    refuse_other_devices(reference, now, path)
    columns = [name for name in (*IDENTITY, *DEVICE) if name in reference.columns]
    identity_of = identities(reference, now, columns)
    points = matched(reference.used, now.used, identity_of)
    name_of = names(points, columns)
    measured = list(dict.fromkeys(map(identity_of, now.used)))
    metrics_of = {
        identity: list(dict.fromkeys([*checked(before), *checked(after)]))
        for identity, (before, after) in points.items()
        if before and after
    }
    levels = {
        (identity, metric): level_of(metric, *points[identity])
        for identity, metrics in metrics_of.items()
        for metric in metrics
    }
    spreads = sum(
        has_spread(metric, level) and spread_of(metric, points[identity][1]) is not None
        for (identity, metric), level in levels.items()
    )
    error = FALSE_ALARMS / max(1, spreads) if tolerance is None else None
    checks = []
    for identity, (before, after) in points.items():
        if before and after:
            checks += [
                check_of(name_of[identity], metric, levels[identity, metric], after, tolerance, error=error)
                for metric in metrics_of[identity]
            ]
        elif before:
            why = why_missing(identity, columns, measured, now)
            checks.append(Check(name_of[identity], Verdict.missing, why=why))
    found = Regression(
        path,
        tolerance,
        allow_missing,
        checks,
        [name_of[identity] for identity, (before, _) in points.items() if not before],
        [name for name in IDENTITY if name not in reference.columns],
    )
    if found.unjudged and not found.compared and not found.failing:
        raise ReportError(
            f"{path} contains no values of {', '.join(found.unjudged)} for the measured points, so there is nothing "
            "to compare with. Take the original file, or write it again."
        )
    return found


def refuse_other_devices(reference: RunsTable, now: RunsTable, path: Path) -> None:
    """Raise ReportError if both sides have runs and share no device."""
    of_both = [{tuple(row[name] for name in DEVICE) for row in table.used} for table in (reference, now)]
    if not of_both[1] or of_both[0] & of_both[1]:
        return
    before, after = (
        ", ".join(sorted(f"{name or 'an unnamed device'} ({kind or 'kind unknown'}"
                         f"{', emulated nodes' if emulated == 'True' else ''})" for kind, name, emulated in devices))
        for devices in of_both
    )  # fmt: skip
    raise ReportError(
        f"{path} was measured on {before}, these runs on {after}: a difference between devices is no regression. "
        "Use a reference of the same device, or compare the two: slurmscale report --compare A B"
    )


# --- points ----------------------------------------------------------------------------------------------------


def identities(reference: RunsTable, now: RunsTable, columns: Sequence[str]) -> Callable[[RunRow], Identity]:
    """Return the function that identifies the point of a row: by columns, then by the digest of its settings.

    The digest is empty unless one side has several in a point.
    """

    def by_columns(row: RunRow) -> Identity:
        return tuple(row[name] for name in columns)

    digests: dict[tuple[int, Identity], set[str]] = defaultdict(set)
    for side, table in enumerate((reference, now)):
        for row in table.used:
            digests[side, by_columns(row)].add(row.get("settings_digest", ""))
    ambiguous = {point for (_, point), several in digests.items() if len(several) > 1}
    return lambda row: (*by_columns(row), row.get("settings_digest", "") if by_columns(row) in ambiguous else "")


def names(identities: Collection[Identity], columns: Sequence[str]) -> dict[Identity, str]:
    """Return a name for each point: parallelism, ranks, nodes, and the columns that distinguish several points."""
    distinguishing = [
        i for i, name in enumerate(columns)
        if name not in {*NAMING, *IMPLIED} and len({identity[i] for identity in identities}) > 1
    ]  # fmt: skip
    named = {}
    for identity in identities:
        row = dict(zip(columns, identity, strict=False))
        parts = [
            f"{row['parallelism'] or row['model']}, {counted(row['ranks'], 'rank')} on {counted(row['nodes'], 'node')}"
        ]
        parts += [f"{columns[i]}={identity[i]}" for i in distinguishing if identity[i]]
        parts += [f"settings {identity[-1]}"] if identity[-1] else []
        named[identity] = ", ".join(parts)
    return named


def counted(count: str, noun: str) -> str:
    """Return a count, given as text, with its noun."""
    return f"{count} {noun}" if count == "1" else f"{count} {noun}s"


def why_missing(identity: Identity, columns: Sequence[str], measured: Collection[Identity], now: RunsTable) -> str:
    """Return why a point of the reference was not measured: its run failed, or the nearest one differs."""
    named = [(i, name) for i, name in enumerate(columns) if name not in DEVICE]
    for row in now.rows:
        if row not in now.used and all(row[name] == identity[i] for i, name in named):
            return f"{row['name']}: {row['not_used_because'] or row.get('loss_doubt')}"
    if not measured:
        return "no run can be used"
    own, *others = (dict(zip((*columns, "settings"), each, strict=True)) for each in (identity, *measured))
    keys, nearest = min(((unequal_keys(own, other, IMPLIED), other) for other in others), key=lambda pair: len(pair[0]))
    differing = [f"{key} {nearest[key] or 'not recorded'}, not {own[key] or 'not recorded'}" for key in keys]
    return f"no such run; the nearest has {clauses(differing, MOST_COLUMNS)}"


# --- judging ---------------------------------------------------------------------------------------------------


def checked(rows: Sequence[RunRow]) -> list[Metric]:
    """Return the metrics of CHECKED that a point has; of the rates only the first."""
    known = [metric for metric in CHECKED if spread_of(metric, rows)]
    rate = next((metric for metric in known if metric in RATES), None)
    # Logs of other programs report neither the data nor its order, so their losses need not agree.
    same_data = all(row.get("data", "unknown to this file") for row in rows)
    return [
        metric
        for metric in known
        if metric is rate or (metric not in RATES and (same_data or metric is not m.FINAL_LOSS))
    ]


def check_of(
    point: str,
    metric: Metric,
    level: Level,
    after: Sequence[RunRow],
    tolerance: float | None,
    *,
    error: float | None,
) -> Check:
    """Judge one metric of a point that both sides have, by medians over repeats.

    With an `error` by the spread of the reference, if it has one.
    """
    before = level.rows
    reference, now = spread_of(metric, before), spread_of(metric, after)
    if reference is None:
        return Check(point, Verdict.unjudged, metric, None, now, f"the reference contains no {metric.name}")
    if now is None:
        return Check(point, Verdict.missing, metric, reference, None, f"no run recorded {metric.name}")
    notes = [f"n = {reference.n} and {now.n}"]
    notes += level.notes
    by_spread = error is not None and has_spread(metric, level)
    if by_spread and error is not None:
        verdict, words = by_prediction(metric, level.values, now.median, error)
        notes.append(words)
    else:
        share = TOLERANCE if tolerance is None else tolerance
        verdict = judged(metric, reference.median, now.median, share)
        widest = max((each.high - each.low) / each.median if each.median > 0 else 0.0 for each in (reference, now))
        if metric is not m.FINAL_LOSS and tolerance is None:
            few = reference.n < FEWEST_FOR_MEAN
            notes.append(
                f"fixed limit {percent(share)}: the reference has "
                f"{f'fewer than {FEWEST_FOR_MEAN} repeats' if few else 'no spread'}"
            )
        if metric is not m.FINAL_LOSS and widest > share:
            notes.append(f"repeats spread over {widest:.0%}, more than the tolerance: the result may be chance")
    if other_settings(before, after):
        notes.append("settings without a column of their own differ")
    return Check(point, verdict, metric, reference, now, "; ".join(notes), by_spread, level)


def has_spread(metric: Metric, level: Level) -> bool:
    """Return whether the reference tells how much a further value of a metric may differ from its own."""
    return metric is not m.FINAL_LOSS and level.has_spread


def by_prediction(metric: Metric, before: Sequence[float], now: float, error: float) -> tuple[Verdict, str]:
    """Return the verdict by the prediction interval of one further run of the reference, and its limit as text."""
    middle, half = prediction_limit(before, error)
    half = max(half, math.log1p(SMALLEST))
    better_is_high = metric.better is Better.high
    change = math.log(now / middle) if now > 0 else -math.inf
    limit = math.expm1(-half if better_is_high else half)
    words = f"limit {limit * 100:+.1f} % by the spread of the reference"
    if abs(change) <= half:
        return Verdict.passed, words
    return Verdict.better if (change > 0) is better_is_high else Verdict.worse, words


def spread_of(metric: Metric, rows: Sequence[RunRow]) -> Spread | None:
    """Return a metric over repeats; None if no row has it."""
    values = values_of(metric, rows)
    return Spread.of(values) if values else None


def values_of(metric: Metric, rows: Sequence[RunRow]) -> list[float]:
    """Return a metric of the repeats that have it."""
    return [float(row[metric.name]) for row in rows if row.get(metric.name)]


def judged(metric: Metric, before: float, now: float, tolerance: float) -> Verdict:
    """Return better or worse, in the metric's direction, for a change beyond the tolerance; a loss must agree."""
    if metric is m.FINAL_LOSS:
        return Verdict.passed if final_losses_agree(now, before) else Verdict.other_loss
    direction = change_direction(relative_change(now, before), tolerance)
    if direction == 0:
        return Verdict.passed
    return Verdict.better if (direction > 0) is (metric.better is Better.high) else Verdict.worse


def other_settings(before: Sequence[RunRow], after: Sequence[RunRow]) -> bool:
    """Return whether the settings are known to differ although all columns are equal."""
    of_both = [{row["settings_digest"] for row in rows if row.get("settings_digest")} for rows in (before, after)]
    return all(of_both) and of_both[0] != of_both[1]
