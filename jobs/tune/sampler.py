"""Proposals of points: a Gaussian process over the enumerated legal points, whose mean is the prediction.

    log score = constant + weight x log predicted score + residual
    covariance of two residuals = variance x product of the similarities of the keys in which the points differ

Similarities, variance and the weight of the prediction are those under which the trials are most likely (Rasmussen and
Williams, Gaussian Processes for Machine Learning, 2006, chapter 5); a key that changes little gets a similarity near 1,
and a prediction that the trials contradict the weight 0. The next point is the one with the largest expected
improvement times its chance of fitting the memory. All is made anew from the finished trials for every batch, so that
the run directories are the only memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from analysis.compare.tuning import TrialRun
from jobs.tune.space import Candidate, Space

SIMILARITIES = (0.3, 0.6, 0.8, 0.9, 0.97)
"""Correlation of two points that differ in one key."""
USUAL = 0.8
SWEEPS = 2
VARIANCE, TRIALS_OF_VARIANCE = 0.3**2, 3
"""Variance of log scores before any trial: choices change a speed by a third; and the trials that this counts as."""
NOISE = 0.02
"""Variance of a repeat as a share of the variance of the space."""
FAILED = math.log(2)
"""A failed trial counts as half as fast as the slowest of the others."""
Matrix = Any
NORMAL = NormalDist()


def proposals(space: Space, trials: Sequence[TrialRun], count: int) -> list[Candidate]:
    """Return at most `count` candidates that were not tried in the first rung; the baseline comes first."""
    scores = {trial.choices: trial.score or trial.score_so_far for trial in trials if not trial.repeats}
    scores |= {trial.choices: trial.score for trial in trials if trial.repeats and trial.score}
    left = [each for each in space.candidates if each.choices not in scores]
    chosen = [each for each in left[:1] if each is space.baseline][:count]
    left = left[len(chosen) :]
    if len(chosen) + len(left) <= count:
        return [*chosen, *left]
    # Of points that are expected to be equal, the seed decides.
    order = np.random.default_rng([space.settings.seed, len(trials)]).permutation(len(left))
    left = [left[place] for place in order]
    model = Landscape(space.candidates, scores)
    for each in chosen:
        model.believe(each)
    while len(chosen) < count:
        best = left.pop(int(np.argmax(model.worth(left))))
        model.believe(best)
        chosen.append(best)
    return chosen


@dataclass(frozen=True)
class Fit:
    """A Gaussian process with its likelihood."""

    likelihood: float
    """Logarithm, but for a constant."""
    variance: float
    constant: float
    weight: float
    inverse: Matrix
    residuals: Matrix
    similarities: Sequence[float]


class Landscape:
    """Expected scores of all points, from those that were tried and a prediction."""

    def __init__(self, points: Sequence[Candidate], scores: dict[tuple[str, ...], float | None]) -> None:
        self.places = {each.choices: place for place, each in enumerate(points)}
        axes = list(zip(*(each.choices for each in points), strict=True))
        numbers = [{value: number for number, value in enumerate(dict.fromkeys(axis))} for axis in axes]
        coded = np.array(
            [[number[value] for number, value in zip(numbers, each.choices, strict=True)] for each in points]
        )
        self.codes = coded
        self.predicted = logarithms(points)
        self.tried = [self.places[each] for each in scores if each in self.places]
        known = [math.log(score) for score in scores.values() if score]
        lowest = min(known, default=0.0) - FAILED
        self.values = [math.log(score) if score else lowest for each, score in scores.items() if each in self.places]
        self.best = max(known, default=None)
        self.fit = self.fitted()

    def fitted(self) -> Fit:
        """Return the most likely process, by one key after the other."""
        similarities = [USUAL] * self.codes.shape[1]
        best = max((self.process(similarities, weight) for weight in (1.0, 0.0)), key=lambda each: each.likelihood)
        if len(self.tried) < 3:
            return self.process(similarities, 1.0)
        for _ in range(SWEEPS):
            for key in range(len(similarities)):
                tries = [[*best.similarities[:key], value, *best.similarities[key + 1 :]] for value in SIMILARITIES]
                found = (self.process(each, weight) for each in tries for weight in (1.0, 0.5, 0.0))
                best = max([best, *found], key=lambda each: each.likelihood)
        return best

    def process(self, similarities: Sequence[float], weight: float) -> Fit:
        """Return the process with these similarities and this weight of the prediction."""
        count = len(self.tried)
        covariance = self.covariance(self.tried, self.tried, similarities) + NOISE * np.eye(count)
        inverse = np.linalg.inv(covariance)
        beside = np.array(self.values) - weight * self.predicted[self.tried]
        constant = float(inverse.sum(0) @ beside / inverse.sum()) if count else 0.0
        residuals = beside - constant
        square = float(residuals @ inverse @ residuals) + TRIALS_OF_VARIANCE * VARIANCE
        variance = square / (count + TRIALS_OF_VARIANCE)
        determinant = float(np.linalg.slogdet(covariance)[1])
        likelihood = -(count + TRIALS_OF_VARIANCE) / 2 * math.log(variance) - determinant / 2
        return Fit(likelihood, variance, constant, weight, inverse, residuals, similarities)

    def covariance(self, rows: Sequence[int], columns: Sequence[int], similarities: Sequence[float]) -> Matrix:
        """Return the covariance of points, as a share of the variance."""
        differ = self.codes[list(rows)][:, None, :] != self.codes[list(columns)][None, :, :]
        return np.exp(differ @ np.log(similarities))

    def expected(self, points: Sequence[Candidate]) -> tuple[Matrix, Matrix]:
        """Return the expected logarithms of the scores of points, and their standard deviations."""
        places, fit = [self.places[each.choices] for each in points], self.fit
        beside = self.covariance(places, self.tried, fit.similarities)
        means = fit.constant + fit.weight * self.predicted[places] + beside @ fit.inverse @ fit.residuals
        known = np.einsum("ij,jk,ik->i", beside, fit.inverse, beside)
        return means, np.sqrt(fit.variance * np.maximum(1e-9, 1 - known))

    def worth(self, points: Sequence[Candidate]) -> Matrix:
        """Return the expected improvement of each point on the best score, times its chance of fitting the memory."""
        means, deviations = self.expected(points)
        chances = np.array([each.chance for each in points])
        if self.best is None:
            return chances * np.exp(means)
        above = (means - self.best) / deviations
        improved = [each * NORMAL.cdf(each) + NORMAL.pdf(each) for each in above.tolist()]
        return chances * deviations * improved

    def believe(self, point: Candidate) -> None:
        """Take a point as tried with the score that is expected, so that the next of a batch is another one."""
        self.values.append(float(self.expected([point])[0][0]))
        self.tried.append(self.places[point.choices])
        self.fit = self.process(self.fit.similarities, self.fit.weight)


def logarithms(points: Sequence[Candidate]) -> Matrix:
    """Return the logarithms of the predicted speeds, relative to their mean; 0 where nothing is predicted.

    Trials do equal work, so the inverse of the step time ranks them under every objective.
    """
    found = [each.predicted_step_s for each in points]
    known = [-math.log(each) for each in found if each]
    mean = sum(known) / len(known) if known else 0.0
    return np.array([-math.log(each) - mean if each else 0.0 for each in found])
