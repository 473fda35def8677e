"""A calibration: constants of step time and memory, how well they are known, and what they were fitted to.

`slurmscale calibrate` writes one dated file, which has a fit for each GPU and engine that it found runs of.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Generic, NamedTuple

import yaml

from jobs.engines.engine import loaded
from jobs.errors import ConfigError
from jobs.files import read_yaml, reason
from jobs.output import write_output
from jobs.plan.predict.arrays import larger, smaller
from jobs.plan.predict.constants import Constants, MemoryConstants, StepTimeConstants, deviations
from jobs.plan.predict.interval import Interval
from jobs.schema import EngineKind, Run

STEP_TIME_NOISE = 0.1
"""Standard deviation of the logarithm of a step time about the best constants, before any residual is known: repeats
of one published configuration differ by 1.15 in the median, models of this kind by 5 to 15 % (SimuMax, vTrain)."""
MEMORY_NOISE, COUNTED_NOISE = 0.2, 0.06
"""The same of memory: by formulas, chosen on published tables (tests/README.md); and of the native engine, which is
counted tensor by tensor."""
FREEDOM = 4
"""Weight of that value in residuals."""
QUANTILE = 2.132
"""Student's t at 95 % with FREEDOM degrees."""
WHOLE = "programs"
"""Key of the wall times of whole runs in the file of a calibration."""
QUEUES = "queues"
"""Key of the waits of jobs in the file of a calibration."""
STEP = 1e-3
"""Step of numerical derivatives, in logarithms."""
UNLIKE = 0.5
"""Error of a logarithm that a run has which is composed as none that was fitted, for each unit of distance
(Fit.distance). Chosen on nanotron's sweep, whose rows at a distance above 0.3 were in 76 % of their intervals of 90 %
without it and are in 87 % with it; no other source loses (tests/README.md)."""


@dataclass(frozen=True)
class Fit(Generic[Constants]):
    """Constants and their uncertainty."""

    constants: Constants
    covariance: tuple[tuple[float, ...], ...]
    """Covariance of the logarithms of the constants, in their order."""
    noise: float
    """Standard deviation of the logarithm of a measurement about its prediction."""
    quantile: float = QUANTILE
    """Half the width of an interval of 90 % in standard deviations."""
    fitted_to: str | None = None
    """Runs, GPU, engine and date; None: nothing."""
    runs: tuple[tuple[float, ...], ...] = ()
    """Of each run that was fitted, the derivatives of its logarithm by those of the constants: about the shares of its
    time that each constant decides. Empty for memory, whose intervals hold without it."""

    def distance(self, slopes: Sequence[float]) -> float:
        """Return how unlike a run is to the fitted run that is composed most like it, by their derivatives."""
        return min((math.dist(slopes, run) for run in self.runs), default=0.0)

    def interval(self, predict: Callable[[Constants], float]) -> Interval:
        """Return a prediction with its interval: of its logarithm, from the constants' uncertainty and the noise.

        A constant stands for more than it counts, so what five runs say of it holds for runs that are like them; one
        that is not is at most as uncertain as without a fit.
        """
        point, names = predict(self.constants), asdict(self.constants)
        # First-order propagation: var(log p) = s' C s + noise^2, with s the derivatives of log p by the constants'
        # logarithms. In logarithms the interval is a ratio and never below 0.
        slopes = [math.log(predict(moved(self.constants, name)) / point) / STEP for name in names]
        rows = zip(slopes, self.covariance, strict=True)
        variance = max(0.0, sum(slope * sum(a * b for a, b in zip(row, slopes, strict=True)) for slope, row in rows))
        if self.runs:
            before = math.hypot(
                *(a * b for a, b in zip(slopes, deviations(type(self.constants)).values(), strict=True))
            )
            variance = with_unlike(variance, before**2, self.distance(slopes))
        factor = math.exp(self.quantile * math.sqrt(variance + self.noise**2))
        return Interval(point, point / factor, point * factor)


def with_unlike(variance: Any, before: Any, distance: Any) -> Any:
    """Return the variance of a prediction for a run at a distance from all that were fitted; numbers or arrays.

    It is that by the fit, and with the distance at most the one before any measurement.
    """
    return larger(variance, smaller(variance + (UNLIKE * distance) ** 2, before))


@dataclass(frozen=True)
class Calibration:
    """The fits of one GPU and engine; None if nothing was measured."""

    step_time: Fit[StepTimeConstants] | None = None
    memory: Fit[MemoryConstants] | None = None


def moved(constants: Constants, name: str) -> Constants:
    """Return the constants with one of them increased by STEP."""
    return replace(constants, **{name: getattr(constants, name) * math.exp(STEP)})


def prior(defaults: Constants, noise: float) -> Fit[Constants]:
    """Return the defaults, as uncertain as machines and implementations differ."""
    known = deviations(type(defaults))
    return Fit(
        defaults, tuple(tuple(known[row] ** 2 if row == name else 0.0 for name in known) for row in known), noise
    )


STEP_TIME_PRIOR = prior(StepTimeConstants(), STEP_TIME_NOISE)


def memory_prior(engine: EngineKind) -> Fit[MemoryConstants]:
    """Return the factors of predicted memory before any measurement."""
    return prior(MemoryConstants(), COUNTED_NOISE if loaded(engine).counts_memory else MEMORY_NOISE)


# --- the file of a site --------------------------------------------------------------------------------------


def basis(fit: Fit[StepTimeConstants] | Fit[MemoryConstants] | None, uncalibrated: str) -> str:
    """Return the basis of a prediction as text that begins with `calibrated` or `uncalibrated`."""
    return f"uncalibrated: {uncalibrated}" if fit is None else f"calibrated: fitted to {fit.fitted_to}"


def calibration_of(run: Run) -> Calibration:
    """Return the calibration of a run's GPU and engine in the file that its cluster names; empty without any."""
    if run.cluster.calibration is None:
        return Calibration()
    return read_calibration(file_of(run.cluster.calibration)).fits.get(key_of(run), Calibration())


def calibrated_times(run: Run) -> Mapping[str, list[tuple[int, float]]]:
    """Return the measured wall times in the file that a run's cluster names: (nodes, seconds) by digest of settings."""
    if run.cluster.calibration is None:
        return {}
    return read_calibration(file_of(run.cluster.calibration)).times


def calibrated_waits(run: Run) -> list[tuple[int, float]]:
    """Return the measured waits in the queue of a run's partition: (nodes, seconds); empty without any."""
    if run.cluster.calibration is None:
        return []
    return read_calibration(file_of(run.cluster.calibration)).waits.get(queue_of(run), [])


def queue_of(run: Run) -> tuple[str, str]:
    """Return what a wait is of: cluster and partition."""
    return run.cluster.name, run.cluster.partition or ""


def key_of(run: Run) -> tuple[str, str]:
    """Return what a calibration is of: GPU and engine."""
    return run.gpu.name, run.engine.kind.name


def site_directory() -> Path:
    """Return the site directory, by default the current one."""
    return Path(os.environ.get("SLURMSCALE_SITE", "."))


def file_of(given: str) -> Path:
    """Return the file of `cluster.calibration`: a relative path begins at the site directory if one is set."""
    return site_directory() / Path(given).expanduser()


class CalibrationFile(NamedTuple):
    """The content of a file that `slurmscale calibrate` wrote."""

    fits: Mapping[tuple[str, str], Calibration]
    """Calibrations by GPU and engine."""
    times: Mapping[str, list[tuple[int, float]]]
    """Wall times of whole runs, (nodes, seconds), by the digest of their settings."""
    waits: Mapping[tuple[str, str], list[tuple[int, float]]]
    """Waits of jobs in a queue, (nodes, seconds), by cluster and partition."""


@cache
def read_calibration(path: Path) -> CalibrationFile:
    """Return the content of the file of a calibration, or raise ConfigError."""
    try:
        found: Any = read_yaml(path)
        fits = {(str(each["gpu"]), str(each["engine"])): parsed(each) for each in found["fits"]}
        times = {str(each["digest"]): parsed_times(each) for each in found.get(WHOLE, [])}
        waits = {(str(each["cluster"]), str(each["partition"])): parsed_times(each) for each in found.get(QUEUES, [])}
        return CalibrationFile(fits, times, waits)
    except (OSError, ValueError) as error:
        why = reason(error)
    except (KeyError, TypeError, AttributeError) as error:
        why = f"{type(error).__name__} {error}"
    raise ConfigError(
        f"cluster.calibration: {path} is not a calibration: {why}. Set a file that `slurmscale calibrate` wrote, or "
        "cluster.calibration=null for published constants."
    )


def parsed(found: Mapping[str, Any]) -> Calibration:
    """Return the calibration of a GPU and engine; raise KeyError, TypeError or ValueError for other values."""
    step_time, memory = found.get("step_time"), found.get("memory")
    return Calibration(
        None if step_time is None else parsed_fit(step_time, StepTimeConstants()),
        None if memory is None else parsed_fit(memory, MemoryConstants()),
    )


def parsed_times(found: Mapping[str, Any]) -> list[tuple[int, float]]:
    """Return wall times, or waits of a queue; raise KeyError, TypeError or ValueError for other values."""
    return [(int(positive("nodes", nodes)), positive("time_s", time_s)) for nodes, time_s in found["times"]]


def parsed_fit(found: Mapping[str, Any], defaults: Constants) -> Fit[Constants]:
    """Return a fit from the values of its file."""
    # A file of another version may have other constants, whose meaning nobody knows here: refused, not filled up.
    names = list(asdict(defaults))
    if set(found["constants"]) != set(names):
        raise ValueError(f"its constants are {', '.join(sorted(found['constants']))}, not {', '.join(names)}")
    values = {name: positive(name, found["constants"][name]) for name in names}
    rows = tuple(tuple(float(value) for value in row) for row in found["covariance"])
    if [len(row) for row in rows] != [len(names)] * len(names):
        raise ValueError(f"its covariance is not {len(names)} x {len(names)}")
    noise, quantile = (positive(key, found[key]) for key in ("noise", "quantile"))
    # Files of before have none.
    runs = tuple(tuple(float(value) for value in run) for run in found.get("runs", []))
    if any(len(run) != len(names) for run in runs):
        raise ValueError(f"its runs do not have {len(names)} numbers each")
    return Fit(replace(defaults, **values), rows, noise, quantile, str(found["fitted_to"]), runs)


def positive(name: str, value: Any) -> float:
    """Return a number above 0, or raise ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"{name} is {value!r}, not a number above 0")
    return float(value)


def record(fit: Fit[StepTimeConstants] | Fit[MemoryConstants]) -> dict[str, Any]:
    """Return a fit as its file contains it."""
    return {
        "fitted_to": fit.fitted_to,
        "constants": {name: shortened(value) for name, value in asdict(fit.constants).items()},
        "noise": shortened(fit.noise),
        "quantile": shortened(fit.quantile),
        "covariance": [[shortened(value) for value in row] for row in fit.covariance],
        "runs": [[shortened(value) for value in run] for run in fit.runs],
    }


def shortened(value: float) -> float:
    """Return a number with five digits."""
    return float(f"{value:.5g}")


def write_calibration(
    path: Path, fits: list[dict[str, Any]], whole: list[dict[str, Any]], queues: list[dict[str, Any]]
) -> None:
    """Write the fits of some GPUs and engines, wall times of whole runs, and waits; refuse to replace a file."""
    if path.exists():
        raise ConfigError(f"{path} exists. Remove it, or set another file with --output FILE.yaml.")
    content = {"fits": fits, **({WHOLE: whole} if whole else {}), **({QUEUES: queues} if queues else {})}
    write_output(path, yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=1000))
