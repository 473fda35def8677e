"""Fit the constants of a cluster to measured step times, and choose the runs that identify them.

Constants are fitted as logarithms, by least squares on the logarithms of step times. A prior pulls each towards its
default as strongly as machines agree on it, so that few runs suffice: what no run depends on stays at its default.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares
from scipy.special import stdtrit

from jobs.plan.predict.calibration import FREEDOM, NOISE, STEP, Calibration
from jobs.plan.predict.constants import DEFAULTS, DEVIATIONS, NAMES, Constants
from jobs.plan.predict.interval import COVERAGE
from jobs.plan.predict.step_time import Work, step_time_s

Array = NDArray[np.float64]
PRIOR = np.array([DEVIATIONS[name] for name in NAMES])
"""Standard deviations of the logarithms of the constants among machines."""
TAIL = 4
"""Degrees of freedom of Student's t in the fit: the fewer, the less a run far from all others pulls."""
FAULT = 0.5
"""Largest logarithmic residual that counts: what is further off is a fault of that run, not the model's error."""
UNCERTAIN, START = 0.8, 2.0
"""Fits also start this many deviations above the default of each constant that is at least so uncertain."""
DRAWS = 48
"""Draws of the constants that stand for what is not known about them."""


@dataclass(frozen=True)
class Sample:
    """A run and its measured step time."""

    work: Work
    step_time_s: float


def calibrate(samples: Sequence[Sample], fitted_to: str) -> Calibration:
    """Return the most probable constants given measured runs, and how well these are known.

    The noise is that of runs predicted from the others, each residual in units of its own uncertainty; NOISE counts as
    FREEDOM further ones.
    """
    logs = shifts(samples)
    squares = [left_out_residual(samples, place) ** 2 for place in range(len(samples))]
    noise = np.sqrt((FREEDOM + sum(squares)) / (FREEDOM + len(squares))) * NOISE
    known = covariance([sample.work for sample in samples], logs)
    return Calibration(
        constants_at(logs),
        tuple(tuple(map(float, row)) for row in known),
        float(noise),
        float(stdtrit(FREEDOM + len(squares), (1 + COVERAGE) / 2)),
        fitted_to,
    )


def left_out_residual(samples: Sequence[Sample], place: int) -> float:
    """Return the error of a run's logarithm predicted from the other runs, over its expected deviation."""
    others = [sample for i, sample in enumerate(samples) if i != place]
    logs, one = shifts(others), samples[place]
    error = float(log_times([one.work], logs)[0] - np.log(one.step_time_s))
    (slopes,) = derivatives([one.work], logs)
    variance = slopes @ covariance([sample.work for sample in others], logs) @ slopes
    return float(np.clip(error, -FAULT, FAULT) / np.sqrt(NOISE**2 + variance))


def constants_at(logs: Array) -> Constants:
    """Return the constants whose logarithms differ from those of the defaults by these numbers.

    Columns are draws: each constant is then an array.
    """
    return Constants(**{name: getattr(DEFAULTS, name) * np.exp(shift) for name, shift in zip(NAMES, logs, strict=True)})


def shifts(samples: Sequence[Sample]) -> Array:
    """Return the logarithms of the most probable constants over the defaults.

    A run that is slow by a fault pulls little: errors are Student's t. The sum has several minima, because a constant
    far above its default has no influence at its default; the lowest of several starts is taken.
    """
    if not samples:
        return np.zeros(len(NAMES))
    measured = np.log([sample.step_time_s for sample in samples])
    works = [sample.work for sample in samples]

    def residuals(logs: Array) -> Array:
        return np.concatenate([robust((log_times(works, logs) - measured) / NOISE), logs / PRIOR])

    def slopes(logs: Array) -> Array:
        errors = (log_times(works, logs) - measured) / NOISE
        slope = (robust(errors + STEP) - robust(errors - STEP)) / (2 * STEP)
        return np.concatenate([slope[:, None] * derivatives(works, logs) / NOISE, np.diag(1 / PRIOR)])

    starts = [np.zeros(len(NAMES)), *(START * np.diag(PRIOR))[PRIOR >= UNCERTAIN]]
    found = [least_squares(residuals, start, jac=slopes, xtol=1e-4, ftol=1e-4) for start in starts]
    return np.asarray(min(found, key=lambda each: float(each.cost)).x)


def robust(errors: Array) -> Array:
    """Return the numbers whose squares are the logarithmic likelihoods of Student's t."""
    return np.asarray(np.sign(errors) * np.sqrt((TAIL + 1) * np.log1p(errors**2 / TAIL)))


def log_times(works: Sequence[Work], logs: Array) -> Array:
    """Return the logarithms of the step times of some works: a row for each, a column for each draw."""
    constants = constants_at(logs)
    return np.asarray(np.log([step_time_s(work, constants) for work in works]))


def derivatives(works: Sequence[Work], logs: Array) -> Array:
    """Return the derivatives of the logarithms of step times by those of the constants: a row for each work."""
    moved = logs[:, None] + STEP * np.eye(len(NAMES))
    return (log_times(works, moved) - log_times(works, logs)[:, None]) / STEP


def covariance(works: Sequence[Work], logs: Array) -> Array:
    """Return the covariance of the constants' logarithms after runs of these works, at these constants."""
    precision = np.diag(PRIOR**-2)
    if works:
        rows = derivatives(works, logs)
        precision = precision + rows.T @ rows / NOISE**2
    return np.linalg.inv(precision)


def choose(
    works: Sequence[Work], measure: Callable[[int], float | None], count: int = 5, seed: int = 0
) -> tuple[list[int], list[Sample]]:
    """Return the numbers of the runs that were tried and the measured ones, at most `count`.

    Each is the run that leaves the least expected error of all predictions, given those before: Bayesian design
    (Chaloner and Verdinelli, Statistical Science 10, 1995), by draws of the constants. `measure` returns the step time
    of a run, or None if it fails; a failure is another try.
    """
    tried: list[int] = []
    samples: list[Sample] = []
    random = np.random.default_rng(seed)
    while len(samples) < count and len(tried) < len(works):
        for place in by_expected_error(works, samples, random):
            if place in tried:
                continue
            tried.append(place)
            if (measured := measure(place)) is not None:
                samples.append(Sample(works[place], measured))
                break
    return tried, samples


def by_expected_error(works: Sequence[Work], samples: Sequence[Sample], random: np.random.Generator) -> list[int]:
    """Return the numbers of the works, first the one after whose run all predictions are expected to be closest."""
    middle = shifts(samples)
    draws = random.multivariate_normal(middle, covariance([sample.work for sample in samples], middle), size=DRAWS)
    times = log_times(works, draws.T)
    times -= times.mean(axis=1, keepdims=True)
    joint = times @ times.T / DRAWS
    # Run i lowers the variance of run j by cov(i, j)^2 / (var(i) + noise^2).
    left = np.diag(joint)[None, :] - joint**2 / (np.diag(joint)[:, None] + NOISE**2)
    return [int(place) for place in np.argsort(np.sqrt(np.maximum(left, 0)).sum(axis=1))]
