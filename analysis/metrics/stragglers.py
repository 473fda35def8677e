"""Ranks and nodes that the others wait for, by the own times that a run recorded (`pace` events), or a log tells.

The rule is robust: a few slow steps make no straggler, because a window has the medians of its steps and most windows
must agree; nor does a long time that is short beside the step. Definitions and limits: jobs.metrics.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from analysis.parsers import metrics as a
from analysis.parsers.base import Record, Text
from analysis.parsers.megatron import FASTEST_RANK, SLOWEST_RANK
from analysis.untrusted import as_list, count, number
from jobs import metrics as m
from jobs.metrics import Metric

Ranks = tuple[int, int]
"""The first and the last of consecutive ranks."""


@dataclass(frozen=True)
class Slow:
    """A rank, or a node by its least slow rank, beside the others."""

    node: str | None
    """Not every log tells."""
    own_time_s: float
    others_own_time_s: float
    """Median of the others, or the fastest rank's."""
    share: float
    """Of the step time, how much its own time is longer."""
    by_batch: bool = False
    """Whether more than half of that is getting its batch."""
    beside_fastest: bool = False
    """Whether the others' is the fastest rank's."""

    @property
    def counts(self) -> bool:
        """Whether it is slow, by the rule that jobs.metrics states."""
        limit_s = m.STRAGGLER_TIMES * self.others_own_time_s
        return 0 < limit_s < self.own_time_s and self.share > m.STRAGGLER_SMALLEST_SHARE


@dataclass(frozen=True, kw_only=True)
class Straggler(Slow):
    """One that is slow in most windows; numbers are medians over those in which it is."""

    ranks: Ranks
    """One rank, or the first and last of the node."""
    windows: int
    """In how many it was slow."""


def stragglers(events: Iterable[Mapping[str, Any]], step_times_s: Mapping[int, float]) -> list[Straggler] | None:
    """The stragglers of a run of ours, worst first; None where that was not recorded.

    Counts the windows of the attempt that has the most of them; `step_times_s` by step.
    """
    windows = windows_of(events, step_times_s)
    return often_slow([slow_in(event, step_time_s) for event, step_time_s in windows])


def stragglers_of_log(
    samples: Iterable[Record], settings: Mapping[Metric, float], step_time_s: float | None
) -> list[Straggler] | None:
    """Likewise of a log in which Megatron's detector names the slowest and the fastest rank of every window.

    Ranks of several pipeline stages have not the same to do, and which stage a rank is of no log tells.
    """
    if settings.get(a.PIPELINE_PARALLEL_SIZE) != 1 or not step_time_s:
        return None
    windows: dict[int, dict[str, Record]] = defaultdict(dict)
    for sample in samples:
        if (extreme := sample.texts.get(Text.variant)) in {FASTEST_RANK, SLOWEST_RANK}:
            windows[sample.line][extreme] = sample
    return often_slow([slow_of(told[SLOWEST_RANK], told[FASTEST_RANK], step_time_s) for told in windows.values()])


def often_slow(windows: Sequence[Sequence[tuple[Ranks, Slow]]]) -> list[Straggler] | None:
    """Who is slow in most windows; the ranks of a named node are not named. None of too few windows."""
    if len(windows) < m.STRAGGLER_FEWEST_WINDOWS:
        return None
    slow: dict[Ranks, list[Slow]] = defaultdict(list)
    for window in windows:
        for ranks, found in window:
            slow[ranks].append(found)
    often = {ranks: told for ranks, told in slow.items() if len(told) >= m.STRAGGLER_WINDOWS * len(windows)}
    nodes = [ranks for ranks in often if ranks[0] < ranks[1]]
    named = [named_one(ranks, told) for ranks, told in often.items() if not any(within(ranks, node) for node in nodes)]
    return sorted(named, key=lambda each: (-each.share, each.ranks))


def straggler_share(found: Sequence[Straggler] | None) -> dict[Metric, float]:
    """What stragglers cost a run; nothing where that was not recorded."""
    return {} if found is None else {m.STRAGGLER_SHARE: max((each.share for each in found), default=0.0)}


def windows_of(
    events: Iterable[Mapping[str, Any]], step_times_s: Mapping[int, float]
) -> list[tuple[Mapping[str, Any], float]]:
    """The `pace` events of the attempt with the most, each with the median step time of its steady steps."""
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
    """The ranks and nodes that are slow in a window."""
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
    """The slowest rank of a window of a log, if it is slow beside the fastest one."""
    own_s, others_s = (each.values[a.FORWARD_TIME] for each in (slowest, fastest))
    slow = Slow(None, own_s, others_s, (own_s - others_s) / step_time_s, beside_fastest=True)
    return [((slowest.rank, slowest.rank), slow)] if slow.counts and isinstance(slowest.rank, int) else []


def named_one(ranks: Ranks, told: Sequence[Slow]) -> Straggler:
    """A straggler by the windows in which it was slow."""
    return Straggler(
        node=told[-1].node,
        own_time_s=statistics.median(each.own_time_s for each in told),
        others_own_time_s=statistics.median(each.others_own_time_s for each in told),
        share=statistics.median(each.share for each in told),
        by_batch=2 * sum(each.by_batch for each in told) > len(told),
        beside_fastest=told[-1].beside_fastest,
        ranks=ranks,
        windows=len(told),
    )


def within(ranks: Ranks, node: Ranks) -> bool:
    """Whether these ranks are some of a node's, not all of them."""
    return ranks != node and node[0] <= ranks[0] and ranks[1] <= node[1]
