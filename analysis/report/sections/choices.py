"""The worth of each swept choice: its sentence of the headline, and a table of all comparisons."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence

from analysis.compare.choices import TASKS, Comparison
from analysis.compare.core import clauses
from analysis.formatting import ABSENT, per_second, significant, within_sentence, without_unit
from analysis.report.digest import Digest
from analysis.report.figures.style import Section, word_of
from analysis.scaling.groups import Point
from jobs.metrics import Metric

MOST_CHOICES, MOST_COUNTERS, MOST_PLACES = 2, 3, 3
DIGITS = 3
OPEN = ", noise cannot be ruled out"


def choice_headlines(digest: Digest) -> list[str]:
    """Return one sentence on the best value of each choice that leaves the task as it is; none without any."""
    by_choice: dict[tuple[str, Metric | None], list[Comparison]] = defaultdict(list)
    for each in digest.comparisons:
        if each.choice not in TASKS:
            by_choice[each.choice, each.point.rate if each.is_counter else None].append(each)
    best = [best_value(own) for own in by_choice.values()]
    # Those that differ, and most, come first.
    ranked = sorted(best, key=lambda own: (not any(each.differs for each in own), -abs(math.log(mean(own)))))
    rates = [clause(own) for own in ranked if not own[0].is_counter]
    counters = [counter_clause(own) for own in ranked if own[0].is_counter]
    return [
        *([f"On equal ranks, {clauses(rates, MOST_CHOICES)}."] if rates else []),
        *([f"By the side files, {clauses(counters, MOST_COUNTERS)}."] if counters else []),
    ]


def best_value(own: Sequence[Comparison]) -> list[Comparison]:
    """Return the comparisons of the value and reference of a choice with the highest mean ratio."""
    values: dict[tuple[str, str], list[Comparison]] = defaultdict(list)
    for each in own:
        values[each.value, each.against].append(each)
    return (min if own[0].is_counter else max)(values.values(), key=mean)


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


def counter_clause(own: Sequence[Comparison]) -> str:
    """Return a clause: `images.storage=8 nodes takes 41 % less CPU than 4 nodes on 2 nodes (n = 1)`."""
    first, changes = own[0], [less(each) for each in own]
    where = f" on {first.point.place}" if len({each.point.place for each in own}) == 1 else ""
    shown = f"{changes[0]} to {changes[-1]}" if len(own) > 1 else changes[0]
    notes = [repeats_of([point for each in own for point in (each.point, each.reference)]), *interval_words(own)]
    notes += [unlike(first).removeprefix(", ")] if not any(each.differs for each in own) else []
    what = f"{shown} {within_sentence(first.point.rate)}"
    return f"{named(first)} takes {what} than {first.against}{where} ({', '.join(notes)})"


def less(each: Comparison) -> str:
    """Return the change of a counter: `41 % less`, `2 % more`."""
    change = each.ratio.middle - 1
    return f"{significant(100 * abs(change), DIGITS)} % {'less' if change < 0 else 'more'}"


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
            without_unit(each.point.rate) if each.is_counter else per_second(each.point.rate),
            times(each),
            span_words(each),
        ]
        for each in found
    ]
    note = (
        f"{word_of(run for each in found for run in each.point.runs)}: the rate with a value divided by that with "
        "another one (a counter of a side file likewise: below 1 is less), at two points on "
        "equal ranks and nodes that differ in this choice alone, so far as the runs "
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
