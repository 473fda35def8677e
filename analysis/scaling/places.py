"""The one rule by which points differ: behind "fastest", places, "n times the lowest" and the gain of a line.

A point spans the rates that its runs leave open:

* from six repeats on, the confidence interval of their median by order statistics (`Spread.interval`);
* with fewer repeats, everything from the lowest to the highest end of its runs' own spans;
* the span of one run is its rate over that of the median of its steady step times, in up to ten blocks of neighbouring
  steps: their interval by order statistics, from the smallest to the largest block below six blocks.

Order statistics assume no distribution, only that repeats (and blocks of steps) are independent. Two points differ if
their spans do not overlap, which is stricter than a test at 5 %. A single run without enough steps spans everything.
The steps of one run do not show how much another run would differ, so words for n = 1 say that it is one run.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Sequence
from weakref import WeakKeyDictionary

import numpy as np

from analysis.intervals import CONFIDENCE, FEWEST_FOR_MEDIAN, Spread
from analysis.run import RunResult
from analysis.scaling.groups import Point

# Neighbouring steps are alike; blocks of them are less so (as in analysis.metrics.step_variation).
MOST_BLOCKS = 10
FEWEST_STEPS = 4
# Rates that differ by rounding are equal.
ROUNDING = 1e-9
RULE = (
    f"Two points differ if their spans do not overlap. The span of a point is the {100 * CONFIDENCE:.0f} % interval of "
    f"its median from {FEWEST_FOR_MEDIAN} repeats on; with fewer, the range of its repeats, each with the interval of "
    f"the median of its own steps (up to {MOST_BLOCKS} blocks of neighbouring steps; {FEWEST_STEPS} steps at least). "
    "Intervals are by order statistics: they assume no distribution, but that repeats and blocks are independent. The "
    "steps of one run do not show how far from it another run would be."
)
Span = tuple[float, float]
EVERYTHING: Span = (0.0, math.inf)
SPANS: WeakKeyDictionary[Point, Span] = WeakKeyDictionary()
"""The spans of the points of the reports that are being made."""


def span(point: Point) -> Span:
    """Return the rates that the runs of a point leave open; EVERYTHING if a single run has too few steps.

    Each point is compared with many, and its span takes medians over all of its steps, so it is computed once.
    """
    if point not in SPANS:
        SPANS[point] = point.throughput.interval or around_runs(point)
    return SPANS[point]


def around_runs(point: Point) -> Span:
    """Return the range from the lowest to the highest end of the spans of a point's runs."""
    rates = [(run, run.values[point.rate]) for run in point.runs]
    spans = [span_of_run(*each) or (EVERYTHING if len(rates) == 1 else (each[1], each[1])) for each in rates]
    return min(low for low, _ in spans), max(high for _, high in spans)


def span_of_run(run: RunResult, rate: float) -> Span | None:
    """Return the rate of a run over the interval of the median of its steps; None with too few steps."""
    times_s = [run.step_times_s[step] for step in sorted(run.step_times_s)]
    if len(times_s) < FEWEST_STEPS or min(times_s) <= 0:
        return None
    blocks = np.array_split(np.array(times_s), min(len(times_s), MOST_BLOCKS))
    spread = Spread.of([float(np.median(block)) for block in blocks])
    low_s, high_s = spread.interval or (spread.low, spread.high)
    return rate * spread.median / high_s, rate * spread.median / low_s


def is_above(one: Span, other: Span) -> bool:
    """Return True if a span lies above another one."""
    return one[0] > other[1] * (1 + ROUNDING)


def differ(one: Point, other: Point) -> bool:
    """Return True if two points, whose rates have the same unit, can be distinguished."""
    spans = span(one), span(other)
    return is_above(*spans) or is_above(*reversed(spans))


def highest(points: Iterable[Point]) -> Point | None:
    """Return the believed point with the highest median rate; None if there is none."""
    return max((point for point in points if not point.doubtful), key=lambda each: each.throughput.median, default=None)


def rivals(point: Point, points: Sequence[Point]) -> list[Point]:
    """Return the other believed points of the same unit that cannot be distinguished from a point."""
    return [each for each in comparable(point, points) if each != point and not differ(point, each)]


def comparable(point: Point, points: Iterable[Point]) -> list[Point]:
    """Return the believed points whose rate has the unit of a point, each once: lines may share one (identity)."""
    return [each for each in dict.fromkeys(points) if not each.doubtful and each.rate is point.rate]


def places(points: Sequence[Point]) -> list[tuple[int, int]]:
    """Return the best and the worst place that each of these points of one unit can have; the highest rate is first."""
    spans = [span(point) for point in points]
    lows, highs = (sorted(each[end] for each in spans) for end in (0, 1))
    found = []
    for low, high in spans:
        above = len(spans) - bisect.bisect_right(lows, high * (1 + ROUNDING))
        below = bisect.bisect_left(highs, low / (1 + ROUNDING))
        found.append((1 + above, len(spans) - below))
    return found
