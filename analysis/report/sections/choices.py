"""The worth of each swept choice: its sentence of the headline, and a table of all comparisons."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence

from analysis.compare.choices import TASKS, Comparison
from analysis.compare.core import clauses
from analysis.formatting import ABSENT, per_second, significant
from analysis.report.digest import Digest
from analysis.report.figures.style import Section, word_of
from analysis.scaling.groups import Point

MOST_CHOICES, MOST_PLACES = 2, 3
DIGITS = 3
OPEN = ", noise cannot be ruled out"


def choice_headlines(digest: Digest) -> list[str]:
    """Return one sentence on the best value of each choice that leaves the task as it is; none without any."""
    by_choice: dict[str, list[Comparison]] = defaultdict(list)
    for each in digest.comparisons:
        if each.choice not in TASKS:
            by_choice[each.choice].append(each)
    best = [best_value(own) for own in by_choice.values()]
    # Those that differ, and most, come first.
    ranked = sorted(best, key=lambda own: (not any(each.differs for each in own), -abs(math.log(mean(own)))))
    return [f"On equal ranks, {clauses([clause(own) for own in ranked], MOST_CHOICES)}."] if ranked else []


def best_value(own: Sequence[Comparison]) -> list[Comparison]:
    """Return the comparisons of the value and reference of a choice with the highest mean ratio."""
    values: dict[tuple[str, str], list[Comparison]] = defaultdict(list)
    for each in own:
        values[each.value, each.against].append(each)
    return max(values.values(), key=mean)


def mean(own: Sequence[Comparison]) -> float:
    """Return the geometric mean of ratios."""
    return statistics.geometric_mean(each.ratio.middle for each in own)


def clause(own: Sequence[Comparison]) -> str:
    """Return a clause: `network=roce is 1.14 (8b) and 2.11 (70b) times as fast as tcp on 2 nodes (one run each)`."""
    first, places = own[0], {each.point.place for each in own}
    where = f" on {first.point.place}" if len(places) == 1 else ""
    names = apart([f"{each.where}, {each.point.place}" for each in own])
    notes = [repeats_of([point for each in own for point in (each.point, each.reference)]), *interval_words(own)]
    if len(own) > MOST_PLACES:
        ranked = sorted(own, key=lambda each: each.ratio.middle)
        ratios = " to ".join(dict.fromkeys((times(ranked[0]), times(ranked[-1]))))
        where = f" in {len(own)} pairs of points"
    elif len(own) > 1:
        each_in_words = [f"{times(each)} ({name}{unlike(each)})" for each, name in zip(own, names, strict=True)]
        ratios = f"{', '.join(each_in_words[:-1])} and {each_in_words[-1]}"
    else:
        ratios = times(first)
    if all(each.is_open for each in own):
        ratios, notes = ratios.replace(OPEN, ""), [*notes, OPEN.removeprefix(", ")]
    elif not any(each.differs for each in own):
        notes = [f"ratio {ratios.replace(unlike(first), '')}", *notes]
        return f"{named(first)} cannot be distinguished from {first.against}{where} ({', '.join(notes)})"
    return f"{named(first)} is {ratios} times as fast as {first.against}{where} ({', '.join(notes)})"


def unlike(each: Comparison) -> str:
    """Return the words for points that cannot be distinguished; empty for others."""
    return "" if each.differs else OPEN if each.is_open else ", not distinguishable"


def named(each: Comparison) -> str:
    """Return a choice with its value: `network=roce`, `parallelism tensor=2` where it is a setting of a section."""
    return f"{each.choice}{' ' if '=' in each.value else '='}{each.value}"


def times(each: Comparison) -> str:
    """Return a ratio with three digits."""
    return significant(each.ratio.middle, DIGITS)


def interval_words(own: Sequence[Comparison]) -> list[str]:
    """Return the interval of a single comparison, if it has one."""
    interval = own[0].ratio.interval if len(own) == 1 else None
    return [f"95 % interval {' to '.join(significant(end, DIGITS) for end in interval)}"] if interval else []


def apart(texts: Sequence[str]) -> list[str]:
    """Return texts without the words at their beginning and end that all of them share."""
    words = [text.split() for text in texts]
    head = next((i for i, each in enumerate(zip(*words, strict=False)) if len(set(each)) > 1), 0)
    cut = [each[head:] for each in words]
    tail = next((i for i, each in enumerate(zip(*map(reversed, cut), strict=False)) if len(set(each)) > 1), 0)
    return [" ".join(each[: len(each) - tail]).rstrip(",") for each in cut]


def repeats_of(points: Sequence[Point]) -> str:
    """Return the number of runs behind points: `n = 1`, `n = 1 to 3`."""
    counts = sorted({point.throughput.n for point in points})
    return f"n = {counts[0]}" if len(counts) == 1 else f"n = {counts[0]} to {counts[-1]}"


def choice_section(digest: Digest) -> Section | None:
    """Return a row for each comparison; None without any."""
    found = digest.comparisons
    if not found:
        return None
    rows = [
        [
            named(each),
            each.against,
            f"{each.where}, {each.point.place}",
            f"{each.ratio.n[1]:,} and {each.ratio.n[0]:,}",
            per_second(each.point.rate),
            times(each),
            span_words(each),
        ]
        for each in found
    ]
    note = (
        f"{word_of(run for each in found for run in each.point.runs)}: the rate with a value divided by that with "
        "another one, at two points on equal ranks and nodes that differ in this choice alone, so far as the runs "
        "recorded their settings. Numbers are compared with the smallest, names with the slowest over all sets of "
        "points. What follows from a choice changes with it: the settings that its name stands for, the micro-batch "
        "of a global batch, the weights of a model. Interval: Welch's t interval of the ratio from 3 repeats of both "
        "on; with fewer, the smallest and the largest ratio of any two repeats."
    )
    headings = ("Choice", "Against", "At", "n", "Rate", "Times as fast", "Interval")
    return Section("What each choice is worth", note, headings, rows)


def span_words(each: Comparison) -> str:
    """Return the interval or range of a ratio, and if its points cannot be told apart."""
    ratio = each.ratio
    low, high = (significant(end, DIGITS) for end in ratio.interval or (ratio.low, ratio.high))
    span = f"95 % interval {low} to {high}" if ratio.interval else f"{low} to {high}" if low != high else ""
    alone = "one run each, compared by their steps" if max(ratio.n) == 1 and not each.is_open else ""
    return "; ".join(filter(None, (span, alone, unlike(each).removeprefix(", ")))) or ABSENT
