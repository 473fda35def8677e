"""Rules of cluster.calibration: the file can be read, and has a fit of the run's GPU and engine."""

from __future__ import annotations

from jobs.errors import ConfigError
from jobs.plan.predict.calibration import Calibration, calibration_of
from jobs.plan.rules.rule import Rule
from jobs.schema import Run


def file_is_a_calibration(run: Run) -> str | None:
    """Refuse a file that `slurmscale calibrate` has not written."""
    try:
        calibration_of(run)
    except ConfigError as error:
        return str(error)
    return None


def calibration_is_of_the_run(run: Run) -> str | None:
    """Warn of a calibration that leaves the predictions of a run uncalibrated."""
    if run.cluster.calibration is None or calibration_of(run) != Calibration():
        return None
    return (
        f"{run.cluster.calibration} has no fit of gpu={run.gpu.name} engine={run.engine.kind.name}, so predictions are "
        "uncalibrated. Run slurmscale calibrate with such runs too."
    )


RULES: tuple[Rule, ...] = (file_is_a_calibration,)
WARNINGS: tuple[Rule, ...] = (calibration_is_of_the_run,)
