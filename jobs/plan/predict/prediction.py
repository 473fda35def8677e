"""Predicted step time of a run with its interval, and what follows from it: tokens/s, MFU, hours."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from jobs.plan.cost import checkpoint_bytes, embedding_parameters, gated_parameters, parameters
from jobs.plan.predict.calibration import STEP, Calibration, calibration_of
from jobs.plan.predict.constants import NAMES, Constants
from jobs.plan.predict.flops import FLOPS_PER_ATTENDED, FLOPS_PER_FROZEN_WEIGHT, FLOPS_PER_WEIGHT
from jobs.plan.predict.interval import Interval
from jobs.plan.predict.step_time import StepTime, Work, peak_flops_per_s, step_time, step_time_s, work_of
from jobs.plan.time_limit import WRITE_BYTES_PER_S
from jobs.schema import EngineKind, Run

START_S = Interval(90, 30, 300)
"""From the start of the processes to the first step: imports, process groups, weights; of no source, so wide."""
BACKGROUND_STALL = 0.06
"""Part of a checkpoint's time that stops training if it is written in the background (tests/README.md, Checkpoints)."""


@dataclass(frozen=True)
class Prediction:
    """What a run is predicted to take."""

    step_time_s: Interval
    terms: StepTime
    tokens_per_s_per_gpu: Interval
    mfu: Interval
    hours: Interval | None
    """To the end of the run; None where the number of steps depends on the data."""
    gpu_hours: Interval | None
    fitted_to: str | None
    """What its constants were fitted to; None: they are published ones, of other machines."""


def predict(run: Run) -> Prediction | None:
    """Return the prediction of a run that jobs.plan.legality has passed; None where its GPU's rates are not known."""
    work = work_of(run)
    if work is None:
        return None
    calibration = calibration_of(run)
    step = step_interval(work, calibration)
    rate = inverse(work.tokens / work.ranks, step)
    peak = peak_flops_per_s(run)
    assert peak is not None, "work_of has returned None without a peak"
    flops = model_flops(run)
    total = total_s(run, step)
    hours = None if total is None else scaled(total, 1 / 3600)
    return Prediction(
        step_time_s=step,
        terms=step_time(work, calibration.constants),
        tokens_per_s_per_gpu=rate,
        mfu=scaled(rate, flops / peak),
        hours=hours,
        gpu_hours=None if hours is None else scaled(hours, run.ranks),
        fitted_to=calibration.fitted_to,
    )


def step_interval(work: Work, calibration: Calibration) -> Interval:
    """Return the step time with its interval: of the logarithm, from the constants' uncertainty and the noise."""
    point = step_time_s(work, calibration.constants)
    slopes = [math.log(step_time_s(work, moved(calibration.constants, name)) / point) / STEP for name in NAMES]
    rows = zip(slopes, calibration.covariance, strict=True)
    variance = sum(slope * sum(a * b for a, b in zip(row, slopes, strict=True)) for slope, row in rows)
    factor = math.exp(calibration.quantile * math.sqrt(max(variance, 0.0) + calibration.noise**2))
    return Interval(point, point / factor, point * factor)


def moved(constants: Constants, name: str) -> Constants:
    """Return constants of which one is larger by STEP."""
    values = asdict(constants)
    return Constants(**values | {name: values[name] * math.exp(STEP)})


def model_flops(run: Run) -> float:
    """Return the FLOPs of a token as MFU counts them: 6 N + 12 L a s (analysis.metrics.mfu)."""
    model = run.model
    looked_up = 0 if model.tie_embeddings else embedding_parameters(model)
    idle = max(0, model.experts - model.experts_per_token)
    idle_weights = model.layers * idle * gated_parameters(model.hidden_size, model.intermediate_size)
    per_weight = FLOPS_PER_WEIGHT if run.job.lora is None else FLOPS_PER_FROZEN_WEIGHT
    attended = model.layers * model.heads * model.head_size * run.job.sequence_length
    return per_weight * (parameters(model) - looked_up - idle_weights) + FLOPS_PER_ATTENDED * attended


def total_s(run: Run, step: Interval) -> Interval | None:
    """Return the time from the start of the processes to the end of the last step, checkpoints included."""
    steps = number_of_steps(run)
    if steps is None:
        return None
    saved = 0 if run.job.checkpoint_every_steps is None else steps // run.job.checkpoint_every_steps
    background = run.engine.kind is EngineKind.native and run.job.checkpoint_in_background
    write_s = checkpoint_bytes(run) / WRITE_BYTES_PER_S * (BACKGROUND_STALL if background else 1)
    # A file system of a tenth to ten times the assumed bandwidth.
    return scaled(step, steps) + START_S + scaled(Interval(write_s, write_s / 10, write_s * 10), saved)


def number_of_steps(run: Run) -> int | None:
    """Return the optimizer steps of a run; None where they depend on the number of samples in the data."""
    if run.job.steps is not None:
        return run.job.steps
    if run.job.epochs is None or run.data.max_samples is None:
        return None
    return run.job.epochs * ((run.data.max_samples - run.data.held_out_samples) // run.global_batch_size)


def scaled(interval: Interval, factor: float) -> Interval:
    """Return an interval times a factor."""
    return Interval(interval.point * factor, interval.low * factor, interval.high * factor)


def inverse(numerator: float, interval: Interval) -> Interval:
    """Return a numerator divided by an interval."""
    return Interval(numerator / interval.point, numerator / interval.high, numerator / interval.low)
