"""Rules of job.loss_band: its reference has the losses, and is the same run but for the arithmetic."""

from __future__ import annotations

from pathlib import Path

from jobs.errors import SuiteError
from jobs.loss_band import differences, recorded_losses
from jobs.plan.rules.rule import Rule
from jobs.rundir import RunDir, load_run
from jobs.schema import LossBand, Run

OFF = "or job.loss_band.reference=null"
MOST_NAMED = 4


def reference_is_the_same_run(run: Run) -> str | None:
    """Require a reference with enough losses, and with all settings that the loss follows from but the precision."""
    band = run.job.loss_band
    if band.reference is None:
        return None
    named, directory = f"job.loss_band.reference={band.reference}", Path(band.reference)
    try:
        reference = load_run(RunDir(directory).config)
        known = len(recorded_losses(directory))
    except (SuiteError, OSError) as error:
        return f"{named} cannot be read: {error} Set it to the directory of a finished run, {OFF}."
    if known < band.steps:
        return (
            f"{named} has the losses of {known} steps, and job.loss_band.steps={band.steps}. Set it to a longer run, "
            f"job.loss_band.steps={max(known, 1)} or less, {OFF}."
        )
    if found := list(differences(run, reference)):
        more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
        return (
            f"{named} has other settings that the loss follows from: {', '.join(found[:MOST_NAMED])}{more}. Set the "
            f"same here, another reference, {OFF}."
        )
    return None


def band_has_a_reference(run: Run) -> str | None:
    """Refuse the width of a band around nothing."""
    band, plain = run.job.loss_band, LossBand()
    if band.reference is not None or band == plain:
        return None
    return (
        f"job.loss_band.percent={band.percent:g} and job.loss_band.steps={band.steps} have no effect without a "
        f"reference. Set job.loss_band.percent={plain.percent:g} job.loss_band.steps={plain.steps}, or "
        "job.loss_band.reference=DIRECTORY to a run in bfloat16."
    )


RULES: tuple[Rule, ...] = (band_has_a_reference, reference_is_the_same_run)
