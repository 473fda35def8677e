"""Fit the terms of predicted memory to measured runs of one stack on one GPU, and the interval of what is left.

measured = sum over terms of factor x predicted + constant, relative errors being equally likely. With few runs the
factors stay near what is expected before any is measured: a normal prior for each (ridge regression).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jobs.plan.predict.interval import Interval

MOST_RUNS = 5
"""Runs that identify the factors."""
FACTORS = {"states": (1.0, 0.05), "activations": (1.0, 0.7), "loss": (1.0, 0.5), "constant": (1.0, 1.0)}
"""Term -> expected factor and its standard deviation: states are arithmetic, implementations keep more or less."""
EXPECTED_ERROR, EXPECTED_RUNS = 0.2, 4
"""Relative error before any run is measured, and the number of runs that this counts as."""
STUDENT_95 = {4: 2.132, 5: 2.015, 6: 1.943, 7: 1.895, 8: 1.860, 9: 1.833}
"""95th percentile of Student's distribution by degrees of freedom: two-sided 90 %."""

Features = Mapping[str, float]
"""Predicted bytes by a key of FACTORS."""


@dataclass(frozen=True)
class Calibration:
    """Fitted factors, and the relative half-width of the interval."""

    factors: dict[str, float]
    half_width: float

    def predict(self, features: Features) -> Interval:
        """Return the memory in bytes with its interval of 90 %, symmetric in the logarithm."""
        point = sum(self.factors[term] * size for term, size in features.items())
        return Interval(point, point / (1 + self.half_width), point * (1 + self.half_width))


def chosen(runs: Sequence[Features]) -> list[int]:
    """Return the places of at most MOST_RUNS runs that identify the factors best, without their measured memory.

    One by one the run whose relative features are least explained by those before it (D-optimal design).
    """
    information = prior_information()
    found: list[int] = []
    rows = [relative(each, total_of(each)) for each in runs]
    while len(found) < min(MOST_RUNS, len(runs)):
        gains = [dot(row, solved(information, row)) for row in rows]
        best = max((i for i in range(len(rows)) if i not in found), key=gains.__getitem__)
        found.append(best)
        information = added(information, rows[best])
    return found


def calibrated(runs: Sequence[tuple[Features, float]]) -> Calibration:
    """Return the calibration to runs with their measured memory."""
    information, target = prior_information(), [mean / deviation**2 for mean, deviation in FACTORS.values()]
    for features, measured in runs:
        row = [value / EXPECTED_ERROR for value in relative(features, measured)]
        information = added(information, row)
        target = [t + value / EXPECTED_ERROR for t, value in zip(target, row, strict=True)]
    factors = dict(zip(FACTORS, solved(information, target), strict=True))
    left = [sum(factors[term] * size for term, size in features.items()) / measured - 1 for features, measured in runs]
    # The runs that fitted the factors show half of the error of others, roughly: count them so.
    squares = EXPECTED_RUNS * EXPECTED_ERROR**2 + 2 * sum(error**2 for error in left)
    freedom = EXPECTED_RUNS + len(runs)
    return Calibration(factors, STUDENT_95[freedom] * math.sqrt(squares / freedom))


def total_of(features: Features) -> float:
    """Return the memory with all factors as expected."""
    return sum(FACTORS[term][0] * size for term, size in features.items())


def relative(features: Features, size: float) -> list[float]:
    """Return the features as shares of a size, in the order of FACTORS."""
    return [features.get(term, 0.0) / size for term in FACTORS]


Matrix = list[list[float]]


def prior_information() -> Matrix:
    """Return the inverse covariance of the factors before any run."""
    deviations = [deviation for _, deviation in FACTORS.values()]
    return [[1 / d**2 if i == j else 0.0 for j in range(len(deviations))] for i, d in enumerate(deviations)]


def added(information: Matrix, row: Sequence[float]) -> Matrix:
    """Return the information after a run."""
    return [[x + a * b for x, b in zip(line, row, strict=True)] for line, a in zip(information, row, strict=True)]


def dot(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the scalar product."""
    return sum(x * y for x, y in zip(a, b, strict=True))


def solved(matrix: Matrix, target: Sequence[float]) -> list[float]:
    """Return x of matrix x = target by elimination; the matrix is symmetric and positive definite."""
    rows = [[*line, value] for line, value in zip(matrix, target, strict=True)]
    for i, pivot in enumerate(rows):
        for below in rows[i + 1 :]:
            share = below[i] / pivot[i]
            below[i:] = [b - share * p for b, p in zip(below[i:], pivot[i:], strict=True)]
    found = [0.0] * len(rows)
    for i in reversed(range(len(rows))):
        found[i] = (rows[i][-1] - dot(rows[i][i + 1 : -1], found[i + 1 :])) / rows[i][i]
    return found
