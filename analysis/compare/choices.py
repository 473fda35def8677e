"""The worth of each swept choice: the ratio of two points on equal ranks and nodes that differ in this choice alone.

A choice is a key, or the keys that change together with it: those of a section that has a name, unless an override
sets them; the micro-batch that follows from the global batch; FOLLOWERS. Numbers are compared with the smallest of the
choice, names with the one that is slowest over all sets of points, or has the most of
a counter of another machine. Campaigns and tunings compare their own choices.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from analysis.compare.campaign import part_of
from analysis.compare.core import Ratio
from analysis.identity import BETWEEN_NODES, batch, compared, place, without_network
from analysis.metrics.side_files import SideRecord, is_counter, with_counters
from analysis.parsers import log_metrics as a
from analysis.run import RunResult
from analysis.scaling.groups import (
    BATCHES,
    FOLLOWERS,
    MICRO_BATCH,
    NAMING,
    Group,
    Point,
    differing_keys,
    distinct_labels,
    printed,
)
from analysis.scaling.places import EVERYTHING, differ, span
from analysis.scaling.serving import LoadLine, configuration
from analysis.untrusted import as_list, canonical, printed_number
from jobs import metrics as m

ACCUMULATION = "accumulation"
# Choices that make another task: its rates are of other work.
TASKS = frozenset({"model", "data", "job.sequence_length"})
NAMES_OF_LINES = frozenset({"model.name", "engine.kind", "parallelism.name"})
LOAD_RATES = (a.OUTPUT_TOKENS_PER_S, a.REQUESTS_PER_S)
LOAD_KEYS = {a.CONCURRENCY: "serving.concurrency", a.OFFERED_REQUESTS_PER_S: "serving.requests_per_s"}
TESTED_RATES = (
    *m.CHECKPOINT_IO_RATES.values(),
    *(rate for (_, unit), rate in m.DATA_READ_RATES.items() if unit == "bytes"),
    m.FIO_BANDWIDTH,
)
Settings = Mapping[str, Any]
Measured = tuple[Point, Settings]
"""A point, and the settings by which it is compared."""


@dataclass(frozen=True)
class Comparison:
    """A value of a choice against another one, at two points that differ in nothing else."""

    choice: str
    """The key, or the section: `network`."""
    value: str
    against: str
    where: str
    """The other settings, so far as they differ between comparisons: `llama31_8b zero3`."""
    point: Point
    reference: Point

    @cached_property
    def ratio(self) -> Ratio:
        """The rate with the value divided by that of the reference."""
        own, other = ([run.values[each.rate] for run in each.runs] for each in (self.point, self.reference))
        return Ratio.of_sides(other, own)

    @property
    def differs(self) -> bool:
        """Return True if the two points can be distinguished (analysis.scaling.places)."""
        return differ(self.point, self.reference)

    @property
    def is_counter(self) -> bool:
        """Return True if it compares a counter of another machine, of which less is better, and no rate."""
        return is_counter(self.point.rate)

    @property
    def is_open(self) -> bool:
        """Return True if nothing is known of the noise: a point is one run without step times."""
        return EVERYTHING in (span(self.point), span(self.reference))


def comparisons(
    groups: Iterable[Group], loads: Iterable[LoadLine], tested: Iterable[RunResult], sides: Iterable[SideRecord] = ()
) -> list[Comparison]:
    """Return the comparisons of all choices, by choice and value, each pair of points once."""
    rates, counters = [*of_trainings(groups), *of_loads(loads), *of_tests(tested)], of_sides(sides)
    return [each for measured in (rates, counters) for each in of_points(only_differing(measured))]


def of_points(measured: Sequence[Measured]) -> list[Comparison]:
    """Return the comparisons of points of rates or of counters."""
    seen: set[frozenset[Point]] = set()
    found = []
    for choice, keys in choices(measured).items():
        own = [each for each in pairs(choice, keys, measured) if frozenset((each.point, each.reference)) not in seen]
        seen |= {frozenset((each.point, each.reference)) for each in own}
        found += own
    return found


# --- points -----------------------------------------------------------------------------------------------------------


def of_trainings(groups: Iterable[Group]) -> list[Measured]:
    """Return the believed points of lines, each once, without those of campaigns and tunings."""
    points = dict.fromkeys(point for group in groups for point in group.points if not point.doubtful)
    first = {point: point.runs[0] for point in points}
    return [
        (point, settings_of(run))
        for point, run in first.items()
        if part_of(run) is None and run.provenance.get("trial") is None
    ]


def settings_of(run: RunResult) -> dict[str, Any]:
    """Return the settings of a training that choices are among; on one node there is no network between nodes."""
    own = without_network(run) if run.setting("nodes") == 1 else compared(run)
    return own | (batch(run) if run.log else {}) | {ACCUMULATION: run.plan.get(ACCUMULATION)}


def of_loads(lines: Iterable[LoadLine]) -> list[Measured]:
    """Return the believed loads of servers."""
    found: list[Measured] = []
    for line in lines:
        for load in line.points:
            rate = next((each for each in LOAD_RATES if all(each in run.values for run in load.runs)), None)
            if rate is not None and not load.doubtful:
                ranks, nodes = place(load.runs[0])
                # Replicas follow from the ranks and TP x PP.
                settings = {**configuration(load.runs[0]), "replicas": None, LOAD_KEYS[line.axis]: load.load}
                found.append((Point(ranks, nodes or None, load.runs, rate=rate), settings))
    return found


def of_tests(runs: Iterable[RunResult]) -> list[Measured]:
    """Return the runs that measured storage as points of the first rate that they have."""
    repeats: dict[bytes, list[RunResult]] = defaultdict(list)
    for run in runs:
        if rate := next((each for each in TESTED_RATES if each in run.values), None):
            repeats[canonical([compared(run), place(run), rate.name])].append(run)
    return [
        (
            Point(*place(own[0]), tuple(own), rate=next(each for each in TESTED_RATES if each in own[0].values)),
            compared(own[0]),
        )
        for own in repeats.values()
    ]


def of_sides(records: Iterable[SideRecord]) -> list[Measured]:
    """Return a point for each counter of other machines over the repeats of a configuration."""
    records = list(records)
    runs = with_counters(dict.fromkeys(record.run for record in records if record.means), records)
    # The steps of a run do not show how much a filer's counter varies.
    runs = [replace(run, step_times_s={}) for run in runs]
    known = dict.fromkeys(metric for record in records for metric in record.means)
    found: list[Measured] = []
    for metric in known:
        repeats: dict[bytes, list[RunResult]] = defaultdict(list)
        for run in runs:
            if metric in run.values:
                repeats[canonical([settings_of(run), place(run)])].append(run)
        found += [(Point(*place(own[0]), tuple(own), rate=metric), settings_of(own[0])) for own in repeats.values()]
    return found


def only_differing(measured: Sequence[Measured]) -> list[Measured]:
    """Return the points that have a rate, with the settings in which some of them differ, and those that name lines."""
    measured = [each for each in measured if each[0].throughput.low > 0]
    known = {key for _, settings in measured for key in settings}
    values = {key: {str(settings.get(key)) for _, settings in measured} for key in known}
    # Points on one node have no network.
    differing = {key for key in known if len(values[key] - ({"None"} if key in BETWEEN_NODES else set())) > 1}
    kept = sorted(differing | (known & NAMES_OF_LINES))
    return [(point, {key: settings.get(key) for key in kept}) for point, settings in measured]


# --- choices ----------------------------------------------------------------------------------------------------------


def choices(measured: Sequence[Measured]) -> dict[str, frozenset[str]]:
    """Return the keys of each choice: single keys first, then those that change together."""
    keys = {key for _, settings in measured for key in settings} - {ACCUMULATION, "scaling.mode"}
    overrides = {str(each) for point, _ in measured for each in as_list(point.runs[0].provenance.get("overrides"))}
    by_hand = {each.partition("=")[0] for each in overrides}
    named = {key.split(".")[0] for key in keys if key.split(".")[-1] in NAMING}
    differing = set(differing_keys([settings for _, settings in measured]))
    together: dict[str, set[str]] = defaultdict(set)
    for key in keys:
        section = key.split(".")[0]
        follows = [leader for leader, beginnings in FOLLOWERS.items() if key.startswith(beginnings)]
        for leader in follows:
            together[leader].add(key)
        if section in named and (follows or key not in by_hand):
            together[section].add(key)
        if key in BATCHES or (key == MICRO_BATCH and (key not in by_hand or key not in differing)):
            together["global_batch_size"].add(key)
    for leader in FOLLOWERS:
        together[leader] |= {leader} & keys
    whole = {key for section in named for key in together[section]}
    single = {key: frozenset({key}) for key in sorted(keys - whole)}
    return single | {choice: frozenset(own) for choice, own in sorted(together.items()) if own}


def pairs(choice: str, keys: Collection[str], measured: Sequence[Measured]) -> list[Comparison]:
    """Return the comparisons of a choice: within each set of points that differ in its keys alone, with one of them."""
    # A micro-batch follows from the global batch only where their ratio stays.
    apart = set() if choice == "global_batch_size" and MICRO_BATCH in keys else {ACCUMULATION}
    sets: dict[bytes, list[Measured]] = defaultdict(list)
    for point, settings in measured:
        rest = [(key, value) for key, value in settings.items() if key not in {*keys, *apart}]
        sets[canonical([rest, point.ranks, point.nodes, point.rate.name])].append((point, settings))
    alike = [own for own in sets.values() if len(own) > 1]
    every = [own for _, own in measured]
    named = [named_points(members, keys, choice, every) for members in alike]
    order = {name: i for i, name in enumerate(in_order(named))}
    rests = [
        {key: value for key, value in members[0][1].items() if key not in {*keys, ACCUMULATION}} for members in alike
    ]
    found = []
    for members, where in zip(named, distinct_labels(rests), strict=True):
        (against, reference), *others = sorted(members, key=lambda each: order[each[0]])
        found += [
            Comparison(choice, value, against, where, point, reference) for value, point in others if value != against
        ]
    return sorted(found, key=lambda each: (order[each.value], each.where, each.point.ranks))


def named_points(
    members: Sequence[Measured], keys: Collection[str], choice: str, every: Sequence[Settings]
) -> list[tuple[str, Point]]:
    """Return the points of a set with the names of their values of a choice: `roce`, `16`, `tp tensor=2`.

    `every` are the settings of all sets, among which paths are distinct.
    """
    settings = [{key: own[key] for key in keys} for _, own in members]
    differing = differing_keys(settings)
    batches = [key for key in BATCHES if key in differing and all(own[key] is not None for own in settings)]
    leading = [key for key in differing if not key.startswith(FOLLOWERS.get(choice, ()))]
    shown = batches[:1] if choice == "global_batch_size" and batches else leading or differing
    return [
        (" ".join(value_in_words(key, own, every, alone=key in {choice, *batches}) for key in shown), point)
        for (point, _), own in zip(members, settings, strict=True)
    ]


def value_in_words(key: str, own: Settings, every: Sequence[Settings], *, alone: bool) -> str:
    """Return a value, with the last word of its key unless this is the choice or names its section."""
    text, last = printed("none" if own[key] is None else own[key], key, every), key.rpartition(".")[2]
    return text if alone or last in NAMING else f"{last}={text}"


def in_order(sets: Sequence[Sequence[tuple[str, Point]]]) -> list[str]:
    """Return the names of a choice: numbers by size, others by their mean rate relative to that of their set.

    Of a counter the largest comes first, so that others have less of it.
    """
    relative: dict[str, list[float]] = defaultdict(list)
    for members in sets:
        sign = -1 if is_counter(members[0][1].rate) else 1
        logs = [sign * math.log(point.throughput.median) for _, point in members]
        for (name, _), log in zip(members, logs, strict=True):
            relative[name].append(log - statistics.fmean(logs))
    numbers = {name: printed_number(name) for name in relative}
    if None not in numbers.values():
        return sorted(relative, key=lambda name: numbers[name] or 0.0)
    return sorted(relative, key=lambda name: (statistics.fmean(relative[name]), name))
