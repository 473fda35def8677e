"""Predicted speed of a run: its step time with an interval, and what follows from it: tokens/s, MFU, hours."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from jobs.engines.engine import engine_of
from jobs.metrics import STEP_TIME
from jobs.plan.cost import checkpoint_bytes, parameters_met
from jobs.plan.predict.activations import with_rows
from jobs.plan.predict.calibration import STEP_TIME_PRIOR, Fit, basis, calibration_of
from jobs.plan.predict.constants import StepTimeConstants
from jobs.plan.predict.flops import FLOPS_PER_ATTENDED, FLOPS_PER_FROZEN_WEIGHT, FLOPS_PER_WEIGHT
from jobs.plan.predict.interval import Interval
from jobs.plan.predict.matrix_products import attended_by
from jobs.plan.predict.once import once
from jobs.plan.predict.step_time import (
    IMBALANCE,
    StepTime,
    StepWork,
    peak_flops_per_s,
    step_time,
    step_time_s,
    step_work,
)
from jobs.plan.time_limit import WRITE_BYTES_PER_S
from jobs.schema import Run
from jobs.work.work import work_of

if TYPE_CHECKING:
    from jobs.runtime.steps import Samples  # which imports NumPy

UNCALIBRATED = "by published constants, not fitted to runs on this cluster"
START_S = Interval(90, 30, 300)
"""Time from the start of the processes to the first step: imports, process groups, weights. An estimate, so wide."""
BACKGROUND_STALL = 0.06
"""Part of a checkpoint's time that stops training if it is written in the background (tests/README.md, Checkpoints)."""
FAILED_TRY = 0.25
"""Cost of a try that does not fit over that of a run: it fails in its first steps, and the next one waits in the queue
again. Chosen among five by the layouts that are tried first in published tables (tests/README.md)."""
POWER_SHARE = Interval(0.75, 0.45, 1.0)
"""Mean power of a GPU in training over the largest of its board. A node of eight H100 took 0.76 of its rating in
intensive training, and never more than 0.82 (https://arxiv.org/abs/2506.14551, https://arxiv.org/abs/2412.08602). One
that waits for its network takes less."""
DIGITS = 6
"""Decimals of seconds in plan.json."""


@dataclass(frozen=True)
class Speed:
    """Predicted step time, rates and hours of a run.

    An interval is worked out when it is read, from one more step time for each constant: a search reads those of the
    layouts that it shows.
    """

    work: StepWork
    known: Fit[StepTimeConstants]
    tokens: float
    """Those of a step on one GPU, without padding."""
    peak_share: float
    """Seconds that the FLOPs of a token take at the peak rate."""
    steps: int | None
    """Optimizer steps; None if their number depends on the data."""
    stops_s: Interval
    """Time of the start and of checkpoints."""
    board_w: float | None
    """Largest power of a GPU; None if it is not known."""
    basis: str
    """Calibration of its constants, as text."""

    @cached_property
    def point_s(self) -> float:
        """Return the step time without its interval."""
        return step_time_s(self.work, self.known.constants)

    @cached_property
    def step_time_s(self) -> Interval:
        """Return the step time; with divided experts its interval has loads from equal to very unequal ones."""
        step = self.known.interval(lambda constants: step_time_s(self.work, constants))
        if self.work.imbalance == 1:
            return step
        busy = (replace(self.work, imbalance=load) for load in (IMBALANCE.low, IMBALANCE.high))
        return step.widened(*(step_time_s(each, self.known.constants) for each in busy))

    @property
    def terms(self) -> StepTime:
        """Return the step time by cause."""
        return step_time(self.work, self.known.constants)

    @property
    def tokens_per_s_per_gpu(self) -> Interval:
        """Return the rate of a GPU."""
        return self.step_time_s.divides(self.tokens)

    @property
    def mfu(self) -> Interval:
        """Return the model FLOPs utilization."""
        return self.tokens_per_s_per_gpu.scaled(self.peak_share)

    @property
    def hours(self) -> Interval | None:
        """Return the time to the end of the run; None if the number of steps depends on the data."""
        return None if self.steps is None else (self.step_time_s.scaled(self.steps) + self.stops_s).scaled(1 / 3600)

    @property
    def gpu_hours(self) -> Interval | None:
        """Return the hours of all GPUs."""
        return None if (hours := self.hours) is None else hours.scaled(self.work.ranks)

    @property
    def energy_kwh(self) -> Interval | None:
        """Return the energy of all GPUs from start to end; None if hours or power are not known."""
        if self.board_w is None or (hours := self.gpu_hours) is None:
            return None
        energy, share = hours.scaled(POWER_SHARE.point * self.board_w / 1000), POWER_SHARE.scaled(1 / POWER_SHARE.point)
        return energy.widened(energy.point * share.low, energy.point * share.high)

    def record(self) -> dict[str, object]:
        """Return the prediction as plan.json contains it."""
        return {
            "basis": self.basis,
            STEP_TIME.name: self.step_time_s.record(DIGITS),
            "terms_s": {term: round(size, DIGITS) for term, size in vars(self.terms).items()},
            "tokens_per_s_per_gpu": self.tokens_per_s_per_gpu.record(DIGITS),
            **({} if self.hours is None else {"hours": self.hours.record(DIGITS)}),
            **({} if self.energy_kwh is None else {"energy_kwh": self.energy_kwh.record(DIGITS)}),
        }


@once
def speed(run: Run, samples: Samples | None = None) -> Speed | None:
    """Return the predicted speed of a run that jobs.plan.legality has passed.

    None if its GPU's rates are not known, and for a run that serves: it has no optimizer steps.
    Without `samples` every sample has job.sequence_length tokens, and the number of steps is that of the job.
    """
    if not work_of(run).has_batch:
        return None
    timed, used = run, 1.0
    if samples is not None and samples.tokens is not None:
        timed = with_rows(run, samples.tokens.computed)
        # The step computes padding too, but tokens/s counts the tokens of samples.
        used = samples.tokens.used / samples.tokens.computed
    work, peak = step_work(timed), peak_flops_per_s(run)
    if work is None or peak is None or not work_of(run).is_predicted:
        return None
    fit = calibration_of(run).step_time
    steps = (samples.steps if samples else 0) or number_of_steps(run)
    return Speed(
        work,
        known=fit or STEP_TIME_PRIOR,
        tokens=used * work.tokens / work.ranks,
        peak_share=model_flops(timed) / peak,
        steps=steps,
        stops_s=stops_s(run, steps or 0),
        board_w=min(filter(None, (run.gpu.power_w, run.cluster.gpu_power_limit_w)), default=None),
        basis=basis(fit, UNCALIBRATED),
    )


def expected_s(seconds: float, chance: float) -> float:
    """Return the expected time until a success."""
    # 1 / chance tries on average, all of which but the last one fail.
    return seconds * (1 + FAILED_TRY * (1 / max(chance, 1e-9) - 1))


def model_flops(run: Run) -> float:
    """Return the FLOPs of a token as MFU counts them: 6 N + 12 L a s (analysis.metrics.mfu)."""
    model = run.model
    per_weight = FLOPS_PER_WEIGHT if run.job.trains_all_weights else FLOPS_PER_FROZEN_WEIGHT
    entries = model.heads * (model.head_size + model.value_size) / 2 * attended_by(run)
    return per_weight * parameters_met(model) + FLOPS_PER_ATTENDED * entries


def stops_s(run: Run, steps: int) -> Interval:
    """Return the time besides steps, in seconds: START_S + checkpoints x the time that one holds training up.

    The run waits for the last checkpoint, which is saved at its end whatever the interval (jobs.work.train.loop).
    """
    every = run.job.checkpoint_every_steps
    if every is None:
        return START_S
    earlier = max(0, steps - 1) // every
    background = engine_of(run).writes_in_background and run.job.checkpoint_in_background
    saved = earlier * (BACKGROUND_STALL if background else 1) + 1
    write_s = checkpoint_bytes(run) / WRITE_BYTES_PER_S
    # A file system of a tenth to ten times the assumed bandwidth.
    return START_S + Interval(write_s, write_s / 10, write_s * 10).scaled(saved)


def number_of_steps(run: Run) -> int | None:
    """Return the optimizer steps of a run; None if they depend on the number of samples in the data."""
    if run.job.steps is not None:
        return run.job.steps
    if run.job.epochs is None or run.data.max_samples is None:
        return None
    # An epoch drops its last, incomplete global batch (jobs.runtime.steps).
    return run.job.epochs * ((run.data.max_samples - run.data.held_out_samples) // run.global_batch_size)
