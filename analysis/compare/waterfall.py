"""From the baseline of a campaign to its best attempt, one change after the other: what each change gained.

The attempts of the way are those of the campaign whose changes are among the best one's. The gain of the first is its
ratio to the baseline; that of each later one is its ratio divided by the ratio of the one before, so that all gains
together make the ratio of the best.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from analysis.compare.campaign import Entry, Leaderboard, Verdict, changes
from analysis.intervals import paired_interval, welch_interval


@dataclass(frozen=True)
class Stage:
    """An attempt on the way from the baseline to the best."""

    entry: Entry
    total: float
    """Its ratio to the baseline."""
    changes: Sequence[str]
    """Its changes against the stage before."""
    gain: float
    """Its ratio to the stage before."""
    interval: tuple[float, float] | None
    """Interval of the gain; None with too few pairs."""


def stages(board: Leaderboard) -> list[Stage]:
    """Return the way to the best attempt of full length in its order; empty unless it has two stages or more."""
    entries = [entry for entry in board.entries if entry.trial.proxy is None]
    best = next((entry for entry in entries if entry.rank == 1 and entry.verdict is Verdict.faster), None)
    if best is None or board.baseline is None:
        return []
    baseline = board.baseline.run
    counted = {
        entry.trial.name: frozenset(changes(entry.trial.first, baseline))
        for entry in entries
        if entry.ratio and entry.verdict is not Verdict.invalid
    }
    by_name = {entry.trial.name: entry for entry in entries}
    way = [best]
    while inner := [name for name, changed in counted.items() if changed and changed < counted[way[0].trial.name]]:
        # The largest set of changes; of two that are as large, the one that gained more.
        way.insert(0, by_name[max(inner, key=lambda name: (len(counted[name]), total_of(by_name[name])))])
    found: list[Stage] = []
    before: Entry | None = None
    for entry in way:
        own, old = counted[entry.trial.name], counted[before.trial.name] if before else set[str]()
        gain = total_of(entry) / total_of(before)
        alone = entry.interval if entry.trial.sequence else paired_interval(entry.ratios)
        interval = welch_interval(before.ratios, entry.ratios) if before else alone
        found.append(Stage(entry, total_of(entry), sorted(own - old), gain, interval))
        before = entry
    return found if len(found) > 1 else []


def total_of(entry: Entry | None) -> float:
    """Return the ratio of an attempt to the baseline; 1 for the baseline itself."""
    return entry.ratio.middle if entry is not None and entry.ratio is not None else 1.0
