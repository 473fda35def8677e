"""Stragglers: ranks and nodes that the others wait for, by the own times in `pace` events or in a log.

The rule is robust: a few slow steps make no straggler, because a window has the medians of its steps and most windows
must agree. Differences that are small compared with the step time do not count. Definitions and limits: jobs.metrics.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Record, Text
from analysis.parsers.trainings.megatron import FASTEST_RANK, SLOWEST_RANK
from analysis.untrusted import as_list, count, number
from jobs import metrics as m
from jobs.metrics import Metric

Ranks = tuple[int, int]
"""The first and the last of consecutive ranks."""


@dataclass(frozen=True)
class Slow:
    """A rank, or a node by its least slow rank, compared with the others."""

    node: str | None
    """None if the log does not report it."""
    own_time_s: float
    others_own_time_s: float
    """Median of the others, or the fastest rank's."""
    share: float
    """Excess of its own time over the others', as a share of the step time."""
    by_batch: bool = False
    """True if loading its batch takes more than half of the excess."""
    beside_fastest: bool = False
    """True if `others_own_time_s` is the fastest rank's."""

    @property
    def counts(self) -> bool:
        """Return True if it is slow by the rule in jobs.metrics."""
        limit_s = m.STRAGGLER_TIMES * self.others_own_time_s
        return 0 < limit_s < self.own_time_s and self.share > m.STRAGGLER_SMALLEST_SHARE


@dataclass(frozen=True, kw_only=True)
class Straggler(Slow):
    """A rank or node that is slow in most windows; numbers are medians over the windows in which it is slow."""

    ranks: Ranks
    """One rank, or the first and last of the node."""
    windows: int
    """Number of windows in which it was slow."""


def stragglers(events: Iterable[Mapping[str, Any]], step_times_s: Mapping[int, float]) -> list[Straggler] | None:
    """Return the stragglers of a run of ours, worst first; None if own times were not recorded.

    Count the windows of the attempt with the most windows; `step_times_s` by step.
    """
    windows = windows_of(events, step_times_s)
    return often_slow([slow_in(event, step_time_s) for event, step_time_s in windows])


def stragglers_of_log(
    samples: Iterable[Record], settings: Mapping[Metric, float], step_time_s: float | None
) -> list[Straggler] | None:
    """Return the stragglers of a log in which Megatron's detector names the slowest and fastest rank of every window.

    None with several pipeline stages: their work differs, and no log reports the stage of a rank.
    """
    if settings.get(a.PIPELINE_PARALLEL_SIZE) != 1 or not step_time_s:
        return None
    windows: dict[int, dict[str, Record]] = defaultdict(dict)
    for sample in samples:
        if (extreme := sample.texts.get(Text.variant)) in {FASTEST_RANK, SLOWEST_RANK}:
            windows[sample.line][extreme] = sample
    return often_slow([slow_of(found[SLOWEST_RANK], found[FASTEST_RANK], step_time_s) for found in windows.values()])


def often_slow(windows: Sequence[Sequence[tuple[Ranks, Slow]]]) -> list[Straggler] | None:
    """Return ranks and nodes that are slow in most windows, without ranks of listed nodes; None for few windows."""
    if len(windows) < m.STRAGGLER_FEWEST_WINDOWS:
        return None
    slow: dict[Ranks, list[Slow]] = defaultdict(list)
    for window in windows:
        for ranks, found in window:
            slow[ranks].append(found)
    often = {ranks: found for ranks, found in slow.items() if len(found) >= m.STRAGGLER_WINDOWS * len(windows)}
    nodes = [ranks for ranks in often if ranks[0] < ranks[1]]
    named = [
        named_one(ranks, found) for ranks, found in often.items() if not any(within(ranks, node) for node in nodes)
    ]
    return sorted(named, key=lambda each: (-each.share, each.ranks))


def straggler_share(found: Sequence[Straggler] | None) -> dict[Metric, float]:
    """Return the cost of stragglers to a run; empty if own times were not recorded."""
    return {} if found is None else {m.STRAGGLER_SHARE: max((each.share for each in found), default=0.0)}


def windows_of(
    events: Iterable[Mapping[str, Any]], step_times_s: Mapping[int, float]
) -> list[tuple[Mapping[str, Any], float]]:
    """Return the `pace` events of the attempt with the most, each with the median step time of its steady steps."""
    attempts: dict[int | None, list[tuple[Mapping[str, Any], float]]] = defaultdict(list)
    for event in events:
        last, steps = count(event, "step"), count(event, "steps")
        if event["event"] != "pace" or last is None or steps is None:
            continue
        times_s = [step_times_s[step] for step in range(last - steps + 1, last + 1) if step in step_times_s]
        if times_s:
            attempts[count(event, m.ATTEMPT.name)].append((event, statistics.median(times_s)))
    return max(attempts.values(), key=len, default=[])


def slow_in(event: Mapping[str, Any], step_time_s: float) -> list[tuple[Ranks, Slow]]:
    """Return the ranks and nodes that are slow in a window."""
    fastest = event.get("fastest")
    least_batch_s = number(fastest, m.BATCH_TIME) if isinstance(fastest, Mapping) else None
    found = []
    for entry in as_list(event.get("slowest_ranks")) + as_list(event.get("slowest_nodes")):
        if not isinstance(entry, Mapping):
            continue
        own_s, others_s, batch_s = (number(entry, each) for each in (m.OWN_TIME, m.OTHERS_OWN_TIME, m.BATCH_TIME))
        first, last = count(entry, "first_rank"), count(entry, "last_rank")
        if first is None or last is None:
            first = last = count(entry, "rank")
        if own_s is None or others_s is None or first is None or last is None:
            continue
        slow = Slow(str(entry.get("node")), own_s, others_s, (own_s - others_s) / step_time_s)
        if slow.counts:
            by_batch = (batch_s or 0.0) - (least_batch_s or 0.0) > (own_s - others_s) / 2
            found.append(((first, last), replace(slow, by_batch=by_batch)))
    return found


def slow_of(slowest: Record, fastest: Record, step_time_s: float) -> list[tuple[Ranks, Slow]]:
    """Return the slowest rank of a window of a log, if it is slow compared with the fastest one."""
    own_s, others_s = (each.values[a.FORWARD_TIME] for each in (slowest, fastest))
    slow = Slow(None, own_s, others_s, (own_s - others_s) / step_time_s, beside_fastest=True)
    return [((slowest.rank, slowest.rank), slow)] if slow.counts and isinstance(slowest.rank, int) else []


def named_one(ranks: Ranks, windows: Sequence[Slow]) -> Straggler:
    """Return a straggler from the windows in which it was slow."""
    return Straggler(
        node=windows[-1].node,
        own_time_s=statistics.median(each.own_time_s for each in windows),
        others_own_time_s=statistics.median(each.others_own_time_s for each in windows),
        share=statistics.median(each.share for each in windows),
        by_batch=2 * sum(each.by_batch for each in windows) > len(windows),
        beside_fastest=windows[-1].beside_fastest,
        ranks=ranks,
        windows=len(windows),
    )


def within(ranks: Ranks, node: Ranks) -> bool:
    """Return True if these ranks are some of a node's, not all of them."""
    return ranks != node and node[0] <= ranks[0] and ranks[1] <= node[1]
