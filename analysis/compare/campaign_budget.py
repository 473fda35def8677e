"""The rest of a campaign's budget, and the number of further attempts that it pays for."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from analysis.compare.campaign import part_of
from analysis.formatting import plural
from analysis.intervals import FEWEST_FOR_MEAN
from analysis.metrics.cost import node_hours_so_far
from analysis.run import RunResult
from analysis.untrusted import as_number
from jobs.rundir import BASELINE, NOISE_FLOOR, SweepDir
from jobs.schema import Budget
from jobs.submit.sweeps.submissions import latest_submissions

ATTEMPTS, NODE_HOURS, SERVICE_UNITS = LIMITS = tuple(each.name for each in fields(Budget))


@dataclass(frozen=True)
class Account:
    """The use of one limit of a budget."""

    key: str
    """ATTEMPTS, NODE_HOURS or SERVICE_UNITS."""
    limit: float
    used: float
    of_a_run: float | None = None
    """Median of the runs that finished; None if none did, and for attempts."""

    @property
    def left(self) -> float:
        """The rest; negative if more was used."""
        return self.limit - self.used

    @property
    def words(self) -> str:
        """The rest and the pairs that it pays for, as a clause."""
        name = self.key.replace("_", " ").replace("node hours", "node-hours")
        left = f"{max(0.0, self.left):,.3g} of {self.limit:,.10g} {name} are left"
        if not self.of_a_run:
            return left
        pairs = max(0, int(self.left / (2 * self.of_a_run)))
        return (
            f"{left}, for {plural(pairs, 'more pair')} of runs ({self.of_a_run:,.3g} each, the median of those that "
            f"finished), or {plural(pairs // FEWEST_FOR_MEAN, 'attempt')} of "
            f"{FEWEST_FOR_MEAN} pairs"
        )


def accounts(runs: Sequence[RunResult], stated: Iterable[Mapping[str, float | None]] = ()) -> list[Account]:
    """Return the use of each limit of a campaign's budget, by all of its runs; empty without a budget.

    The highest limit with which its runs were submitted holds, or a higher one that is `stated` for further runs.
    """
    found: dict[str, list[float]] = {key: [] for key in LIMITS}
    for key, known in found.items():
        on_disk = (as_number(run.setting(f"budget.{key}")) for run in runs)
        known += [limit for limit in (*on_disk, *(each.get(key) for each in stated)) if limit is not None]
    return [account(key, max(known), runs) for key, known in found.items() if known]


def account(key: str, limit: float, runs: Sequence[RunResult]) -> Account:
    """Return the use of a limit by the runs of a campaign; one that waits counts like those that finished."""
    if key == ATTEMPTS:
        return Account(key, limit, len(attempts(runs)))
    costs = {run.path: node_hours_so_far(run) * price_of(key, run) for run in runs}
    finished = [costs[run.path] for run in runs if run.used]
    of_a_run = statistics.median(finished) if finished else None
    return Account(key, limit, sum(costs.values()) + waiting(runs) * (of_a_run or 0.0), of_a_run)


def waiting(runs: Iterable[RunResult]) -> int:
    """Return the number of runs that were submitted, not cancelled, and have not begun."""
    names: dict[Path, list[str]] = defaultdict(list)
    for run in runs:
        if run.state == "not started":
            names[run.path.parent].append(run.path.name)
    latest = {folder: latest_submissions(SweepDir(folder)) for folder in names}
    found = (latest[folder].get(name) for folder, its in names.items() for name in its)
    return sum(each is not None and not each.cancelled for each in found)


def price_of(key: str, run: RunResult) -> float:
    """Return the price of a node-hour in the unit of a limit."""
    if key == NODE_HOURS:
        return 1.0
    return as_number(run.setting("cluster.service_units_per_node_hour")) or 0.0


def attempts(runs: Iterable[RunResult]) -> set[str]:
    """Return the names of a campaign's attempts."""
    return {str(part["name"]) for run in runs if (part := part_of(run)) is not None} - {BASELINE, NOISE_FLOOR}
