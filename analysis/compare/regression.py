"""Does every point do as well as in a reference? Points are matched by columns, and judged metric by metric.

Pure functions of two tables of runs (analysis.compare.reference).
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from analysis.compare.reference import CHECKED, DEVICE, IDENTITY, ReferenceFile
from analysis.intervals import Spread
from analysis.report.caveats import FINAL_LOSS_TOLERANCE
from analysis.scaling.groups import RATES
from jobs import metrics as m
from jobs.errors import ReportError
from jobs.metrics import Better, Metric

# What a point is called by; further columns of IDENTITY are named where they tell points apart.
CALLED_BY = ("parallelism", "nodes", "ranks")
# These follow from others, and would only make names longer.
IMPLIED = {"parameters", "pp", "dp_replicate", "dp_shard", "cp", "tp", "accumulation"}
MOST_COLUMNS = 3
Identity = tuple[str, ...]
RunRow = Mapping[str, str]


class Verdict(Enum):
    """How one metric of one point compares with its reference."""

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
    """One metric of one point; without a metric, of the whole point."""

    point: str
    verdict: Verdict
    metric: Metric | None = None
    reference: Spread | None = None
    now: Spread | None = None
    why: str = ""

    @property
    def change(self) -> float | None:
        """Relative to the reference's median."""
        if self.reference is None or self.now is None or self.reference.median == 0:
            return None
        return self.now.median / self.reference.median - 1


@dataclass(frozen=True)
class Regression:
    """The runs against a reference."""

    reference: Path
    tolerance: float
    allow_missing: bool
    checks: Sequence[Check]
    added: Sequence[str]
    """Points that the reference does not have."""
    not_matched_on: Sequence[str]
    """Columns that would tell points apart, and that the reference does not have."""

    @property
    def compared(self) -> list[Check]:
        """The checks of metrics that both have."""
        return [check for check in self.checks if check.reference is not None and check.now is not None]

    @property
    def unjudged(self) -> Mapping[str, int]:
        """The names of metrics that the reference holds no value of, with how many points have one now."""
        return Counter(check.metric.name for check in self.checks if check.metric and check.verdict is Verdict.unjudged)

    @property
    def failing(self) -> list[Check]:
        """What makes it fail."""
        forgiven = {Verdict.missing} if self.allow_missing else set()
        return [check for check in self.checks if check.verdict in FAILING and check.verdict not in forgiven]

    @property
    def passed(self) -> bool:
        """Whether something was compared and nothing fails."""
        return bool(self.compared) and not self.failing


def regression_of(
    reference: ReferenceFile, now: ReferenceFile, path: Path, tolerance: float, *, allow_missing: bool
) -> Regression:
    """Hold the runs of now against those of a reference.

    Raises ReportError when their devices are others, and where the reference holds no value of what was measured.
    """
    refuse_other_devices(reference, now, path)
    columns = [name for name in (*IDENTITY, *DEVICE) if name in reference.columns]
    before, after = points(reference, now, columns)
    name_of = names([*before, *after], columns)
    checks = []
    for identity, rows in before.items():
        if identity in after:
            metrics = dict.fromkeys([*checked(rows), *checked(after[identity])])
            checks += [check_of(name_of[identity], metric, rows, after[identity], tolerance) for metric in metrics]
        else:
            why = why_missing(identity, columns, after, now)
            checks.append(Check(name_of[identity], Verdict.missing, why=why))
    found = Regression(
        path,
        tolerance,
        allow_missing,
        checks,
        [name_of[identity] for identity in after if identity not in before],
        [name for name in IDENTITY if name not in reference.columns],
    )
    if found.unjudged and not found.compared and not found.failing:
        raise ReportError(
            f"{path} holds no values of {', '.join(found.unjudged)} for the points that were measured, so nothing can "
            "be held against it. Take the original file, or write it again."
        )
    return found


def refuse_other_devices(reference: ReferenceFile, now: ReferenceFile, path: Path) -> None:
    """Raise ReportError where no device is in both: another device's speed is no regression."""
    of_both = [{tuple(row[name] for name in DEVICE) for row in table.used} for table in (reference, now)]
    if not of_both[1] or of_both[0] & of_both[1]:
        return
    before, after = (
        ", ".join(sorted(f"{name or 'an unnamed device'} ({kind or 'kind unknown'}"
                         f"{', emulated nodes' if emulated == 'True' else ''})" for kind, name, emulated in devices))
        for devices in of_both
    )  # fmt: skip
    raise ReportError(
        f"{path} was measured on {before}, these runs on {after}: between devices a difference is no regression. "
        "Hold them against a reference of the same device, or compare the two by: slurmscale report --compare A B"
    )


# --- points ----------------------------------------------------------------------------------------------------


def points(
    reference: ReferenceFile, now: ReferenceFile, columns: Sequence[str]
) -> tuple[dict[Identity, list[RunRow]], dict[Identity, list[RunRow]]]:
    """The used rows of both by identity; where one side has several settings in one identity, by these too."""

    def identity(row: RunRow) -> Identity:
        return tuple(row[name] for name in columns)

    digests: dict[tuple[int, Identity], set[str]] = defaultdict(set)
    for side, table in enumerate((reference, now)):
        for row in table.used:
            digests[side, identity(row)].add(row.get("settings_digest", ""))
    ambiguous = {found for (_, found), several in digests.items() if len(several) > 1}
    found: tuple[dict[Identity, list[RunRow]], ...] = (defaultdict(list), defaultdict(list))
    for side, table in enumerate((reference, now)):
        for row in table.used:
            digest = row.get("settings_digest", "") if identity(row) in ambiguous else ""
            found[side][*identity(row), digest].append(row)
    return dict(found[0]), dict(found[1])


def names(identities: Iterable[Identity], columns: Sequence[str]) -> dict[Identity, str]:
    """A name for each point: parallelism, ranks, nodes, and the columns that tell several apart."""
    identities = list(dict.fromkeys(identities))
    telling = [
        i for i, name in enumerate(columns)
        if name not in {*CALLED_BY, *IMPLIED} and len({identity[i] for identity in identities}) > 1
    ]  # fmt: skip
    named = {}
    for identity in identities:
        row = dict(zip(columns, identity, strict=False))
        parts = [
            f"{row['parallelism'] or row['model']}, {counted(row['ranks'], 'rank')} on {counted(row['nodes'], 'node')}"
        ]
        parts += [f"{columns[i]}={identity[i]}" for i in telling if identity[i]]
        parts += [f"settings {identity[-1]}"] if identity[-1] else []
        named[identity] = ", ".join(parts)
    return named


def counted(count: str, noun: str) -> str:
    """A count, as text, with its noun."""
    return f"{count} {noun}" if count == "1" else f"{count} {noun}s"


def why_missing(identity: Identity, columns: Sequence[str], after: Iterable[Identity], now: ReferenceFile) -> str:
    """Why a point of the reference was not measured: its run failed, or the nearest one is another."""
    named = [(i, name) for i, name in enumerate(columns) if name not in DEVICE]
    for row in now.rows:
        if row not in now.used and all(row[name] == identity[i] for i, name in named):
            return f"{row['name']}: {row['not_used_because'] or row.get('loss_doubt')}"
    others = list(after)
    if not others:
        return "no run can be used"

    def between(other: Identity) -> list[str]:
        named = [(name, i) for i, name in enumerate((*columns, "settings")) if name not in IMPLIED]
        telling = [(name, i) for name, i in named if other[i] != identity[i]]
        return [f"{name} {other[i] or 'not recorded'}, not {identity[i] or 'not recorded'}" for name, i in telling]

    nearest = min((between(other) for other in others), key=len)
    more = f"; and {len(nearest) - MOST_COLUMNS} more" if len(nearest) > MOST_COLUMNS else ""
    return f"no such run; the nearest has {'; '.join(nearest[:MOST_COLUMNS])}{more}"


# --- judging ---------------------------------------------------------------------------------------------------


def checked(rows: Sequence[RunRow]) -> list[Metric]:
    """The metrics of a point that the reference has, of rates the first one."""
    known = [metric for metric in CHECKED if spread_of(metric, rows)]
    rate = next((metric for metric in known if metric in RATES), None)
    # Of logs nobody knows whether they must reach the same loss: neither the data nor its order is told.
    same_data = all(row.get("data", "unknown to this file") for row in rows)
    return [
        metric
        for metric in known
        if metric is rate or (metric not in RATES and (same_data or metric is not m.FINAL_LOSS))
    ]


def check_of(point: str, metric: Metric, before: Sequence[RunRow], after: Sequence[RunRow], tolerance: float) -> Check:
    """One metric of a point that both have, medians over repeats."""
    reference, now = spread_of(metric, before), spread_of(metric, after)
    if reference is None:
        return Check(point, Verdict.unjudged, metric, None, now, f"the reference holds no {metric.name}")
    if now is None:
        return Check(point, Verdict.missing, metric, reference, None, f"no run recorded {metric.name}")
    verdict = judged(metric, reference.median, now.median, tolerance)
    said = [f"n = {reference.n} and {now.n}"]
    widest = max((each.high - each.low) / each.median if each.median > 0 else 0.0 for each in (reference, now))
    if metric is not m.FINAL_LOSS and widest > tolerance:
        said.append(f"repeats spread over {widest:.0%}, more than the tolerance: chance may decide")
    if other_settings(before, after):
        said.append("settings that no column shows are not all the same")
    return Check(point, verdict, metric, reference, now, "; ".join(said))


def spread_of(metric: Metric, rows: Sequence[RunRow]) -> Spread | None:
    """A metric over repeats; None where no row has it."""
    values = [float(row[metric.name]) for row in rows if row.get(metric.name)]
    return Spread.of(values) if values else None


def judged(metric: Metric, before: float, now: float, tolerance: float) -> Verdict:
    """Better and worse by the metric's direction, beyond a share of the reference; of the loss any departure."""
    change = (now - before) / max(abs(before), sys.float_info.min)
    if metric is m.FINAL_LOSS:
        return Verdict.other_loss if abs(change) > FINAL_LOSS_TOLERANCE else Verdict.passed
    gain = change if metric.better is Better.high else -change
    # A change that is the tolerance to the last digit passes.
    if abs(gain) <= tolerance * (1 + 1e-9):
        return Verdict.passed
    return Verdict.better if gain > 0 else Verdict.worse


def other_settings(before: Sequence[RunRow], after: Sequence[RunRow]) -> bool:
    """Whether the settings are known to be others although all columns are equal."""
    of_both = [{row["settings_digest"] for row in rows if row.get("settings_digest")} for rows in (before, after)]
    return all(of_both) and of_both[0] != of_both[1]
