"""The metric registry: name, unit, definition and digits of every number that a run leaves behind.

A constant of this module is the only way to name a metric; writer, reader, figures and report share it.
Values on disk are SI base units in full precision; rounding happens where a person reads. A value that is
not known is absent: no 0, -1, inf or NaN stands for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Better(Enum):
    """Which direction is an improvement."""

    low = "low"
    high = "high"
    neither = "neither"


@dataclass(frozen=True)
class Metric:
    """One measured or counted quantity."""

    name: str
    unit: str
    definition: str
    better: Better = Better.neither
    digits: int = 3
    """Significant digits a person is shown."""


# --- one value per optimizer step (metrics.jsonl) -------------------------------------------------------------
STEP = Metric("step", "1", "Optimizer step, counted from 1 over the whole run, resumed or not.", digits=9)
ATTEMPT = Metric("attempt", "1", "Which start of the run computed this step, counted from 1.", digits=9)
LOSS = Metric(
    "loss",
    "nat",
    "Cross-entropy summed over the labels of the global batch, divided by their number; before this step's update.",
    Better.low,
    5,
)
LEARNING_RATE = Metric("learning_rate", "1", "Learning rate this step's update used.", digits=3)
GRADIENT_NORM = Metric(
    "gradient_norm", "1", "2-norm of the gradient of the mean loss over all parameters, before clipping.", digits=4
)
STEP_TIME = Metric(
    "step_time_s",
    "s",
    "Wall clock from asking for the batch to the end of the optimizer update "
    "and the loss reduction, device synchronised; the slowest rank.",
    Better.low,
    4,
)
TOKENS = Metric("tokens", "1", "Tokens of the global batch that are data, padding not counted.", digits=9)
PADDED_TOKENS = Metric("padded_tokens", "1", "Tokens of the global batch as computed on, padding counted.", digits=9)
CHECKPOINT_TIME = Metric(
    "checkpoint_time_s",
    "s",
    "Wall clock in which saving a checkpoint after this step held up training; the slowest rank.",
    Better.low,
    3,
)
CHECKPOINT_WRITE_TIME = Metric(
    "checkpoint_write_time_s",
    "s",
    "From the first byte of a checkpoint to its directory having its name, while training may go on.",
    Better.low,
    3,
)
CHECKPOINT_SIZE = Metric("checkpoint_size_bytes", "B", "Bytes of a checkpoint on disk, all ranks together.", digits=4)
MEMORY_PEAK = Metric(
    "memory_peak_bytes",
    "B",
    "Most memory a rank has held so far: allocated device memory on a "
    "GPU, resident set of the process on a CPU; the fullest rank.",
    Better.low,
    4,
)

# --- one value per attempt (status.jsonl, `finished` and `stopped` events) ------------------------------------
STARTUP_TIME = Metric(
    "startup_time_s",
    "s",
    "From the start of rank 0's process to its first step: imports, rendezvous, model, data, checkpoint loading.",
    Better.low,
    3,
)
FIRST_STEP_TIME = Metric("first_step_time_s", "s", "Step time of the attempt's first step.", Better.low, 3)
STEADY_TIME = Metric("steady_time_s", "s", "Sum of the step times after the unmeasured first steps.", Better.low, 4)
WARMUP_TIME = Metric(
    "warmup_time_s", "s", "Sum of the step times of the unmeasured steps after the first.", Better.low, 3
)
CHECKPOINT_TOTAL_TIME = Metric("checkpoint_total_time_s", "s", "Sum of checkpoint_time_s.", Better.low, 3)
OTHER_TIME = Metric(
    "other_time_s", "s", "total_time_s less start-up, steps and checkpoints: logging, export, closing.", Better.low, 3
)
TOTAL_TIME = Metric("total_time_s", "s", "From the start of rank 0's process to its recorded end.", Better.low, 4)

# --- one value per attempt, or per attempt, axis and collective (status.jsonl, `layout` event) -------------------
PARAMETERS_HELD = Metric(
    "parameters_held",
    "1",
    "Weights that a rank keeps between steps, as cut by tensor, pipeline and FSDP; the rank with the most.",
    Better.low,
    4,
)
COLLECTIVE_CALLS = Metric(
    "collective_calls",
    "1",
    "Calls of one collective over one axis of the rank grid in one step, of the rank that moves the most in all.",
    digits=9,
)
COLLECTIVE_BYTES = Metric(
    "collective_bytes",
    "B",
    "Payload of one collective over one axis of the rank grid in one step: the whole tensor that is reduced, the "
    "gathered output, the input that is scattered, the tensor that is sent; of the rank that moves the most in all.",
    Better.low,
    4,
)

# --- derived per run by analysis ------------------------------------------------------------------------------
TOKENS_PER_S = Metric(
    "tokens_per_s",
    "1/s",
    "Tokens of the steady steps divided by their summed step time, all ranks together.",
    Better.high,
    4,
)
TOKENS_PER_S_PER_RANK = Metric("tokens_per_s_per_rank", "1/s", "tokens_per_s divided by ranks.", Better.high, 4)
STEP_TIME_MEDIAN = Metric("step_time_median_s", "s", "Median of the steady step times.", Better.low, 4)
STEP_TIME_P10 = Metric("step_time_p10_s", "s", "10th percentile of the steady step times.", Better.low, 4)
STEP_TIME_P90 = Metric("step_time_p90_s", "s", "90th percentile of the steady step times.", Better.low, 4)
SPEEDUP = Metric(
    "speedup",
    "1",
    "Strong scaling: median tokens_per_s over repeats, divided by that of the reference point.",
    Better.high,
    3,
)
EFFICIENCY = Metric(
    "efficiency",
    "1",
    "Median tokens_per_s_per_rank over repeats, divided by that of the reference point.",
    Better.high,
    3,
)
FINAL_LOSS = Metric("final_loss", "nat", "Loss of the last step.", Better.low, 5)

REGISTRY: dict[str, Metric] = {m.name: m for m in list(globals().values()) if isinstance(m, Metric)}

STEP_METRICS = (
    STEP,
    ATTEMPT,
    LOSS,
    LEARNING_RATE,
    GRADIENT_NORM,
    STEP_TIME,
    TOKENS,
    PADDED_TOKENS,
    CHECKPOINT_TIME,
    MEMORY_PEAK,
)
ATTEMPT_METRICS = (
    STARTUP_TIME,
    FIRST_STEP_TIME,
    WARMUP_TIME,
    STEADY_TIME,
    CHECKPOINT_TOTAL_TIME,
    OTHER_TIME,
    TOTAL_TIME,
)
