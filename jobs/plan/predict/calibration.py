"""Fit the constants of a cluster to measured step times, and choose the runs that identify them.

Constants are fitted as logarithms, by least squares on the logarithms of step times. A prior pulls each towards its
default as strongly as machines agree on it, so that few runs suffice: what no run depends on stays at its default.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from jobs.plan.predict.constants import DEFAULTS, DEVIATIONS, NAMES, Constants
from jobs.plan.predict.step_time import Work, step_time

Array = NDArray[np.float64]
NOISE = 0.07
"""Standard deviation of a step time's logarithm about the best constants: repeats and what the model leaves out."""
PRIOR = np.array([DEVIATIONS[name] for name in NAMES])
STEP = 1e-3
"""Step of numerical derivatives, in logarithms."""


@dataclass(frozen=True)
class Sample:
    """A run and its measured step time."""

    work: Work
    step_time_s: float


def constants_at(logs: Array) -> Constants:
    """Return the constants whose logarithms differ from those of the defaults by these numbers."""
    values = {name: getattr(DEFAULTS, name) * math.exp(shift) for name, shift in zip(NAMES, logs, strict=True)}
    return Constants(**values)


def fit(samples: Sequence[Sample]) -> Constants:
    """Return the most probable constants given measured runs; the defaults without any."""
    return constants_at(shifts(samples))


def shifts(samples: Sequence[Sample]) -> Array:
    """Return the logarithms of the most probable constants over the defaults.

    A run far from all others, slow by a fault, pulls less than its square would (soft L1).
    """
    if not samples:
        return np.zeros(len(NAMES))
    measured = np.log([sample.step_time_s for sample in samples])

    def residuals(logs: Array) -> Array:
        constants = constants_at(logs)
        predicted = np.log([step_time(sample.work, constants).total for sample in samples])
        errors = (predicted - measured) / NOISE
        # soft L1 on the data only: sign(r) sqrt(2 (sqrt(1 + r^2) - 1)) is its square root.
        robust = np.sign(errors) * np.sqrt(2 * (np.sqrt(1 + errors**2) - 1))
        return np.concatenate([robust, logs / PRIOR])

    return np.asarray(least_squares(residuals, np.zeros(len(NAMES))).x)


def gradients(works: Sequence[Work], logs: Array) -> Array:
    """Return the derivatives of the logarithms of step times by those of the constants, a row for each work."""
    columns = []
    middle = constants_at(logs)
    base = np.log([step_time(work, middle).total for work in works])
    for place in range(len(NAMES)):
        moved = logs.copy()
        moved[place] += STEP
        constants = constants_at(moved)
        columns.append((np.log([step_time(work, constants).total for work in works]) - base) / STEP)
    return np.array(columns).T


def covariance(rows: Array) -> Array:
    """Return the covariance of the constants' logarithms after runs with these derivatives."""
    return np.linalg.inv(np.diag(PRIOR**-2) + rows.T @ rows / NOISE**2)


def choose(
    works: Sequence[Work], measure: Callable[[int], float | None], count: int = 5
) -> tuple[list[int], list[Sample]]:
    """Return the numbers of the runs that were tried and the measured ones, at most `count`.

    Each is the run that leaves the least expected variance of all predictions, given those before: Bayesian
    I-optimal design (Chaloner and Verdinelli, Statistical Science 10, 1995). `measure` returns the step time of a run,
    or None if it fails; a failure is another try.
    """
    tried: list[int] = []
    samples: list[Sample] = []
    taken: list[int] = []
    while len(samples) < count and len(tried) < len(works):
        rows = gradients(works, shifts(samples))
        known = covariance(rows[taken])
        spread = rows @ known
        own = np.einsum("ij,ij->i", spread, rows)
        # By the Sherman-Morrison formula run i lowers the variance of run j by (x_j C x_i)^2 / (noise^2 + x_i C x_i).
        gain = ((rows @ spread.T) ** 2).sum(axis=0) / (NOISE**2 + own)
        gain[tried] = -1
        best = int(np.argmax(gain))
        tried.append(best)
        measured = measure(best)
        if measured is not None:
            taken.append(best)
            samples.append(Sample(works[best], measured))
    return tried, samples


def as_values(constants: Constants) -> dict[str, Any]:
    """Return constants for a YAML file, to four digits."""
    return {name: float(f"{value:.4g}") for name, value in asdict(constants).items()}
