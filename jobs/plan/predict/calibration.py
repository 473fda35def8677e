"""Fit the constants of a cluster to measured step times, and choose the runs that identify them.

Constants are fitted as logarithms, by least squares on the logarithms of step times. A prior pulls each towards its
default as strongly as machines agree on it, so that few runs suffice: what no run depends on stays at its default.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from jobs.plan.predict.constants import DEFAULTS, DEVIATIONS, NAMES, Constants
from jobs.plan.predict.step_time import Work, step_time_s

Array = NDArray[np.float64]
NOISE = 0.1
"""Standard deviation of a step time's logarithm about the best constants: repeats and what the model leaves out."""
FREEDOM = 3
PRIOR = np.array([DEVIATIONS[name] for name in NAMES])
DRAWS = 48
"""Draws of the constants that stand for what is not known about them."""
UNCERTAIN, START = 0.8, 2.0
"""Fits also start this many deviations above the default of each constant that is at least so uncertain."""
STEP = 1e-3
"""Step of numerical derivatives, in logarithms."""


@dataclass(frozen=True)
class Sample:
    """A run and its measured step time."""

    work: Work
    step_time_s: float


def constants_at(logs: Array) -> Constants:
    """Return the constants whose logarithms differ from those of the defaults by these numbers.

    Columns are draws: each constant is then an array.
    """
    return Constants(**{name: getattr(DEFAULTS, name) * np.exp(shift) for name, shift in zip(NAMES, logs, strict=True)})


def fit(samples: Sequence[Sample]) -> Constants:
    """Return the most probable constants given measured runs; the defaults without any."""
    return constants_at(shifts(samples))


def shifts(samples: Sequence[Sample]) -> Array:
    """Return the logarithms of the most probable constants over the defaults.

    A run that is slow by a fault pulls little: errors are Student's t with FREEDOM degrees. The sum has several minima,
    because a constant far above its default has no influence at its default; the lowest of several starts is taken.
    """
    if not samples:
        return np.zeros(len(NAMES))
    measured = np.log([sample.step_time_s for sample in samples])
    works = [sample.work for sample in samples]

    def residuals(logs: Array) -> Array:
        errors = (log_times(works, logs) - measured) / NOISE
        return np.concatenate([robust(errors), logs / PRIOR])

    def slopes(logs: Array) -> Array:
        errors = (log_times(works, logs) - measured) / NOISE
        # The derivative of `robust`, by its own step.
        slope = (robust(errors + STEP) - robust(errors - STEP)) / (2 * STEP)
        return np.concatenate([slope[:, None] * derivatives(works, logs) / NOISE, np.diag(1 / PRIOR)])

    starts = [np.zeros(len(NAMES)), *(START * np.diag(PRIOR))[PRIOR >= UNCERTAIN]]
    found = [least_squares(residuals, start, jac=slopes, xtol=1e-4, ftol=1e-4) for start in starts]
    return np.asarray(min(found, key=lambda each: float(each.cost)).x)


def robust(errors: Array) -> Array:
    """Return the numbers whose squares are the logarithmic likelihoods of Student's t."""
    return np.asarray(np.sign(errors) * np.sqrt((FREEDOM + 1) * np.log1p(errors**2 / FREEDOM)))


def log_times(works: Sequence[Work], logs: Array) -> Array:
    """Return the logarithms of the step times of some works: a row for each, a column for each draw."""
    constants = constants_at(logs)
    return np.log(np.array([step_time_s(work, constants) for work in works]))


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
        middle = shifts(samples)
        spread = covariance([sample.work for sample in samples], middle)
        draws = random.multivariate_normal(middle, spread, size=DRAWS)
        times = log_times(works, draws.T).T
        times -= times.mean(axis=0)
        joint = times.T @ times / DRAWS
        own = np.diag(joint)
        # Run i lowers the variance of run j by cov(i, j)^2 / (var(i) + noise^2).
        left = np.maximum(own[None, :] - joint**2 / (own[:, None] + NOISE**2), 0.0)
        expected = np.sqrt(left).sum(axis=1)
        order = [int(i) for i in np.argsort(expected) if int(i) not in set(tried)]
        for i in order:
            tried.append(i)
            if (measured := measure(i)) is not None:
                samples.append(Sample(works[i], measured))
                break
    return tried, samples


def as_values(constants: Constants) -> dict[str, Any]:
    """Return constants for a YAML file, to four digits."""
    return {name: float(f"{value:.4g}") for name, value in asdict(constants).items()}
