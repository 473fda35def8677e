"""`slurmscale calibrate`: fit the constants of a cluster to finished runs and write a dated file of the site."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from jobs.errors import ConfigError
from jobs.plan.predict.calibration import Calibration, write_calibration
from jobs.plan.predict.constants import DEFAULTS, NAMES
from jobs.plan.predict.fit import Sample, calibrate
from jobs.plan.predict.prediction import step_interval
from jobs.plan.predict.step_time import work_of
from jobs.schema import Run


@dataclass(frozen=True)
class MeasuredRun:
    """A finished run and its median step time."""

    path: Path
    run: Run
    step_time_s: float


def calibrate_on(measured: Sequence[MeasuredRun], output: Path | None, today: date) -> str:
    """Write the calibration that fits some runs, and return the text to print."""
    found = [(each, work) for each in measured if (work := work_of(each.run)) is not None]
    if not found:
        raise ConfigError(
            "No finished run on a known GPU: a calibration needs measured step times, and peak and memory bandwidth of "
            "the GPU (gpu=NAME, see conf/gpu). Pass sweeps or run directories of GPU runs."
        )
    gpus = sorted({each.run.gpu.name for each, _ in found})
    if len(gpus) > 1:
        raise ConfigError(f"These runs are of {' and '.join(gpus)}: a calibration is of one GPU. Pass those of one.")
    samples = [Sample(work, each.step_time_s) for each, work in found]
    count = f"{len(samples)} run{'s' if len(samples) > 1 else ''}"
    calibration = calibrate(samples, f"{count} on {gpus[0]}, {today.isoformat()}")
    cluster = found[0][0].run.cluster.name
    site = Path(os.environ.get("SLURMSCALE_SITE", "."))
    path = output or site / "calibration" / f"{cluster}-{today.isoformat()}.yaml"
    rows = [record(each, sample, calibration) for (each, _), sample in zip(found, samples, strict=True)]
    write_calibration(path, calibration, rows)
    return "\n".join([*changed_lines(calibration), *residual_lines(rows), f"{path}: set cluster.calibration={path}"])


def record(measured: MeasuredRun, sample: Sample, calibration: Calibration) -> dict[str, Any]:
    """Return a run as its calibration lists it."""
    predicted = step_interval(sample.work, calibration)
    return {
        "path": str(measured.path),
        "model": measured.run.model.name,
        "ranks": measured.run.ranks,
        "measured_s": float(f"{measured.step_time_s:.5g}"),
        "fitted_s": float(f"{predicted.point:.5g}"),
    }


def changed_lines(calibration: Calibration) -> list[str]:
    """Return a line for each constant: its value, and the published one that it started from."""
    return [
        f"{name} {getattr(calibration.constants, name):.3g} (published {getattr(DEFAULTS, name):.3g})" for name in NAMES
    ]


def residual_lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return a line for each run with its measured and fitted step time."""
    return [
        f"{row['path']}: measured {row['measured_s']:.4g} s, fitted {row['fitted_s']:.4g} s "
        f"({100 * (row['fitted_s'] / row['measured_s'] - 1):+.1f} %)"
        for row in rows
    ]
