"""The metric registry: name, unit, definition and digits of every number that a run leaves behind.

A constant of this module is the only way to name a metric; writer, reader, figures and report share it.
Values on disk are SI base units in full precision; rounding happens where a person reads. A value that is
not known is absent: no 0, -1, inf or NaN stands for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum


class Better(Enum):
    """Which direction is an improvement."""

    low = "low"
    high = "high"
    neither = "neither"


# Each is itself alone, which also makes it a fast key of a dictionary.
@dataclass(frozen=True, eq=False)
class Metric:
    """One measured or counted quantity."""

    name: str
    unit: str
    definition: str
    better: Better = Better.neither
    digits: int = 3
    """Significant digits a person is shown."""

    def __reduce__(self) -> tuple[Callable[[str], Metric], tuple[str]]:
        """Pickle the name, so that another process gets its own object of REGISTRY and not a second one."""
        return registered, (self.name,)


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
    "Wall clock from asking for the batch (made in the step unless engine.prefetch_batches makes it ahead) to the end "
    "of the optimizer update and the loss reduction, device synchronised; the slowest rank.",
    Better.low,
    4,
)
SAMPLES = Metric(
    "samples", "1", "Samples of the global batch as drawn from the data, whatever was configured.", digits=9
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
ELAPSED = Metric(
    "elapsed_s",
    "s",
    "From the start of the attempt's first step until this step was recorded: steps, checkpoints and all between them.",
    digits=4,
)
MEMORY_PEAK = Metric(
    "memory_peak_bytes",
    "B",
    "Most memory a rank has held so far: allocated device memory on a "
    "GPU, resident set of the process on a CPU; the fullest rank.",
    Better.low,
    4,
)

# --- one value per attempt, of rank 0 (status.jsonl, `started` event); they sum to startup_time_s -----------------
STARTUP_IMPORT_TIME = Metric(
    "startup_import_time_s",
    "s",
    "From the start of rank 0's process until all that training needs is imported: interpreter, torch, LitGPT or NeMo.",
    Better.low,
    3,
)
STARTUP_RENDEZVOUS_TIME = Metric(
    "startup_rendezvous_time_s",
    "s",
    "Rank 0 choosing its device and making the process groups: it waits there for the last rank to come up.",
    Better.low,
    3,
)
STARTUP_DATA_TIME = Metric(
    "startup_data_time_s", "s", "Rank 0 opening the tokenized samples, or making them.", Better.low, 3
)
STARTUP_MODEL_TIME = Metric(
    "startup_model_time_s",
    "s",
    "Rank 0 building the model without memory for its weights, and cutting it over ranks.",
    Better.low,
    3,
)
STARTUP_WEIGHTS_TIME = Metric(
    "startup_weights_time_s",
    "s",
    "Rank 0 reading its first weights, or drawing them, into memory; with DDP the copy to the other ranks, and the "
    "optimizer.",
    Better.low,
    3,
)
STARTUP_CHECKPOINT_TIME = Metric(
    "startup_checkpoint_time_s",
    "s",
    "Rank 0 looking for a checkpoint to resume from, and reading it with the others.",
    Better.low,
    3,
)
STARTUP_OTHER_TIME = Metric(
    "startup_other_time_s",
    "s",
    "startup_time_s less the other parts: preparing to save and to record, waiting for ranks that loaded more slowly; "
    "with engine=nemo also rendezvous, model, weights and checkpoint, which are inside NeMo; with engine=litgpt all of "
    "LitGPT until its first step, its first validation too.",
    Better.low,
    3,
)

# --- one value per attempt (status.jsonl, `finished` and `stopped` events; start-up: `started` too) -----------
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

# --- one value per attempt of engine=litgpt (status.jsonl, `litgpt` event) ---------------------------------------
LITGPT_TRAINING_TIME = Metric(
    "litgpt_training_time_s",
    "s",
    "What LitGPT prints as its training time: its first validation, the steps, and what it does between them; of "
    "pretraining also the last validation and saving.",
    Better.low,
    4,
)

# --- one value per checkpoint (status.jsonl, `checkpoint` event) --------------------------------------------------
CHECKPOINT_WRITE_TIME = Metric(
    "checkpoint_write_time_s",
    "s",
    "From the first byte of a checkpoint to its directory having its name, while training may go on.",
    Better.low,
    3,
)
CHECKPOINT_SIZE = Metric("checkpoint_size_bytes", "B", "Bytes of a checkpoint on disk, all ranks together.", digits=4)

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

# --- values of a rank over a window of steps (status.jsonl, `pace` event) ------------------------------------------
OWN_TIME = Metric(
    "own_time_s",
    "s",
    "Time of a step in which a rank waits for no other: getting its batch (from asking for it), and the forward passes "
    "of the transformer layers it holds; medians over the steps of a window. Ranks of a tensor or context group meet "
    "inside layers: the least time of the group's counts for each.",
    Better.low,
    3,
)
BATCH_TIME = Metric("batch_time_s", "s", "Part of own_time_s: getting the batch.", Better.low, 3)
OTHERS_OWN_TIME = Metric(
    "others_own_time_s", "s", "Median own_time_s of the other ranks that hold the same layers.", Better.low, 3
)

# --- one value per evaluation (status.jsonl, `evaluated` event) ---------------------------------------------------
EVALUATION_LOSS = Metric(
    "evaluation_loss",
    "nat",
    "Cross-entropy summed over the labels of the held-out samples, divided by their number; the weights after "
    "training, dropout off.",
    Better.low,
    5,
)
EVALUATION_PERPLEXITY = Metric("evaluation_perplexity", "1", "exp(evaluation_loss).", Better.low, 5)
EVALUATION_LABELS = Metric("evaluation_labels", "1", "Labels of the held-out samples.", digits=9)
EVALUATION_SAMPLES = Metric("evaluation_samples", "1", "Samples held out of training.", digits=9)

# --- derived per run by analysis ------------------------------------------------------------------------------
TOKENS_PER_S = Metric(
    "tokens_per_s",
    "1/s",
    "Tokens of the steady steps divided by their summed step time, all ranks together.",
    Better.high,
    4,
)
TOKENS_PER_S_PER_RANK = Metric("tokens_per_s_per_rank", "1/s", "tokens_per_s divided by ranks.", Better.high, 4)
TOKENS_PER_STEP = Metric("tokens_per_step", "1", "Tokens of the steady steps divided by their number.", digits=4)
TOKENS_TRAINED = Metric(
    "tokens_trained",
    "1",
    "Tokens of the recorded steps that the final model is made of, padding not counted.",
    digits=4,
)
SAMPLES_PER_STEP = Metric("samples_per_step", "1", "Samples of the recorded steps divided by their number.", digits=9)
SAMPLES_TRAINED = Metric(
    "samples_trained", "1", "Samples of the recorded steps that the final model is made of.", digits=9
)
STEP_TIME_MEDIAN = Metric("step_time_median_s", "s", "Median of the steady step times.", Better.low, 4)
STEP_TIME_P10 = Metric("step_time_p10_s", "s", "10th percentile of the steady step times.", Better.low, 4)
STEP_TIME_P90 = Metric("step_time_p90_s", "s", "90th percentile of the steady step times.", Better.low, 4)
SPEEDUP = Metric(
    "speedup",
    "1",
    "Median tokens_per_s over repeats, divided by that of the reference point; of logs without it samples_per_s or "
    "steps_per_s. None for weak scaling.",
    Better.high,
    3,
)
EFFICIENCY = Metric(
    "efficiency",
    "1",
    "Median tokens_per_s_per_rank over repeats, divided by that of the reference point; of logs likewise.",
    Better.high,
    3,
)
# Median absolute deviation times this is the standard deviation of normal values (Rousseeuw and Croux 1993,
# https://doi.org/10.1080/01621459.1993.10476408).
MAD_TO_DEVIATION = 1.4826
SLOW_TIMES, SLOW_DEVIATIONS, SLOW_FEWEST_STEPS = 1.2, 5, 10
SLOW_STEPS = Metric(
    "slow_steps",
    "1",
    f"Steady steps that took more than {SLOW_TIMES} times the run's median step time, and more than "
    f"{SLOW_DEVIATIONS} robust standard deviations ({MAD_TO_DEVIATION} times the median absolute deviation) beyond it. "
    f"Of runs of at least {SLOW_FEWEST_STEPS} steady steps.",
    Better.low,
    9,
)
SLOW_STEPS_SHARE = Metric(
    "slow_steps_share",
    "1",
    "What slow_steps took beyond the median step time, divided by the sum of the steady step times.",
    Better.low,
    3,
)
DRIFT_BLOCKS, DRIFT_FEWEST_STEPS = 10, 50
STEP_TIME_DRIFT = Metric(
    "step_time_drift",
    "1",
    "By how much the step time rose from the first to the last steady step, divided by its median: the Theil-Sen slope "
    f"over the medians of {DRIFT_BLOCKS} equal blocks of steps. Of runs of at least {DRIFT_FEWEST_STEPS} steady steps.",
    digits=3,
)
STEP_TIME_DRIFT_P = Metric(
    "step_time_drift_p",
    "1",
    "How probable it is that, without a drift, Kendall's tau of these blocks is as far from 0; blocks are taken as "
    "independent. Absent where all of them are equal.",
    digits=2,
)
STRAGGLER_TIMES, STRAGGLER_SMALLEST_SHARE = 1.1, 0.02
STRAGGLER_WINDOWS, STRAGGLER_FEWEST_WINDOWS = 0.75, 4
STRAGGLER_SHARE = Metric(
    "straggler_share",
    "1",
    "How much longer own_time_s of the worst straggler is than others_own_time_s, divided by the step time; median "
    "over windows, 0 without a straggler. The others wait at least as long: backward passes are not in it. A rank "
    f"straggles if, in at least {STRAGGLER_WINDOWS:.0%} of the windows, its own time is more than {STRAGGLER_TIMES} "
    f"times the others' and longer by more than {STRAGGLER_SMALLEST_SHARE:.0%} of the step time; a node, if all of its "
    f"ranks do. Of runs with at least {STRAGGLER_FEWEST_WINDOWS} windows.",
    Better.low,
    3,
)
THROUGHPUT_RATIO = Metric(
    "throughput_ratio",
    "1",
    "A against B: median throughput over the repeats of a point of B, divided by that of its partner in A.",
    Better.high,
    4,
)
FINAL_LOSS = Metric("final_loss", "nat", "Loss of the last step.", Better.low, 5)
EPOCH_TIME = Metric(
    "epoch_time_s",
    "s",
    "Step times of the steps that the final model is made of, summed and divided by the passes over the data.",
    Better.low,
    4,
)

# --- utilization, derived by analysis ---------------------------------------------------------------------------
MFU = Metric(
    "mfu",
    "1",
    "Model FLOPs utilization: (6 N + 12 L a s) x tokens_per_s / (ranks x dense peak of the device at the arithmetic "
    "type). N: weights in matrix products (output head in, looked-up embedding out, of experts the active ones); L: "
    "layers; a: heads x head size; s: mean tokens of a sequence; the causal mask is not deducted (PaLM, "
    "arXiv:2204.02311, appendix B). With LoRA 4 N: frozen weights have no gradient. Padding is not counted.",
    Better.high,
    3,
)
HFU = Metric(
    "hfu",
    "1",
    "Hardware FLOPs utilization: mfu with the forward pass of the layers once more where activation checkpointing is "
    "full (2 N of the layers + 4 L a s; arXiv:2205.05198). Absent where what is computed again is not known.",
    Better.neither,
    3,
)

# --- what a run cost over all of its starts, derived by analysis --------------------------------------------------
NODE_TIME = Metric(
    "node_time_s",
    "s",
    "Whole nodes times run_time_s without queue, requeue and the time that nobody had submitted it: start-up, useful "
    "and lost steps, checkpoints, rest. Prologue, container and starts whose ranks never met are not in it. Of a log "
    "its initialization and time to train.",
    Better.low,
    4,
)
RANK_TIME = Metric("rank_time_s", "s", "The same times ranks; on GPUs a rank is a GPU.", Better.low, 4)
RANK_TIME_PER_TOKEN = Metric(
    "rank_time_per_token_s", "s", "rank_time_s divided by tokens_trained: what a token cost.", Better.low, 4
)
RELATIVE_COST = Metric(
    "relative_cost",
    "1",
    "rank_time_per_token_s divided by its median at the reference point; 2 is twice the price for a token.",
    Better.low,
    3,
)
SERVICE_UNITS = Metric(
    "service_units", "1", "node_time_s in hours times cluster.service_units_per_node_hour.", Better.low, 4
)
ENERGY = Metric(
    "energy_j",
    "J",
    "Power readings of all devices that were read, integrated by trapezoids over the starts of the run (of a log from "
    "run_start to run_stop); where none was read nothing is added.",
    Better.low,
    4,
)
ENERGY_COVERED = Metric(
    "energy_covered", "1", "Share of the time of these devices over which power could be integrated.", Better.high, 3
)
ENERGY_PER_TOKEN = Metric(
    "energy_per_token_j",
    "J",
    "energy_j divided by tokens_trained; absent where energy_covered is below 0.95, or where not exactly the run's "
    "devices were read.",
    Better.low,
    4,
)

# --- checkpoints of a run, derived by analysis; steps and checkpoints of all starts, also those done again ------------
CHECKPOINT_STALL = Metric(
    "checkpoint_stall_s", "s", "Median of checkpoint_time_s: how long a checkpoint held up training.", Better.low, 3
)
CHECKPOINT_STALL_SHARE = Metric(
    "checkpoint_stall_share",
    "1",
    "Sum of checkpoint_time_s divided by the sum of step_time_s: what saving so often adds to the steps.",
    Better.low,
    3,
)
CHECKPOINT_BANDWIDTH = Metric(
    "checkpoint_bandwidth_bytes_per_s",
    "B/s",
    "Median over checkpoints of checkpoint_size_bytes divided by checkpoint_write_time_s, all ranks together; the "
    "native engine's files are synced to the disk in that time.",
    Better.high,
    3,
)
CHECKPOINT_BANDWIDTH_LOW = Metric(
    "checkpoint_bandwidth_low_bytes_per_s", "B/s", "The same of the slowest checkpoint.", Better.high, 3
)
CHECKPOINT_BANDWIDTH_HIGH = Metric(
    "checkpoint_bandwidth_high_bytes_per_s", "B/s", "The same of the fastest checkpoint.", Better.high, 3
)

# --- where a finished run's wall time went over all of its starts, derived by analysis; the parts sum to run_time_s ---
GOODPUT = Metric(
    "goodput",
    "1",
    "useful_time_s divided by run_time_s: the share of the wall time that went into steps that the final model is made "
    "of. It counts time, not how well the hardware was used (that is MFU).",
    Better.high,
    3,
)
RUN_TIME = Metric(
    "run_time_s",
    "s",
    "From the submission that led to the first start to the recorded end; without a queue (launcher=local, by hand) "
    "from the start of rank 0's process. The submitting host's clock is compared with that of rank 0's node.",
    Better.low,
    4,
)
QUEUE_TIME = Metric(
    "queue_time_s",
    "s",
    "From a submission to the start of rank 0's process, of the first start whose ranks met: Slurm's queue, of a pilot "
    "also the turn in its job, prologue, container, srun. Absent without a queue, and where the two clocks would make "
    "it negative.",
    Better.low,
    3,
)
STARTUPS_TIME = Metric("startups_time_s", "s", "startup_time_s, summed over all starts.", Better.low, 3)
USEFUL_TIME = Metric("useful_time_s", "s", "Sum of the step times of steps that the final model is made of.", digits=4)
LOST_TIME = Metric(
    "lost_time_s",
    "s",
    "Steps that a later start did again, and the time from the last recorded step of a start to its death.",
    Better.low,
    3,
)
LOST_STEPS = Metric(
    "lost_steps", "1", "Recorded steps that a later start did again, or that were beyond its checkpoint.", Better.low, 9
)
CHECKPOINTS_TIME = Metric("checkpoints_time_s", "s", "Sum of checkpoint_time_s over all starts.", Better.low, 3)
REQUEUE_TIME = Metric(
    "requeue_time_s",
    "s",
    "From the recorded end of a start (its last recorded step where there is none) to the start of rank 0's process of "
    "the next one, where nobody submitted it again: noticing, pause, queue, starts whose ranks never met.",
    Better.low,
    3,
)
UNSUBMITTED_TIME = Metric(
    "unsubmitted_time_s",
    "s",
    "From the end of a start until somebody submitted the run again (launcher=local: until it started).",
    Better.low,
    3,
)
REST_TIME = Metric("rest_time_s", "s", "What is left of run_time_s: logging, export, closing.", Better.low, 3)

REGISTRY: dict[str, Metric] = {m.name: m for m in list(globals().values()) if isinstance(m, Metric)}


def registered(name: str) -> Metric:
    """Return the metric of this name; raise KeyError where there is none."""
    return REGISTRY[name]


STEP_METRICS = (
    STEP,
    ATTEMPT,
    LOSS,
    LEARNING_RATE,
    GRADIENT_NORM,
    STEP_TIME,
    SAMPLES,
    TOKENS,
    PADDED_TOKENS,
    CHECKPOINT_TIME,
    ELAPSED,
    MEMORY_PEAK,
)
STARTUP_PARTS = (
    STARTUP_IMPORT_TIME,
    STARTUP_RENDEZVOUS_TIME,
    STARTUP_DATA_TIME,
    STARTUP_MODEL_TIME,
    STARTUP_WEIGHTS_TIME,
    STARTUP_CHECKPOINT_TIME,
    STARTUP_OTHER_TIME,
)
GOODPUT_PARTS = (
    QUEUE_TIME,
    STARTUPS_TIME,
    USEFUL_TIME,
    LOST_TIME,
    CHECKPOINTS_TIME,
    REQUEUE_TIME,
    UNSUBMITTED_TIME,
    REST_TIME,
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
EVALUATION_METRICS = (EVALUATION_LOSS, EVALUATION_PERPLEXITY, EVALUATION_LABELS, EVALUATION_SAMPLES)
