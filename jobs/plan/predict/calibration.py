"""A calibration: constants, how well they are known, and what they were fitted to; the file of a site that holds it."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from jobs.errors import ConfigError
from jobs.files import read_yaml, reason
from jobs.output import write_file
from jobs.plan.predict.constants import DEFAULTS, DEVIATIONS, NAMES, Constants
from jobs.schema import Run

NOISE = 0.1
"""Standard deviation of the logarithm of a step time about the best constants, before any residual is known: repeats
of one published configuration differ by 1.15 in the median, models of this kind by 5 to 15 % (SimuMax, vTrain)."""
FREEDOM = 4
"""Weight of that value in residuals."""
QUANTILE = 2.132
"""Student's t at 95 % with FREEDOM degrees."""
STEP = 1e-3
"""Step of numerical derivatives, in logarithms."""


@dataclass(frozen=True)
class Calibration:
    """Constants and their uncertainty."""

    constants: Constants
    covariance: tuple[tuple[float, ...], ...]
    """Of the logarithms of the constants, in the order of NAMES."""
    noise: float
    """Standard deviation of the logarithm of a step time about its prediction."""
    quantile: float
    """Half the width of an interval of 90 % in standard deviations."""
    fitted_to: str | None = None
    """Runs, GPU and date; None: nothing, the constants are published ones."""


def uncalibrated() -> Calibration:
    """Return the defaults, as uncertain as machines differ."""
    return Calibration(DEFAULTS, prior_covariance(), NOISE, QUANTILE)


def prior_covariance() -> tuple[tuple[float, ...], ...]:
    """Return the covariance of the logarithms of the constants before any measurement."""
    return tuple(tuple(DEVIATIONS[row] ** 2 if row == column else 0.0 for column in NAMES) for row in NAMES)


def calibration_of(run: Run) -> Calibration:
    """Return the calibration that a run's cluster names, else the defaults."""
    return uncalibrated() if run.cluster.calibration is None else read_calibration(place_of(run.cluster.calibration))


def place_of(given: str) -> Path:
    """Return the file of `cluster.calibration`: a relative path begins at the site directory if one is set."""
    return Path(os.environ.get("SLURMSCALE_SITE", ".")) / Path(given).expanduser()


@cache
def read_calibration(path: Path) -> Calibration:
    """Return the calibration in a file, or raise ConfigError."""
    try:
        found: Any = read_yaml(path)
        return parsed(found)
    except (OSError, ValueError) as error:
        why = reason(error)
    except (KeyError, TypeError, AttributeError) as error:
        why = f"{type(error).__name__} {error}"
    raise ConfigError(
        f"cluster.calibration: {path} is not a calibration: {why}. Set a file that `slurmscale calibrate` wrote, or "
        "cluster.calibration=null for published constants."
    )


def parsed(found: Mapping[str, Any]) -> Calibration:
    """Return a calibration from the values of its file; raise KeyError, TypeError or ValueError for others."""
    names = set(found["constants"])
    if names != set(NAMES):
        raise ValueError(f"its constants are {', '.join(sorted(names))}, not {', '.join(NAMES)}")
    values = {name: positive(name, found["constants"][name]) for name in NAMES}
    rows = tuple(tuple(float(value) for value in row) for row in found["covariance"])
    if [len(row) for row in rows] != [len(NAMES)] * len(NAMES):
        raise ValueError(f"its covariance is not {len(NAMES)} x {len(NAMES)}")
    noise, quantile = (positive(key, found[key]) for key in ("noise", "quantile"))
    return Calibration(Constants(**values), rows, noise, quantile, str(found["fitted_to"]))


def positive(name: str, value: Any) -> float:
    """Return a number above 0, or raise ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"{name} is {value!r}, not a number above 0")
    return float(value)


def write_calibration(path: Path, calibration: Calibration, samples: list[dict[str, Any]]) -> None:
    """Write a calibration with the runs that it was fitted to; refuse to replace a file."""
    if path.exists():
        raise ConfigError(f"{path} exists. Remove it, or set another file with --output FILE.yaml.")
    values = {
        "fitted_to": calibration.fitted_to,
        "constants": {name: float(f"{value:.5g}") for name, value in asdict(calibration.constants).items()},
        "noise": float(f"{calibration.noise:.5g}"),
        "quantile": float(f"{calibration.quantile:.5g}"),
        "covariance": [[float(f"{value:.5g}") for value in row] for row in calibration.covariance],
        "runs": samples,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, yaml.safe_dump(values, sort_keys=False, default_flow_style=None, width=1000))
