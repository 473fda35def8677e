"""Laws of scaling, fitted to the points of a line, and their predictions for more ranks than were measured.

A law is a sum of terms with non-negative coefficients, so each fit is one linear least-squares problem with bounds: no
first guess, no local minimum, and a coefficient at its bound is exactly 0. Fitted are the medians of the points; the
residuals are relative and every point counts alike, whatever its repeats. Doubtful points are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from analysis.formatting import plural
from analysis.scaling.groups import STRONG, Group, Point

Array = NDArray[np.float64]

WEAK = "weak"
# A term, or a residual, that is nowhere more than this share of the whole is rounding, not a finding.
ROUNDING = 1e-9
# No timing agrees with a law better than this; without a floor, rounding would choose between laws that both fit.
SMALLEST_RESIDUAL = 1e-6
EXTRAPOLATED_TIMES = 2
# A law that misses a point by more does not describe the line, and nothing is extrapolated by it.
MOST_RESIDUAL = 0.1


@dataclass(frozen=True)
class Law:
    """Throughput R over ranks p: one term per coefficient; the first is the work that all ranks share."""

    name: str
    mode: str
    formula: str
    shares: tuple[str, ...]
    """Names of the coefficients after the first, each a share of the sum on one rank."""
    terms: Callable[[Array], Sequence[Array]]
    """The terms at each p."""
    of_time: bool = True
    """True if the terms sum to the time for a unit of work, the inverse of throughput; else to throughput."""


def ones(p: Array) -> Array:
    """Return a term that does not depend on ranks."""
    return np.ones_like(p)


LAWS = (
    # Amdahl 1967, https://doi.org/10.1145/1465482.1465560
    Law("Amdahl", STRONG, "R(p) = R(1) / (s + (1 - s) / p)", ("serial share s",), lambda p: (1 / p, ones(p))),
    # An all-reduce takes 2 log2(p) latencies and sends 2 (p - 1) / p of the data (Thakur, Rabenseifner, Gropp 2005,
    # https://doi.org/10.1177/1094342005051521). Serial work grows like the latter and cannot be separated from it.
    Law(
        "Latency and bandwidth",
        STRONG,
        "R(p) = R(1) / (1/p + b (p - 1)/p + c log2(p))",
        ("bandwidth and serial share b", "latency share c"),
        lambda p: (1 / p, (p - 1) / p, np.log2(p)),
    ),
    # Gustafson 1988, https://doi.org/10.1145/42411.42415
    Law("Gustafson", WEAK, "R(p) = R(1) (s + (1 - s) p)", ("serial share s",), lambda p: (p, ones(p)), of_time=False),
    # Latencies of the same all-reduce, added to work that grows with p. Its (p - 1)/p of the data is nearly the same
    # for all but the fewest ranks, and cannot be separated from the work.
    Law(
        "Latency",
        WEAK,
        "R(p) = R(1) p / (1 + c log2(p))",
        ("latency share c",),
        lambda p: (1 / p, np.log2(p) / p),
    ),
)


@dataclass(frozen=True)
class Estimate:
    """A value with its standard error; None if undefined because the value is at its bound."""

    value: float
    standard_error: float | None


@dataclass(frozen=True, eq=False)
class Fit:
    """A law with the coefficients that fit a line best."""

    law: Law
    ranks: tuple[int, ...]
    """Ranks of its points, in order."""
    coefficients: Array
    covariance: Array
    """Return the covariance of the coefficients; 0 for those at their bound."""
    largest_residual: float
    """Predicted over measured throughput, less 1: the one farthest from 0."""
    aicc: float | None
    """Akaike's criterion corrected for small samples; None with too few points."""

    @property
    def holds(self) -> bool:
        """Return True if it is near every point."""
        return abs(self.largest_residual) <= MOST_RESIDUAL

    @property
    def farthest(self) -> int:
        """The number of ranks that it is extrapolated to."""
        return EXTRAPOLATED_TIMES * self.ranks[-1]

    def throughput(self, ranks: float) -> Estimate:
        """Return the throughput that the law predicts for a number of ranks, in the unit of the points."""
        terms = terms_at(self.law, [ranks])[0]
        whole = float(self.coefficients @ terms)
        value = 1 / whole if self.law.of_time else whole
        return Estimate(value, value * math.sqrt(terms @ self.covariance @ terms) / whole)

    @property
    def shares(self) -> list[Estimate]:
        """The law's shares, in its order: each coefficient over the sum of the terms on one rank."""
        return [self.share(i + 1) for i in range(len(self.law.shares))]

    def share(self, index: int) -> Estimate:
        """Return one coefficient as a share, its standard error by the delta method."""
        terms = terms_at(self.law, [1])[0]
        whole = float(self.coefficients @ terms)
        value = float(self.coefficients[index]) / whole
        if value in {0.0, 1.0}:
            return Estimate(value, None)
        gradient = (np.eye(len(self.coefficients))[index] - value * terms) / whole
        return Estimate(value, math.sqrt(gradient @ self.covariance @ gradient))


def terms_at(law: Law, ranks: Sequence[float]) -> Array:
    """Return the terms of a law, of shape (ranks, terms)."""
    return np.stack(law.terms(np.asarray(ranks, dtype=np.float64)), axis=1)


def fitted_points(group: Group) -> list[Point]:
    """Return the points of a line that laws are fitted to."""
    return [point for point in group.points if not point.doubtful]


def fits_of(group: Group) -> list[Fit]:
    """Return the fits of a line by the laws of its mode with fewer parameters than rank counts, the best one first.

    Best is the least AICc; with too few points for it, the fewest parameters, then the least residual.
    """
    points = fitted_points(group)
    ranks = [point.ranks for point in points]
    rates = np.array([point.throughput.median for point in points])
    laws = [law for law in LAWS if law.mode == group.mode and len(law.shares) + 1 < len(set(ranks))]
    fits = [fit for law in laws if (fit := fit_of(law, ranks, rates))]
    return sorted(fits, key=badness)


def badness(fit: Fit) -> tuple[float, int, float]:
    """Return the sort key of a fit; the best fit has the smallest."""
    return math.inf if fit.aicc is None else fit.aicc, len(fit.law.shares), abs(fit.largest_residual)


def best_fits(fits: Mapping[Group, Sequence[Fit]]) -> dict[str, Fit]:
    """Return the best fit of each line, by its label, if that fit holds."""
    return {group.label: own[0] for group, own in fits.items() if own and own[0].holds}


def reason_for_none(group: Group) -> str:
    """Return the reason that a line has no fit."""
    laws = [law for law in LAWS if law.mode == group.mode]
    if not laws:
        return f"its scaling is neither strong nor weak ({group.mode}), and no law covers that"
    counts = len({point.ranks for point in fitted_points(group)})
    fewest = min(len(law.shares) + 2 for law in laws)
    if counts < fewest:
        return f"{plural(counts, 'rank count')} believed, and a law of {fewest - 1} parameters needs {fewest}"
    return "the law that fits best leaves no work to share out"


def fit_of(law: Law, ranks: Sequence[int], rates: Array) -> Fit | None:
    """Return one law fitted to throughputs; None if its terms on one rank sum to 0."""
    scale = float(np.max(rates))
    measured = scale / rates if law.of_time else rates / scale
    # Each row divided by what was measured, so that the residuals are relative.
    rows = terms_at(law, ranks) / measured[:, None]
    coefficients, _ = nnls(rows, np.ones(len(rates)))
    coefficients[(rows * coefficients).max(axis=0) < ROUNDING] = 0.0
    if coefficients @ terms_at(law, [1])[0] <= 0:
        return None
    whole = rows @ coefficients
    whole[np.abs(whole - 1) < ROUNDING] = 1.0
    residuals = (1 / whole if law.of_time else whole) - 1
    unit = 1 / scale if law.of_time else scale
    return Fit(
        law,
        tuple(ranks),
        coefficients * unit,
        covariance(rows, coefficients, whole - 1) * unit**2,
        float(residuals[np.argmax(np.abs(residuals))]),
        aicc(residuals, parameters=len(coefficients)),
    )


def covariance(rows: Array, coefficients: Array, off: Array) -> Array:
    """Return the covariance of the coefficients not at their bound; the others use one degree of freedom, too."""
    free = np.flatnonzero(coefficients)
    variance = float(np.sum(off**2)) / (len(rows) - len(coefficients))
    full: Array = np.zeros((len(coefficients), len(coefficients)))
    full[np.ix_(free, free)] = variance * np.linalg.inv(rows[:, free].T @ rows[:, free])
    return full


def aicc(residuals: Array, *, parameters: int) -> float | None:
    """Return AICc of least squares, variance counted as a parameter; None unless points exceed parameters by 3.

    Source: Hurvich and Tsai 1989, https://doi.org/10.1093/biomet/76.2.297.
    """
    n, k = len(residuals), parameters + 1
    if n - k - 1 <= 0:
        return None
    variance = max(float(np.mean(residuals**2)), SMALLEST_RESIDUAL**2)
    return n * math.log(variance) + 2 * k + 2 * k * (k + 1) / (n - k - 1)
