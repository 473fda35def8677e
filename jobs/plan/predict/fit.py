"""Fit constants of step time and of memory to measured runs, and choose the runs that identify them.

Constants are fitted as logarithms, by least squares on the logarithms of measurements. A prior pulls each towards its
default as strongly as machines agree on it, so that few runs suffice: what no run depends on stays at its default.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares
from scipy.special import stdtrit

from jobs.plan.predict.calibration import FREEDOM, STEP, STEP_TIME_PRIOR, Fit, memory_prior
from jobs.plan.predict.constants import Constants, MemoryConstants, StepTimeConstants, deviations
from jobs.plan.predict.interval import COVERAGE
from jobs.plan.predict.memory import MemoryWork, counted_bytes
from jobs.plan.predict.step_time import StepWork, step_time_s
from jobs.schema import EngineKind

Array = NDArray[np.float64]
TAIL = 4
"""Degrees of freedom of Student's t in the fit: the fewer, the less a run far from all others pulls."""
DISTURBED = 5.0
"""A run that takes this many times its prediction by default constants is measured again before it counts. Nearly all
rows of nanotron's sweep that are as slow were disturbed: their twins are not (tests/README.md)."""
FAULT = 0.5
"""Largest logarithmic residual that counts: what is further off is a fault of that run, not the model's error."""
UNCERTAIN, START = 0.8, 2.0
"""Fits also start this many deviations above the default of each constant that is at least so uncertain."""
DRAWS = 3072
"""Draws of the constants that stand for what is not known about them: with 768, chance changed the chosen runs of two
of ten seeds, and with them the error of a fit by a factor of five (tests/README.md)."""
MOST_RUNS = 5
"""Runs that are chosen to identify the constants."""
Counted = TypeVar("Counted", StepWork, MemoryWork)
"""Counted work of a run, or its bytes by term, without constants."""


@dataclass(frozen=True)
class Sample(Generic[Counted]):
    """A run and its measurement."""

    work: Counted
    measured: float


@dataclass(frozen=True)
class Quantity(Generic[Counted, Constants]):
    """A quantity that runs measure and constants predict; the constants may be arrays of draws."""

    predict: Callable[[Counted, Constants], float]
    prior: Fit[Constants]
    knows_runs: bool = False
    """True if runs that are composed unlike the fitted ones have wider intervals (Fit.distance)."""

    @property
    def deviations(self) -> Array:
        """Return the standard deviations of the logarithms of the constants before any measurement."""
        return np.array(list(deviations(type(self.prior.constants)).values()))

    def constants_at(self, logs: Array) -> Constants:
        """Return the constants whose logarithms differ from those of the defaults by these numbers.

        Columns are draws: each constant is then an array.
        """
        defaults = asdict(self.prior.constants)
        moved: dict[str, Any] = {
            name: value * np.exp(log) for (name, value), log in zip(defaults.items(), logs, strict=True)
        }
        return type(self.prior.constants)(**moved)

    def logs(self, works: Sequence[Counted], logs: Array) -> Array:
        """Return the logarithms of the predictions of some works: a row for each, a column for each draw."""
        constants = self.constants_at(logs)
        return np.asarray(np.log([self.predict(work, constants) for work in works]))

    def derivatives(self, works: Sequence[Counted], logs: Array) -> Array:
        """Return the derivatives of the logarithms by those of the constants: a row for each work."""
        moved = logs[:, None] + STEP * np.eye(len(logs))
        return (self.logs(works, moved) - self.logs(works, logs)[:, None]) / STEP

    def is_disturbed(self, work: Counted, value: float | None) -> bool:
        """Return whether a measurement is far above what any machine of the defaults' kind would need."""
        return value is not None and value > DISTURBED * self.predict(work, self.prior.constants)

    def covariance(self, samples: Sequence[Sample[Counted]], logs: Array) -> Array:
        """Return the covariance of the constants' logarithms after these runs, at these constants.

        A run far from its prediction identifies little: the weights of Student's t (Lange, Little
        and Taylor, JASA 84, 1989).
        """
        precision = np.diag(self.deviations**-2)
        if samples:
            works = [sample.work for sample in samples]
            errors = (self.logs(works, logs) - np.log([sample.measured for sample in samples])) / self.prior.noise
            rows = self.derivatives(works, logs)
            # Precision of the posterior: that of the prior, and J' W J / noise^2 of the measurements.
            precision = precision + rows.T @ (rows * ((TAIL + 1) / (TAIL + errors**2))[:, None]) / self.prior.noise**2
        return np.asarray(np.linalg.inv(precision), dtype=np.float64)


STEP_TIME: Quantity[StepWork, StepTimeConstants] = Quantity(step_time_s, STEP_TIME_PRIOR, knows_runs=True)


def memory_of(engine: EngineKind) -> Quantity[MemoryWork, MemoryConstants]:
    """Return the memory of an engine's runs as a quantity to fit."""
    return Quantity(counted_bytes, memory_prior(engine))


def fitted(
    quantity: Quantity[Counted, Constants], samples: Sequence[Sample[Counted]], fitted_to: str
) -> Fit[Constants]:
    """Return the most probable constants given measured runs, and how well these are known.

    The noise is that of runs predicted from the others, each residual in units of its own uncertainty; that of the
    prior counts as FREEDOM further ones.
    """

    def of_noise(value: float) -> Quantity[Counted, Constants]:
        return replace(quantity, prior=replace(quantity.prior, noise=value))

    before = quantity.prior.noise
    squares = [left_out_residual(quantity, samples, place) ** 2 for place in range(len(samples))]
    noise = float(np.sqrt((FREEDOM + sum(squares)) / (FREEDOM + len(squares))) * before)
    works = [sample.work for sample in samples]
    # Runs that agree better than expected weigh more against the prior. Larger residuals are more likely those of a run
    # far from all others, which must not weaken the evidence of the others.
    logs = shifts(of_noise(min(noise, before)), samples)
    known = of_noise(noise).covariance(samples, logs)
    return Fit(
        quantity.constants_at(logs),
        tuple(tuple(map(float, row)) for row in known),
        noise,
        float(stdtrit(FREEDOM + len(squares), (1 + COVERAGE) / 2)),
        fitted_to,
        tuple(tuple(map(float, row)) for row in quantity.derivatives(works, logs)) if quantity.knows_runs else (),
    )


def left_out_residual(quantity: Quantity[Counted, Constants], samples: Sequence[Sample[Counted]], place: int) -> float:
    """Return the error of a run's logarithm predicted from the other runs, over its expected deviation."""
    # A fit to all runs would follow each of them, and its residuals would be too small: hence one further
    # fit for each run.
    others = [sample for i, sample in enumerate(samples) if i != place]
    logs, one = shifts(quantity, others), samples[place]
    error = float(quantity.logs([one.work], logs)[0] - np.log(one.measured))
    (slopes,) = quantity.derivatives([one.work], logs)
    variance = slopes @ quantity.covariance(others, logs) @ slopes
    return float(np.clip(error, -FAULT, FAULT) / np.sqrt(quantity.prior.noise**2 + variance))


def shifts(quantity: Quantity[Counted, Constants], samples: Sequence[Sample[Counted]]) -> Array:
    """Return the logarithms of the most probable constants over the defaults.

    A run that is off by a fault pulls little: errors are Student's t. The sum has several minima, because a constant
    far above its default has no influence at its default; the lowest of several starts is taken.
    """
    spread: Array = quantity.deviations
    noise: float = quantity.prior.noise
    if not samples:
        return np.zeros(len(spread))
    measured = np.log([sample.measured for sample in samples])
    works = [sample.work for sample in samples]

    def residuals(logs: Array) -> Array:
        return np.concatenate([robust((quantity.logs(works, logs) - measured) / noise), logs / spread])

    def slopes(logs: Array) -> Array:
        errors = (quantity.logs(works, logs) - measured) / noise
        slope = (robust(errors + STEP) - robust(errors - STEP)) / (2 * STEP)
        return np.concatenate([slope[:, None] * quantity.derivatives(works, logs) / noise, np.diag(1 / spread)])

    starts = [np.zeros(len(spread)), *(START * np.diag(spread))[spread >= UNCERTAIN]]
    found = [least_squares(residuals, start, jac=slopes, xtol=1e-4, ftol=1e-4) for start in starts]
    return np.asarray(min(found, key=lambda each: float(each.cost)).x)


def robust(errors: Array) -> Array:
    """Return the numbers whose squares are the logarithmic likelihoods of Student's t."""
    return np.asarray(np.sign(errors) * np.sqrt((TAIL + 1) * np.log1p(errors**2 / TAIL)))


# --- the choice of runs --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Candidates(Generic[Counted, Constants]):
    """Runs to choose from, by what one quantity counts of them."""

    quantity: Quantity[Counted, Constants]
    works: Sequence[Counted]

    def expected_errors(self, measured: dict[int, float], random: np.random.Generator) -> Array:
        """Return for each run the expected error of all predictions once it is measured, given measured ones.

        Run i lowers the variance of run j by cov(i, j)^2 / (var(i) + noise^2). So does a measured run, once more than
        by the fit: a constant whose slope vanishes at the fit stays as uncertain there as before, and runs of the same
        kind would be chosen again and again.
        """
        samples = [Sample(self.works[place], value) for place, value in measured.items()]
        middle = shifts(self.quantity, samples)
        known = self.quantity.covariance(samples, middle)
        draws = random.multivariate_normal(middle, known, size=DRAWS)
        values = self.quantity.logs(self.works, draws.T)
        values -= values.mean(axis=1, keepdims=True)
        joint, noise = values @ values.T / DRAWS, self.quantity.prior.noise
        for place in measured:
            joint -= np.outer(joint[place], joint[place]) / (joint[place, place] + noise**2)
        left = np.diag(joint)[None, :] - joint**2 / (np.diag(joint)[:, None] + noise**2)
        return np.asarray(np.sqrt(np.maximum(left, 0)).sum(axis=1))


def choose(
    candidates: Sequence[Candidates[Any, Any]],
    measure: Callable[[int], Sequence[float | None] | None],
    count: int = MOST_RUNS,
    seed: int = 0,
) -> list[int]:
    """Return the places of the runs that were tried, until `count` of them have a result.

    Each is the run that leaves the least expected error of all predictions of all quantities, given those before:
    Bayesian design (Chaloner and Verdinelli, Statistical Science 10, 1995), by draws of the constants. `measure`
    returns what was measured of a run, a number for each quantity or None; None for all if it failed, which is another
    try.
    """
    tried: list[int] = []
    measured: list[dict[int, float]] = [{} for _ in candidates]
    random = np.random.default_rng(seed)
    succeeded = 0
    while succeeded < count and len(tried) < len(candidates[0].works):
        errors = sum(each.expected_errors(known, random) for each, known in zip(candidates, measured, strict=True))
        for place in map(int, np.argsort(errors)):
            if place in tried:
                continue
            tried.append(place)
            if (values := measure(place)) is not None:
                for known, value in zip(measured, values, strict=True):
                    if value is not None:
                        known[place] = value
                succeeded += 1
                break
    return tried
