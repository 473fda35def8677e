"""Intervals of a mean over pairs that hold at every look together, so that one may stop as soon as they decide.

A group-sequential t test that looks after every pair and has no last look. Its error is spent by a function of the
number of pairs (Lan and DeMets, Biometrika 70, 1983); the intervals are repeated confidence intervals (Jennison and
Turnbull, J. R. Stat. Soc. B 51, 1989). Because the function does not depend on a largest number of pairs, more pairs
may follow at any time and the intervals of those before stay as they were.

The critical values are exact for normal differences of unknown variance, by recursive integration (Armitage,
McPherson and Rowe, J. R. Stat. Soc. A 132, 1969). State of the recursion: r = S / sqrt(Q), the sum over the root of
the sum of squares of n differences. With y = x / sqrt(Q) of the next one, r' = (r + y) / sqrt(1 + y^2); if the mean is
0, sqrt(n) y has Student's t distribution with n degrees of freedom and is independent of all r before (Basu), so r is a
Markov chain whatever the variance.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import stdtr

from analysis.intervals import FEWEST_FOR_MEAN

Values = NDArray[np.float64]
# Share of the error that is spent by look j, the first of which has FEWEST_FOR_MEAN pairs: 1 - (j + 1)^-SPENDING.
# Chosen by tests.benchmarks.referee: of a larger one too little is left for the tenth pair, of a smaller one too little
# is spent on the third.
SPENDING = 0.5
# Cells of the grid: twice as many change no critical value by more than 0.2 %.
CELLS = 100
# Solutions for r are searched no nearer to the ends of its range, relative to it.
MARGIN = 1e-12


def critical_t(n: int, error: float) -> float:
    """Return the two-sided critical value of Student's t at the look after n pairs, of looks that err together so."""
    bound = boundaries(error, n)[-1]
    return math.sqrt((n - 1) / (n - bound * bound)) * bound


def sequential_intervals(ratios: Sequence[float], error: float) -> list[tuple[float, float]]:
    """Return the intervals of the geometric mean of ratios of pairs, in their order, after each look.

    Each is what the looks so far have in common, as their intervals hold together; a look at pairs that do not vary
    has none. If nothing is common, which has a probability of `error` at most, the last look counts alone.
    """
    found: list[tuple[float, float]] = []
    for n in range(FEWEST_FOR_MEAN, len(ratios) + 1):
        if (now := look(ratios[:n], error)) is None:
            continue
        before = found[-1] if found else now
        common = max(before[0], now[0]), min(before[1], now[1])
        found.append(common if common[0] <= common[1] else now)
    return found


def look(ratios: Sequence[float], error: float) -> tuple[float, float] | None:
    """Return the interval of one look; None if the ratios do not vary."""
    if len(set(ratios)) == 1:
        return None
    logs = [math.log(ratio) for ratio in ratios]
    middle = statistics.fmean(logs)
    half = critical_t(len(logs), error) * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(middle - half), math.exp(middle + half)


def pairs_until(deviation: float, half_width: float, error: float, most: int) -> int | None:
    """Return the pairs after which an interval is this narrow, at a standard deviation of the logarithms.

    None if it takes more than `most`.
    """
    return next(
        (n for n in range(FEWEST_FOR_MEAN, most + 1) if critical_t(n, error) * deviation / math.sqrt(n) <= half_width),
        None,
    )


# --- the recursion ---------------------------------------------------------------------------------------------


def boundaries(error: float, n: int) -> list[float]:
    """Return the critical |r| of the looks from FEWEST_FOR_MEAN to n pairs."""
    bounds, mass, points = begun(error)
    while len(bounds) < n - FEWEST_FOR_MEAN + 1:
        # `begun` keeps its lists, so that a later call goes on where this one ended.
        bounds.append(advance(mass, points, FEWEST_FOR_MEAN + len(bounds), error))
    return bounds[: n - FEWEST_FOR_MEAN + 1]


@functools.lru_cache(maxsize=64)
def begun(error: float) -> tuple[list[float], list[Values], list[Values]]:
    """Return the recursion of an error: critical values so far, and mass at points of r that crossed none so far."""
    del error
    mass, points = [np.array([0.5, 0.5])], [np.array([-1.0, 1.0])]
    for n in range(2, FEWEST_FOR_MEAN):
        move(mass, points, n, math.sqrt(n))
    return [], mass, points


def advance(mass: list[Values], points: list[Values], n: int, error: float) -> float:
    """Return the critical |r| after n pairs, and move the mass within it there."""
    place = n - FEWEST_FOR_MEAN + 1
    share: float = place**-SPENDING - (place + 1) ** -SPENDING
    now, at, end = mass[0], points[0], math.sqrt(n)

    def excess(bound: float) -> float:
        outside = 1 + below(np.array([-bound]), at, n - 1) - below(np.array([bound]), at, n - 1)
        return float(now @ outside[:, 0]) - error * share

    bound = float(brentq(excess, 0.0, end * (1 - MARGIN)))
    move(mass, points, n, bound)
    return bound


def move(mass: list[Values], points: list[Values], n: int, bound: float) -> None:
    """Replace mass and points by those after n pairs, of |r| below a bound."""
    angles = np.linspace(-math.pi / 2, math.pi / 2, 2 * CELLS + 1)
    # Denser towards both ends, where r after two pairs has most of its mass.
    grid = bound * np.sin(angles)
    mass[0] = mass[0] @ np.diff(below(grid[::2], points[0], n - 1), axis=1)
    points[0] = grid[1::2]


def below(edges: Values, points: Values, before: int) -> Values:
    """Return the probability that r' is below each edge, by point r after `before` pairs: rows points, columns edges.

    With y = tan(theta) and r = tan(phi), r' = sqrt(1 + r^2) sin(theta + phi).
    """
    phi = np.arctan(points)[:, None]
    a = np.arcsin(np.clip(edges[None, :] / np.sqrt(1 + points[:, None] ** 2), -1, 1))

    def cumulative(theta: Values) -> Values:
        inside = np.clip(theta, -math.pi / 2, math.pi / 2)
        found: Values = stdtr(before, math.sqrt(before) * np.tan(inside))
        return found

    upper: Values = 1 - cumulative(math.pi - a - phi)
    return cumulative(a - phi) - cumulative(-math.pi - a - phi) + upper
