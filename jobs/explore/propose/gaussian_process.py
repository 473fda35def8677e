"""Proposals of points: the best predicted ones first, then those that promise most by a Gaussian process.

The process describes the logarithm of score times predicted step time: what the prediction leaves open. It is made anew
from the finished trials for every batch, so that the run directories are its only memory.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from analysis.compare.tuning import TrialRun
from jobs.explore.space import Candidate, Space
from jobs.plan.keys import key_of, value_of
from jobs.schema import ActivationCheckpointing

# Correlation of two points that differ in one key, by one place where its values are numbers.
CORRELATION = 0.5
# Standard deviation of a measurement, as a share of the score.
NOISE = 0.05
# Standard deviation of the process before any trial.
SPREAD = 0.3
# A failed trial counts as this part of the lowest score.
FAILED = 0.5
# Keys whose later values need more memory.
MORE_MEMORY: Mapping[str, Callable[[str], int]] = {
    "job.micro_batch_size": int,
    "engine.activation_checkpointing": [each.name for each in reversed(ActivationCheckpointing)].index,
}
Array = NDArray[np.float64]


def proposals(space: Space, trials: Sequence[TrialRun], count: int) -> list[Candidate]:
    """Return at most `count` next candidates of the first rung; `trials` are those already tried.

    The baseline comes first, then the candidates with the shortest expected times, as many as one batch, then those
    with the largest expected improvement. Expected times contain the chance to fit the memory; without them, points of
    tight memory come last. What needs more memory than a trial that ran out of it is left out.
    """
    tried = {trial.choices for trial in trials}
    left = [each for each in space.candidates if each.choices not in tried and not is_ruled_out(each, trials)]
    chosen = [each for each in left[:1] if each is space.baseline][:count]
    if len(tried) < space.settings.parallel:
        known = [each for each in left[len(chosen) :] if each.expected_s is not None]
        chosen += in_order(known)[: count - len(chosen)]
    process = GaussianProcess(space, trials)
    process.believe(chosen)
    for last in (False, True):
        some = [each for each in left if (each.tight and each.expected_s is None) is last]
        chosen += process.most_promising(some, count - len(chosen))
    return chosen


def in_order(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return candidates by their expected times, the shortest first; those without a prediction last."""
    return sorted(candidates, key=lambda each: math.inf if each.expected_s is None else each.expected_s)


def is_ruled_out(candidate: Candidate, trials: Sequence[TrialRun]) -> bool:
    """Return whether a trial of the same kind, which needs no more memory, ran out of memory."""
    return any(
        trial.is_out_of_memory and needs_as_much(candidate.choices, trial.choices)
        for trial in trials
        if trial.choices != candidate.choices
    )


def needs_as_much(choices: Sequence[str], failed: Sequence[str]) -> bool:
    """Return whether choices differ from those of a failed trial only in keys of MORE_MEMORY, and upwards."""
    differing = [(own, other) for own, other in zip(choices, failed, strict=True) if own != other]
    try:
        sizes = [(MORE_MEMORY[key_of(own)], value_of(own), value_of(other)) for own, other in differing]
        return all(size(own) > size(other) for size, own, other in sizes)
    except (KeyError, ValueError):  # another key, or a value that is an interpolation
        return False


class GaussianProcess:
    """A Gaussian process over the points of a space, given the trials of the first rung."""

    def __init__(self, space: Space, trials: Sequence[TrialRun]) -> None:
        self.space = space
        self.coordinates = coordinates([each.choices for each in space.candidates])
        self.expected = np.log([each.expected_s or 1.0 for each in space.candidates])
        self.index_of = {each.choices: index for index, each in enumerate(space.candidates)}
        self.random = random.Random(space.settings.seed + len(trials))  # noqa: S311 (breaks ties)
        repeated = {trial.repeats for trial in trials if trial.score}
        used = [each for each in trials if each.choices in self.index_of and each.run.name not in repeated]
        # One that was stopped early counts with its score until then.
        scores = [each.score or each.score_so_far for each in used]
        self.seen = [self.index_of[each.choices] for each in used]
        lowest = min(filter(None, scores), default=1.0)
        logs = np.log([score or FAILED * lowest for score in scores])
        residuals = logs + self.expected[self.seen]
        counted = [residual for residual, score in zip(residuals, scores, strict=True) if score]
        self.mean = float(np.mean(counted)) if counted else 0.0
        self.best = max((log for log, score in zip(logs, scores, strict=True) if score), default=-self.expected.min())
        # A failed trial that was predicted to be slow is not a sign of a fast neighbour.
        least = min(counted, default=0.0)
        self.residuals = [
            (residual if score else min(residual, least)) - self.mean
            for residual, score in zip(residuals, scores, strict=True)
        ]
        self.variance = (SPREAD**2 + sum(each**2 for each in self.residuals)) / (1 + len(used))

    def most_promising(self, candidates: Sequence[Candidate], count: int) -> list[Candidate]:
        """Return the candidates with the largest expected improvements, each chosen as if those before it had run.

        E[max(0, f - best)] = (m - best) N(z) + s n(z) with z = (m - best) / s, where m and s are mean and standard
        deviation of a point's log score. Ties are broken at random. Source: Jones, Schonlau, Welch 1998,
        https://doi.org/10.1023/A:1008306431147.
        """
        found: list[Candidate] = []
        left = [index for each in candidates if (index := self.index_of[each.choices]) not in self.seen]
        while left and len(found) < count:
            mean, deviation = self.posterior(left)
            z = (mean - self.best) / deviation
            gain = deviation * (z * ndtr(z) + np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi))
            chosen = max(zip(gain, mean, (self.random.random() for _ in left), left, strict=True))[-1]
            left.remove(chosen)
            found.append(self.space.candidates[chosen])
            self.believe(found[-1:])
        return found

    def believe(self, candidates: Sequence[Candidate]) -> None:
        """Take the mean of each candidate as its result, until it has one."""
        for each in candidates:
            index = self.index_of[each.choices]
            mean, _ = self.posterior([index])
            self.residuals.append(float(mean[0]) - self.mean + self.expected[index])
            self.seen.append(index)

    def posterior(self, chosen: Sequence[int]) -> tuple[Array, Array]:
        """Return mean and standard deviation of the log scores of points, (points,) each."""
        between = self.covariance(chosen, self.seen)
        known = self.covariance(self.seen, self.seen) + NOISE**2 * np.eye(len(self.seen))
        weights = np.linalg.solve(known, between.T)
        mean = self.mean - self.expected[list(chosen)] + weights.T @ np.array(self.residuals)
        left = self.variance - np.einsum("ij,ji->i", between, weights)
        return mean, np.sqrt(np.maximum(left, 1e-12))

    def covariance(self, some: Sequence[int], others: Sequence[int]) -> Array:
        """Return the covariances of points, (some, others): they fall with every key in which two points differ."""
        apart = np.zeros((len(some), len(others)))
        for place, is_ordered in self.coordinates:
            differ = np.abs(np.subtract.outer(place[list(some)], place[list(others)]))
            apart += differ if is_ordered else differ > 0
        covariance: Array = self.variance * CORRELATION**apart
        return covariance


def coordinates(points: Sequence[tuple[str, ...]]) -> list[tuple[Array, bool]]:
    """Return for each key the place of every point's value among the key's values, and whether these are numbers."""
    found = []
    for values in zip(*(map(value_of, point) for point in points), strict=True):
        try:
            ordered, numbers = sorted(set(values), key=float), True
        except ValueError:
            ordered, numbers = sorted(set(values)), False
        found.append((np.array([ordered.index(value) for value in values], dtype=np.float64), numbers))
    return found
