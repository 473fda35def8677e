"""The metric registry: name, units, definition and digits of every number that a run records or analysis derives.

A constant of this module is the only way to name a metric; writer, reader, figures and report share it. Values on disk
are in SI base units and full precision; display units and rounding apply where a person reads. An unknown value is
absent: no 0, -1, inf or NaN stands for it.

A constant here gives a metric its column in runs.csv (with `on_page` also on the page) and its definition on the page.
Its value comes from one function, in analysis/metrics/ or analysis/load/kinds/; a new module there is called in
analysis/load/discover.py. No other file changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import NamedTuple


class Better(Enum):
    """Direction of an improvement."""

    low = "low"
    high = "high"
    neither = "neither"


class Group(Enum):
    """Metrics that are recorded or reported together, in the order of this module."""

    step = "step"
    """A row of metrics.jsonl."""
    startup = "startup"
    """The parts of startup_time_s."""
    attempt = "attempt"
    """The parts of total_time_s, and their sum."""
    evaluation = "evaluation"
    """An `evaluated` event."""
    serving = "serving"
    """A `served` event."""
    server_sample = "server_sample"
    """A record of serving/replica-0.jsonl."""
    goodput = "goodput"
    """The parts of run_time_s."""
    profile = "profile"
    """The shares of profiled steps."""
    data = "data"
    """The account of a data set."""


class StoragePhase(Enum):
    """The work of a process while it reads and writes."""

    load = "load"
    """From the end of the imports to the first step: data, weights, an earlier checkpoint."""
    train = "train"
    """Steps."""
    checkpoint = "checkpoint"
    """A checkpoint or export that is being written, in the background as well."""
    validate = "validate"
    """An evaluation on the held-out samples."""
    serve = "serve"
    """The load on a run that serves, its warm-up included."""


class DisplayUnit(NamedTuple):
    """A unit in which reports show a metric."""

    name: str
    size: float
    """In base units."""


PERCENT = DisplayUnit("%", 0.01)
MILLION = DisplayUnit("million", 1e6)
BILLION = DisplayUnit("billion", 1e9)
HOUR = DisplayUnit("h", 3600.0)
HOUR_PER_BILLION_TOKENS = DisplayUnit("h per 1e9 tokens", 3600.0 / 1e9)
HOUR_PER_MILLION_TOKENS = DisplayUnit("h per 1e6 tokens", 3600.0 / 1e6)
PER_MILLION_TOKENS = DisplayUnit("per 1e6 tokens", 1e-6)
MICROSECOND = DisplayUnit("µs", 1e-6)
MILLISECOND = DisplayUnit("ms", 1e-3)
KILOWATT_HOUR = DisplayUnit("kWh", 3.6e6)
MEBIBYTE = DisplayUnit("MiB", 2.0**20)
GIBIBYTE = DisplayUnit("GiB", 2.0**30)
GIGABYTE = DisplayUnit("GB", 1e9)
MEGABYTE_PER_S = DisplayUnit("MB/s", 1e6)
GIGABYTE_PER_S = DisplayUnit("GB/s", 1e9)


_BY_NAME: dict[str, Metric] = {}
"""All metrics of this process: those of this module, and those that only logs of other programs contain."""


# Compared by identity, which also makes it a fast dictionary key.
@dataclass(frozen=True, eq=False)
class Metric:
    """One measured or derived quantity."""

    name: str
    unit: str
    """The SI base unit of values on disk."""
    definition: str
    better: Better = Better.neither
    digits: int = 3
    """Significant digits that reports show."""
    shown_in: DisplayUnit | None = None
    """The unit that reports show; None for the base unit."""
    heading: str | None = None
    """The heading without its unit; None for the name in words."""
    group: Group | None = None
    on_page: bool = False
    """The table of runs on the page has a column of it, besides runs.csv."""

    def __post_init__(self) -> None:
        """Remember the metric, so that it can be unpickled."""
        _BY_NAME[self.name] = self

    @property
    def display(self) -> DisplayUnit:
        """The unit that reports show."""
        return self.shown_in or DisplayUnit(self.unit, 1.0)

    def __reduce__(self) -> tuple[Callable[..., Metric], tuple[object, ...]]:
        """Pickle the name, so that another process gets its own object and not a second one."""
        return registered, (self.name,)


@dataclass(frozen=True, eq=False)
class DeclaredMetric(Metric):
    """A metric that the configuration of a run declares (program.metrics); made by `declared`."""

    def __post_init__(self) -> None:
        """Leave the names of this program's own metrics alone."""

    def __reduce__(self) -> tuple[Callable[..., Metric], tuple[object, ...]]:
        """Pickle the declaration: the other process may not have read the run."""
        return declared, (self.name, self.unit, self.definition, self.better)


# --- one value per optimizer step (metrics.jsonl) -------------------------------------------------------------
STEP = Metric(
    "step", "1", "Number of the optimizer step, from 1 over the whole run, resumed or not.", digits=9, group=Group.step
)
ATTEMPT = Metric(
    "attempt", "1", "Number of the start of the run that computed this step, from 1.", digits=9, group=Group.step
)
LOSS = Metric(
    "loss",
    "nat",
    "Cross-entropy summed over the labels of the global batch, divided by their number, before the update of the step.",
    Better.low,
    5,
    group=Group.step,
)
LEARNING_RATE = Metric("learning_rate", "1", "Learning rate of the update of the step.", digits=3, group=Group.step)
GRADIENT_NORM = Metric(
    "gradient_norm",
    "1",
    "2-norm of the gradient of the mean loss over all parameters, before clipping.",
    digits=4,
    group=Group.step,
)
STEP_TIME = Metric(
    "step_time_s",
    "s",
    "Wall time from requesting the batch (built within the step unless engine.prefetch_batches builds it ahead) to the "
    "end of the optimizer update and the loss reduction, device synchronised; the slowest rank.",
    Better.low,
    4,
    group=Group.step,
)
LOSS_SCALE = Metric(
    "loss_scale", "1", "Factor of the loss before backward in float16, after this step.", digits=6, group=Group.step
)
SKIPPED_UPDATES = Metric(
    "skipped_updates",
    "1",
    "Updates so far that were skipped because gradients overflowed in float16.",
    digits=9,
    group=Group.step,
)
Z_LOSS = Metric(
    "z_loss", "1", "Weighted z-loss of a step (job.z_loss), which the loss does not contain.", group=Group.step
)
EXPERT_IMBALANCE = Metric(
    "expert_imbalance",
    "1",
    "Tokens of a layer's busiest expert in a step, divided by the mean of its experts; mean over the layers; of a run "
    "over its steady steps too. 1: balanced; experts / experts per token: all tokens choose the same ones.",
    Better.low,
    group=Group.step,
    on_page=True,
)
SAMPLES = Metric("samples", "1", "Samples drawn from the data for the global batch.", digits=9, group=Group.step)
TOKENS = Metric("tokens", "1", "Tokens of the global batch, padding excluded.", digits=9, group=Group.step)
PADDED_TOKENS = Metric(
    "padded_tokens", "1", "Tokens of the global batch, padding and virtual tokens included.", digits=9, group=Group.step
)
DATA_WAIT_TIME = Metric(
    "data_wait_time_s",
    "s",
    "The part of step_time_s in which a rank waited for images that its loader had not ready; the rank that waited "
    "longest.",
    Better.low,
    4,
    group=Group.step,
)
CHECKPOINT_TIME = Metric(
    "checkpoint_time_s",
    "s",
    "Wall time for which saving a checkpoint after this step blocked training; the slowest rank.",
    Better.low,
    3,
    group=Group.step,
)
ELAPSED = Metric(
    "elapsed_s",
    "s",
    "Wall time from the start of the attempt's first step to the record of this step, checkpoints included.",
    digits=4,
    group=Group.step,
)
MEMORY_PEAK = Metric(
    "memory_peak_bytes",
    "B",
    "Peak memory of a rank so far: on a GPU device memory that tensors took since the first step began, on a CPU "
    "resident set of the process; the rank with the most.",
    Better.low,
    4,
    GIBIBYTE,
    group=Group.step,
    on_page=True,
)
MEMORY_RESERVED_PEAK = Metric(
    "memory_reserved_peak_bytes",
    "B",
    "Peak device memory that a rank's allocator held since the first step began, its fragments included (GPUs); the "
    "rank with the most.",
    Better.low,
    4,
    GIBIBYTE,
    group=Group.step,
)
PROFILED = Metric(
    "profiled", "1", "1 for a step that ran under a profiler, which steady values exclude.", digits=1, group=Group.step
)

# --- one value per attempt, of rank 0 (status.jsonl, `started` event); they sum to startup_time_s -----------------
STARTUP_STAGING_TIME = Metric(
    "startup_staging_time_s",
    "s",
    "From the start of rank 0's process until a copy of its environment is on a disk of the node "
    "(cluster.stage_environment).",
    Better.low,
    3,
    group=Group.startup,
)
STARTUP_IMPORT_TIME = Metric(
    "startup_import_time_s",
    "s",
    "From the start of rank 0's process, or from the end of staging, to the end of its imports: interpreter, torch, "
    "LitGPT or NeMo.",
    Better.low,
    3,
    group=Group.startup,
)
STARTUP_RENDEZVOUS_TIME = Metric(
    "startup_rendezvous_time_s",
    "s",
    "Rank 0 selects its device and creates the process groups, which includes the wait for the last rank to start.",
    Better.low,
    3,
    group=Group.startup,
)
STARTUP_DATA_TIME = Metric(
    "startup_data_time_s", "s", "Rank 0 opens or creates the tokenized samples.", Better.low, 3, group=Group.startup
)
STARTUP_MODEL_TIME = Metric(
    "startup_model_time_s",
    "s",
    "Rank 0 builds the model without allocating its weights, and shards it over the ranks.",
    Better.low,
    3,
    group=Group.startup,
)
STARTUP_WEIGHTS_TIME = Metric(
    "startup_weights_time_s",
    "s",
    "Rank 0 reads or initialises its weights in memory; with DDP also the broadcast to the other ranks, and the "
    "optimizer.",
    Better.low,
    3,
    group=Group.startup,
)
STARTUP_CHECKPOINT_TIME = Metric(
    "startup_checkpoint_time_s",
    "s",
    "Rank 0 searches for a checkpoint to resume from and, with the other ranks, reads it.",
    Better.low,
    3,
    group=Group.startup,
)
STARTUP_OTHER_TIME = Metric(
    "startup_other_time_s",
    "s",
    "startup_time_s minus the other parts: preparing checkpoints and records, waiting for ranks that loaded more "
    "slowly; with engine=nemo also rendezvous, model, weights and checkpoint, which NeMo performs; with engine=litgpt "
    "all of LitGPT up to its first step, including its first validation.",
    Better.low,
    3,
    group=Group.startup,
)

# --- what a start found, cold or warm (status.jsonl, `started` and `kernels` events) --------------------------------
STARTUP_READ_BYTES = Metric(
    "startup_read_bytes",
    "B",
    "Bytes that all ranks of a start read from storage until the end of their imports, by the kernel's counter of each "
    "process (read_bytes of /proc/PID/io): what the page cache held does not count. Summed over starts.",
    Better.low,
    3,
    GIGABYTE,
)
SLOWEST_IMPORT_TIME = Metric(
    "slowest_import_time_s",
    "s",
    "From the start of a process to the end of its imports, on the slowest rank of all starts.",
    Better.low,
    3,
)
CHECKPOINT_FROM_COPIES = Metric(
    "checkpoint_from_copies_bytes",
    "B",
    "Bytes of the checkpoint that all ranks of a start loaded from copies on their nodes (job.checkpoint_copy_dir), "
    "summed over starts.",
    Better.neither,
    3,
    GIGABYTE,
)
CHECKPOINT_FROM_SHARED = Metric(
    "checkpoint_from_shared_bytes",
    "B",
    "Bytes of the checkpoint that all ranks of a start with job.checkpoint_copy_dir loaded from the directory of the "
    "run, summed over starts.",
    Better.neither,
    3,
    GIGABYTE,
)
KERNELS_FOUND = Metric(
    "kernels_found",
    "1",
    "Compiled graphs that torch.compile of rank 0 took from the kept cache until the end of the first step "
    "(fxgraph_cache_hit of torch's inductor), summed over starts.",
)
KERNELS_COMPILED = Metric(
    "kernels_compiled",
    "1",
    "Graphs that torch.compile of rank 0 compiled anew until the end of the first step (fxgraph_cache_miss and "
    "fxgraph_cache_bypass of torch's inductor), summed over starts.",
    Better.low,
)
COLD_STARTS = Metric(
    "cold_starts",
    "1",
    "Starts with a machine on which no start of the sweep had met its ranks since the machine's boot: its page cache "
    "may hold nothing of the environment. All other starts are warm.",
    Better.low,
)
COLD_STARTUP_TIME = Metric(
    "cold_startup_time_s", "s", "Mean of startup_time_s over the cold starts of the run.", Better.low, 3
)
WARM_STARTUP_TIME = Metric(
    "warm_startup_time_s", "s", "Mean of startup_time_s over the warm starts of the run.", Better.low, 3
)

# --- one value per attempt (status.jsonl, `finished` and `stopped` events; start-up: `started` too) -----------
STARTUP_TIME = Metric(
    "startup_time_s",
    "s",
    "From the start of rank 0's process to its first step: imports, rendezvous, model, data, checkpoint loading.",
    Better.low,
    3,
    group=Group.attempt,
)
FIRST_STEP_TIME = Metric(
    "first_step_time_s", "s", "Step time of the attempt's first step.", Better.low, 3, group=Group.attempt
)
WARMUP_TIME = Metric(
    "warmup_time_s",
    "s",
    "Sum of the step times of the unmeasured steps after the first.",
    Better.low,
    3,
    group=Group.attempt,
)
STEADY_TIME = Metric(
    "steady_time_s",
    "s",
    "Sum of the step times after the unmeasured steps, without profiled ones.",
    Better.low,
    4,
    group=Group.attempt,
)
CHECKPOINT_TOTAL_TIME = Metric(
    "checkpoint_total_time_s", "s", "Sum of checkpoint_time_s.", Better.low, 3, group=Group.attempt
)
OTHER_TIME = Metric(
    "other_time_s",
    "s",
    "total_time_s minus start-up, steps and checkpoints: logging, export, shutdown, profiled steps.",
    Better.low,
    3,
    group=Group.attempt,
)
TOTAL_TIME = Metric(
    "total_time_s",
    "s",
    "From the start of rank 0's process to its recorded end.",
    Better.low,
    4,
    group=Group.attempt,
)
TIME_TO_TARGET = Metric(
    "time_to_target_s",
    "s",
    "From the start of the first step to the first one at which the mean loss of the last contest.loss_steps steps is "
    "contest.target_loss or less; checkpoints included.",
    Better.low,
    4,
)

# --- one value per attempt of engine=litgpt (status.jsonl, `litgpt` event) ---------------------------------------
LITGPT_TRAINING_TIME = Metric(
    "litgpt_training_time_s",
    "s",
    "The training time that LitGPT prints: its first validation, the steps and the work between them; in pretraining "
    "also the last validation and saving.",
    Better.low,
    4,
)

# --- one value per checkpoint (status.jsonl, `checkpoint` event) --------------------------------------------------
CHECKPOINT_WRITE_TIME = Metric(
    "checkpoint_write_time_s",
    "s",
    "From the first byte of a checkpoint to the rename of its directory to the final name; training may continue "
    "meanwhile.",
    Better.low,
    3,
)
CHECKPOINT_READ_TIME = Metric(
    "checkpoint_read_time_s", "s", "From the first byte that a rank reads of a checkpoint to the last.", Better.low, 3
)
DATA_READ_TIME = Metric(
    "data_read_time_s", "s", "From the start of a pass over all samples to its end; the slowest rank.", Better.low, 3
)
CHECKPOINT_SIZE = Metric(
    "checkpoint_size_bytes", "B", "Size of a checkpoint on disk, summed over all ranks.", digits=4, shown_in=GIGABYTE
)

# --- one value per attempt, or per attempt, axis and collective (status.jsonl, `layout` event) -------------------
PARAMETERS_HELD = Metric(
    "parameters_held",
    "1",
    "Weights that a rank stores between steps, after tensor, pipeline and FSDP sharding; the rank with the most.",
    Better.low,
    4,
    on_page=True,
)
PARAMETERS_TRAINED = Metric(
    "parameters_trained",
    "1",
    "Weights that a run trains: all of the model, its adapters, or virtual tokens with their encoder.",
    Better.neither,
    4,
)
COLLECTIVE_CALLS = Metric(
    "collective_calls",
    "1",
    "Calls of one collective over one axis of the rank grid per step; the rank with the largest total payload.",
    digits=9,
)
COLLECTIVE_BYTES = Metric(
    "collective_bytes",
    "B",
    "Payload of one collective over one axis of the rank grid per step: the tensor that is reduced, the gathered "
    "output, the scattered input, or the tensor that is sent; the rank with the largest total payload.",
    Better.low,
    4,
    MEBIBYTE,
    on_page=True,
)

# --- values of a rank over its profiled steps (status.jsonl, `profile` event) --------------------------------------
# The five shares sum to 1, and sort a moment by the first of them that fits. Idle, compute and non-compute time, and
# the overlap, are those of Holistic Trace Analysis (https://hta.readthedocs.io, temporal breakdown, overlap analysis).
PROFILED_STEP_TIME = Metric(
    "profiled_step_time_s", "s", "Mean time of the profiled steps of a rank, under the profiler.", Better.low, 4
)
COMPUTE_SHARE = Metric(
    "compute_share",
    "1",
    "Share of the profiled steps in which a kernel computes, on a CPU an operator; mean over the profiled ranks.",
    Better.high,
    3,
    PERCENT,
    heading="Compute",
    group=Group.profile,
)
EXPOSED_COMMUNICATION_SHARE = Metric(
    "exposed_communication_share",
    "1",
    "Share of the profiled steps in which a collective is under way and nothing computes; it includes the wait for "
    "slower ranks.",
    Better.low,
    3,
    PERCENT,
    heading="Exposed communication",
    group=Group.profile,
)
MEMORY_COPY_SHARE = Metric(
    "memory_copy_share",
    "1",
    "Share of the profiled steps in which memory is copied or set, with neither computation nor communication.",
    Better.low,
    3,
    PERCENT,
    heading="Memory copies",
    group=Group.profile,
)
HOST_SHARE = Metric(
    "host_share",
    "1",
    "Share of the profiled steps in which only the host works: operators that wait for others or launch kernels.",
    Better.low,
    3,
    PERCENT,
    heading="Host",
    group=Group.profile,
)
IDLE_SHARE = Metric(
    "idle_share",
    "1",
    "Share of the profiled steps in which nothing that the profiler records is under way: Python, input, waiting.",
    Better.low,
    3,
    PERCENT,
    heading="Idle",
    group=Group.profile,
)
COMMUNICATION_SHARE = Metric(
    "communication_share",
    "1",
    "Share of the profiled steps in which a collective is under way, exposed or hidden under computation.",
    Better.low,
    3,
    PERCENT,
    heading="Communication",
)
COMMUNICATION_OVERLAP = Metric(
    "communication_overlap",
    "1",
    "Time of communication under computation, divided by the time of communication.",
    Better.high,
    3,
    PERCENT,
    heading="Overlap",
)
KERNEL_TIME = Metric(
    "kernel_time_s",
    "s",
    "Own time of a kernel per profiled step, on a CPU of an operator without those that it calls.",
    Better.low,
    4,
    MILLISECOND,
)
KERNEL_CALLS = Metric("kernel_calls", "1", "Calls of a kernel per profiled step.", digits=9)

# --- values of a rank over a window of steps (status.jsonl, `pace` event) ------------------------------------------
OWN_TIME = Metric(
    "own_time_s",
    "s",
    "Time of a step in which a rank does not wait for another: getting its batch (from requesting it), and the forward "
    "passes of its transformer layers; medians over the steps of a window. Ranks of a tensor or context group "
    "synchronise inside layers: each counts the shortest time of its group.",
    Better.low,
    3,
)
BATCH_TIME = Metric("batch_time_s", "s", "The part of own_time_s for getting the batch.", Better.low, 3)
OTHERS_OWN_TIME = Metric(
    "others_own_time_s", "s", "Median own_time_s of the other ranks with the same layers.", Better.low, 3
)

# --- the load of a node by others (status.jsonl, `node_load` event, and `started` for its beginning) ----------------
OTHER_LOAD = Metric(
    "other_load",
    "1",
    "Processor time of a node outside the run's processes, divided by the time of all its processors; mean over the "
    "steady steps, the node of rank 0.",
    Better.low,
    3,
    PERCENT,
)
CPU_CORES = Metric(
    "cpu_cores",
    "1",
    "Processor time of the run's ranks and of the processes that they started, divided by wall time and ranks: the "
    "cores that a rank kept busy; mean over the steady steps, the node of rank 0.",
    heading="Busy cores a rank",
)
CPU_STEAL = Metric(
    "cpu_steal",
    "1",
    "Processor time that the host of a virtual machine gave to others, divided by the time of all processors; mean "
    "over the steady steps, the node of rank 0.",
    Better.low,
    3,
    PERCENT,
)
CPU_CLOCK = Metric(
    "cpu_clock_hz", "Hz", "Clock of the processors, mean over processors and samples, the node of rank 0.", digits=4
)
CPU_THROTTLED = Metric(
    "cpu_throttled",
    "1",
    "Times that heat throttled a core during the steady steps, the node of rank 0.",
    Better.low,
    digits=9,
)
MEMORY_AVAILABLE = Metric(
    "memory_available_bytes",
    "B",
    "Memory that a node could still give to programs, at the fewest; the node of rank 0.",
    Better.high,
    4,
    GIBIBYTE,
)
GPU_BUSY = Metric(
    "gpu_busy",
    "1",
    "Share of the time in which any kernel ran on the GPU, on however small a part of it; of a run of ours the mean "
    "over readings, each of the second before it, the GPU of rank 0.",
    shown_in=PERCENT,
)
GPU_CLOCK = Metric(
    "gpu_clock_hz",
    "Hz",
    "Clock of the GPU's multiprocessors; of a run of ours the mean over readings, the GPU of rank 0.",
    digits=4,
)
GPU_THROTTLED = Metric(
    "gpu_throttled",
    "1",
    "Share of the readings in which heat or the power supply slowed the GPU of rank 0 down; its power limit does not "
    "count.",
    Better.low,
    3,
    PERCENT,
)
GPU_MEMORY_FREE = Metric(
    "gpu_memory_free_bytes",
    "B",
    "Memory of the GPU of rank 0 that no process holds, at the fewest over the readings.",
    Better.high,
    4,
    GIBIBYTE,
)
LOAD_AVERAGE = Metric(
    "load_average", "1", "Processes that ran or waited for a processor of rank 0's node in the minute before the start."
)
OTHER_USERS_PROCESSES = Metric(
    "other_users_processes",
    "1",
    "Processes of other users on rank 0's node at the start, without the system's.",
    digits=9,
)

# --- the use of each node (storage/rank-R.jsonl of its first rank); of a run the mean over nodes and steps ---------
NODE_CPU_BUSY = Metric(
    "node_cpu_busy",
    "1",
    "Processor time of a node that was not idle, all of its processes, divided by the time of all its processors.",
    shown_in=PERCENT,
    heading="Node CPU busy",
)
NODE_MEMORY_USED = Metric(
    "node_memory_used",
    "1",
    "Share of the memory of a node that is not available to processes; page caches are available.",
    shown_in=PERCENT,
)
NODE_GPU_BUSY = Metric(
    "node_gpu_busy",
    "1",
    "Share of the time in which any kernel ran on a GPU, mean over the GPUs of a node and one reading a second.",
    shown_in=PERCENT,
    heading="Node GPU busy",
)
NODE_GPU_MEMORY_USED = Metric(
    "node_gpu_memory_used",
    "1",
    "Share of the memory that is taken on the GPU of a node with the least free, by all processes.",
    shown_in=PERCENT,
    heading="Node GPU memory used",
)
NODE_RECEIVED = Metric(
    "node_received_bytes_per_s",
    "B/s",
    "Bytes that the network adapters of a node received, RDMA over InfiniBand and RoCE included.",
    shown_in=MEGABYTE_PER_S,
)
NODE_SENT = Metric("node_sent_bytes_per_s", "B/s", "The same, sent.", shown_in=MEGABYTE_PER_S)
NODE_DISK_READ = Metric(
    "node_disk_read_bytes_per_s",
    "B/s",
    "Bytes read from the disks of a node; those of network file systems are no disks.",
    shown_in=MEGABYTE_PER_S,
)
NODE_DISK_WRITTEN = Metric("node_disk_written_bytes_per_s", "B/s", "The same, written.", shown_in=MEGABYTE_PER_S)

# --- one value per evaluation (status.jsonl, `evaluated` event) ---------------------------------------------------
EVALUATION_LOSS = Metric(
    "evaluation_loss",
    "nat",
    "Cross-entropy summed over the labels of the held-out samples, divided by their number, with the weights after "
    "training and without dropout.",
    Better.low,
    5,
    group=Group.evaluation,
    on_page=True,
)
EVALUATION_PERPLEXITY = Metric(
    "evaluation_perplexity", "1", "exp(evaluation_loss).", Better.low, 5, group=Group.evaluation, on_page=True
)
EVALUATION_LABELS = Metric(
    "evaluation_labels", "1", "Number of labels of the held-out samples.", digits=9, group=Group.evaluation
)
EVALUATION_SAMPLES = Metric(
    "evaluation_samples", "1", "Number of samples held out of training.", digits=9, group=Group.evaluation
)

EVALUATION_EXACT_MATCH = Metric(
    "evaluation_exact_match",
    "1",
    "Share of the held-out samples whose whole response, with its end, is the most probable one token by token; only "
    "where prompts have no loss (data.mask_prompt).",
    Better.high,
    3,
    shown_in=PERCENT,
    group=Group.evaluation,
    on_page=True,
)
EVALUATION_TOP1 = Metric(
    "evaluation_top1",
    "1",
    "Share of the held-out images whose most probable class is their label, on the central crop.",
    Better.high,
    4,
    PERCENT,
    "Top-1 accuracy",
    group=Group.evaluation,
    on_page=True,
)
EVALUATION_TOP5 = Metric(
    "evaluation_top5",
    "1",
    "Share of the held-out images whose label is among their five most probable classes, on the central crop.",
    Better.high,
    4,
    PERCENT,
    "Top-5 accuracy",
    group=Group.evaluation,
)
EVALUATION_TIME = Metric(
    "evaluation_time_s",
    "s",
    "Wall clock of one evaluation; of validations on images the latest one's, between two steps, by the slowest rank.",
    Better.low,
    4,
    group=Group.evaluation,
)

# --- one value per load (status.jsonl, `served` event); the load generator's own values are in serving/load.json ----
SERVER_STARTUP_TIME = Metric(
    "server_startup_time_s",
    "s",
    "From the start of a replica's process until it answers that it is ready; the slowest replica.",
    Better.low,
    3,
    group=Group.serving,
)
SERVER_REQUESTS = Metric(
    "server_requests",
    "1",
    "Requests that the replicas completed during the load, by their own counters.",
    digits=9,
    group=Group.serving,
)
SERVER_INPUT_TOKENS = Metric(
    "server_input_tokens",
    "1",
    "Tokens of prompts during the load, by the replicas' counters.",
    digits=9,
    group=Group.serving,
)
SERVER_OUTPUT_TOKENS = Metric(
    "server_output_tokens",
    "1",
    "Tokens of answers during the load, by the replicas' counters.",
    digits=9,
    group=Group.serving,
)
REQUESTS_TRUNCATED = Metric(
    "requests_truncated",
    "1",
    "Requests whose answer ended at the most tokens allowed, by the replicas' counters.",
    digits=9,
    group=Group.serving,
)
SERVER_PREEMPTIONS = Metric(
    "server_preemptions",
    "1",
    "Times that a replica interrupted a request because its KV cache was full.",
    Better.low,
    9,
    group=Group.serving,
)
LARGEST_REPLICA_SHARE = Metric(
    "largest_replica_share",
    "1",
    "Share of the requests that the replica with the most completed.",
    Better.low,
    3,
    PERCENT,
    group=Group.serving,
)
HIGHEST_CONCURRENCY = Metric(
    "highest_concurrency",
    "1",
    "Highest concurrency whose latencies stayed within serving.limits (serving.search); 0: not even 1.",
    Better.high,
    9,
    group=Group.serving,
)
OUTPUT_TOKENS_GAP = Metric(
    "output_tokens_gap",
    "1",
    "Output tokens by the replicas' counters, divided by those that the load generator counted, minus 1.",
    digits=3,
    shown_in=PERCENT,
)

# --- one value per replica and second (serving/replica-0.jsonl, next to its counters) ------------------------------
REQUESTS_RUNNING = Metric(
    "requests_running", "1", "Requests that a replica computes at a moment.", digits=9, group=Group.server_sample
)
REQUESTS_WAITING = Metric(
    "requests_waiting", "1", "Requests in the queue of a replica at a moment.", digits=9, group=Group.server_sample
)
KV_CACHE_USE = Metric(
    "kv_cache_use",
    "1",
    "Share of a replica's KV cache that requests hold at a moment.",
    digits=3,
    shown_in=PERCENT,
    heading="KV cache use",
    group=Group.server_sample,
)

# --- a load, derived by analysis from these records and the load generator's result -------------------------------
KV_CACHE_USE_PEAK = Metric(
    "kv_cache_use_peak",
    "1",
    "Largest kv_cache_use of any replica in the load.",
    digits=3,
    shown_in=PERCENT,
    heading="KV cache use peak",
)
KV_CACHE_USE_MEAN = Metric(
    "kv_cache_use_mean",
    "1",
    "Mean of kv_cache_use over the replicas and the load, from its first to its last sample with a request.",
    digits=3,
    shown_in=PERCENT,
    heading="KV cache use mean",
)
REQUESTS_RUNNING_PEAK = Metric(
    "requests_running_peak", "1", "Most requests_running in the load, all replicas together.", digits=9
)
REQUESTS_RUNNING_MEAN = Metric(
    "requests_running_mean", "1", "Mean of requests_running over the same time, all replicas together.", digits=4
)
REQUESTS_WAITING_PEAK = Metric(
    "requests_waiting_peak", "1", "Most requests_waiting in the load, all replicas together.", Better.low, 9
)
REQUESTS_WAITING_MEAN = Metric(
    "requests_waiting_mean", "1", "Mean of requests_waiting over the same time, all replicas together.", Better.low, 4
)
GAUGES_OVER_LOAD = {
    KV_CACHE_USE: (KV_CACHE_USE_PEAK, KV_CACHE_USE_MEAN),
    REQUESTS_RUNNING: (REQUESTS_RUNNING_PEAK, REQUESTS_RUNNING_MEAN),
    REQUESTS_WAITING: (REQUESTS_WAITING_PEAK, REQUESTS_WAITING_MEAN),
}
OUTPUT_TOKENS_PER_S_PER_RANK = Metric(
    "output_tokens_per_s_per_rank",
    "1/s",
    "output_tokens_per_s divided by the ranks of the run, those without a replica included.",
    Better.high,
    4,
)
RANK_TIME_PER_OUTPUT_TOKEN = Metric(
    "rank_time_per_output_token_s",
    "s",
    "Ranks of the run divided by output_tokens_per_s: the time of the load alone, without start-up.",
    Better.low,
    4,
    HOUR_PER_MILLION_TOKENS,
)
SERVICE_UNITS_PER_OUTPUT_TOKEN = Metric(
    "service_units_per_output_token",
    "1",
    "Nodes times cluster.service_units_per_node_hour, divided by output_tokens_per_s in hours, without start-up.",
    Better.low,
    4,
    PER_MILLION_TOKENS,
)
PRICE_PER_OUTPUT_TOKEN = Metric(
    "price_per_output_token",
    "1",
    "rank_time_per_output_token_s in hours times cluster.price_per_gpu_hour, in cluster.currency: GPUs of the load "
    "alone, without start-up and energy.",
    Better.low,
    4,
    PER_MILLION_TOKENS,
)

# --- one value per data set (meta.json of the set, plan.json of its runs) -----------------------------------------
DATA_SAMPLES_READ = Metric(
    "data_samples_read", "1", "Records in the files of the data; of text, its samples.", digits=9, group=Group.data
)
DATA_SAMPLES_USED = Metric(
    "data_samples_used", "1", "Samples of the data set (data.max_samples).", digits=9, group=Group.data
)
DATA_SAMPLES_HELD_OUT = Metric(
    "data_samples_held_out", "1", "Samples of the data set that no step trains on.", digits=9, group=Group.data
)
DATA_SAMPLES_CUT = Metric(
    "data_samples_cut",
    "1",
    "Samples that were longer than job.sequence_length and were cut.",
    digits=9,
    group=Group.data,
)
DATA_TOKENS_MEAN = Metric("data_tokens_mean", "1", "Mean tokens of a sample before it was cut.", group=Group.data)
DATA_TOKENS_P50 = Metric("data_tokens_p50", "1", "Median tokens of a sample before it was cut.", group=Group.data)
DATA_TOKENS_P95 = Metric(
    "data_tokens_p95", "1", "95th percentile of the tokens of a sample before it was cut.", group=Group.data
)
DATA_TOKENS_MAX = Metric(
    "data_tokens_max", "1", "Tokens of the longest sample before it was cut.", digits=9, group=Group.data
)
DATA_PADDING_SHARE = Metric(
    "data_padding_share",
    "1",
    "Share of padding if each sample filled a row of job.sequence_length tokens by itself.",
    Better.low,
    shown_in=PERCENT,
    group=Group.data,
)

# --- derived per run by analysis ------------------------------------------------------------------------------
TOKENS_PER_S = Metric(
    "tokens_per_s",
    "1/s",
    "Tokens of the steady steps, divided by the sum of their step times; all ranks together. Single steps that are far "
    "out are left out and named in the warnings.",
    Better.high,
    4,
    on_page=True,
)
TOKENS_PER_S_PER_RANK = Metric("tokens_per_s_per_rank", "1/s", "tokens_per_s divided by ranks.", Better.high, 4)
TOKENS_PER_STEP = Metric("tokens_per_step", "1", "Tokens of the steady steps, divided by their number.", digits=4)
TOKENS_TRAINED = Metric(
    "tokens_trained",
    "1",
    "Tokens of the recorded steps that the final model results from, padding excluded.",
    digits=4,
    shown_in=MILLION,
)
SAMPLES_PER_STEP = Metric("samples_per_step", "1", "Samples of the recorded steps, divided by their number.", digits=9)
SAMPLES_TRAINED = Metric(
    "samples_trained", "1", "Samples of the recorded steps that the final model results from.", digits=9
)
DATA_WAIT_SHARE = Metric(
    "data_wait_share",
    "1",
    "Sum of data_wait_time_s of the steady steps, divided by the sum of their step times.",
    Better.low,
    3,
    PERCENT,
    "Waiting for data",
)
STEP_TIME_MEDIAN = Metric("step_time_median_s", "s", "Median of the steady step times.", Better.low, 4, on_page=True)
STEP_TIME_P10 = Metric("step_time_p10_s", "s", "10th percentile of the steady step times.", Better.low, 4, on_page=True)
STEP_TIME_P90 = Metric("step_time_p90_s", "s", "90th percentile of the steady step times.", Better.low, 4, on_page=True)
SPEEDUP = Metric(
    "speedup",
    "1",
    "Median tokens_per_s over repeats, divided by that of the reference point; for a log without tokens_per_s the same "
    "of samples_per_s or steps_per_s. Absent for weak scaling.",
    Better.high,
    3,
)
EFFICIENCY = Metric(
    "efficiency",
    "1",
    "Median tokens_per_s_per_rank over repeats (for a log without it samples_per_s or steps_per_s divided by ranks), "
    "divided by that of the reference point.",
    Better.high,
    3,
    PERCENT,
)
# Median absolute deviation times this is the standard deviation of normal values (Rousseeuw and Croux 1993,
# https://doi.org/10.1080/01621459.1993.10476408).
MAD_TO_DEVIATION = 1.4826
SLOW_TIMES, SLOW_DEVIATIONS, SLOW_FEWEST_STEPS = 1.2, 5, 10
SLOW_STEPS = Metric(
    "slow_steps",
    "1",
    f"Steady steps longer than {SLOW_TIMES} times the run's median step time that also exceed the median by more than "
    f"{SLOW_DEVIATIONS} robust standard deviations ({MAD_TO_DEVIATION} times the median absolute deviation). Absent "
    f"below {SLOW_FEWEST_STEPS} steady steps.",
    Better.low,
    9,
)
SLOW_STEPS_SHARE = Metric(
    "slow_steps_share",
    "1",
    "Time of slow_steps in excess of the median step time, divided by the sum of the steady step times.",
    Better.low,
    3,
    PERCENT,
)
DRIFT_BLOCKS, DRIFT_FEWEST_STEPS = 10, 50
STEP_TIME_DRIFT = Metric(
    "step_time_drift",
    "1",
    "Increase of the step time from the first to the last steady step, divided by the median step time: the Theil-Sen "
    f"slope over the medians of {DRIFT_BLOCKS} equal blocks of steps. Absent below {DRIFT_FEWEST_STEPS} steady steps. "
    "In logs that report rates and no step times, of the inverse of the rate, as if each step had the same work.",
    digits=3,
    shown_in=PERCENT,
)
STEP_TIME_DRIFT_P = Metric(
    "step_time_drift_p",
    "1",
    "Probability, without a drift, of a Kendall's tau of these blocks at least as far from 0, with independent blocks. "
    "Absent where all blocks are equal.",
    digits=2,
)
STRAGGLER_TIMES, STRAGGLER_SMALLEST_SHARE = 1.1, 0.02
STRAGGLER_WINDOWS, STRAGGLER_FEWEST_WINDOWS = 0.75, 4
STRAGGLER_SHARE = Metric(
    "straggler_share",
    "1",
    "own_time_s of the worst straggler minus others_own_time_s, divided by the step time; median over windows, 0 "
    "without a straggler. A lower bound of the others' wait: backward passes are not included. A rank is a straggler "
    f"if, in at least {STRAGGLER_WINDOWS:.0%} of the windows, its own time is more than {STRAGGLER_TIMES} times the "
    f"others' and longer by more than {STRAGGLER_SMALLEST_SHARE:.0%} of the step time; a node, if all of its ranks "
    f"are. Absent below {STRAGGLER_FEWEST_WINDOWS} windows.",
    Better.low,
    3,
    PERCENT,
)
THROUGHPUT_RATIO = Metric(
    "throughput_ratio",
    "1",
    "A against B: median throughput over the repeats of a point of B, divided by that of its partner in A.",
    Better.high,
    4,
)
FINAL_LOSS = Metric("final_loss", "nat", "Loss of the last step.", Better.low, 5, on_page=True)
EPOCH_TIME = Metric(
    "epoch_time_s",
    "s",
    "Sum of the step times that the final model results from, divided by the number of passes over the data. For a "
    "log: the median epoch that the program reports, else the median sum of step times over whole epochs whose steps "
    "are all logged.",
    Better.low,
    4,
    on_page=True,
)

# --- utilization, derived by analysis ---------------------------------------------------------------------------
MFU = Metric(
    "mfu",
    "1",
    "Model FLOPs utilization: (6 N + 12 L a s) x tokens_per_s / (ranks x dense peak of the device at the arithmetic "
    "type). N: weights in matrix products (with the output head, without looked-up embeddings, only the active "
    "experts); L: layers; a: heads x head size; s: mean tokens of a sequence. The causal mask is not deducted (PaLM, "
    "arXiv:2204.02311, appendix B). With LoRA 4 N: frozen weights have no gradient. Padding is excluded.",
    Better.high,
    3,
    PERCENT,
    "MFU",
    on_page=True,
)
HFU = Metric(
    "hfu",
    "1",
    "Hardware FLOPs utilization: mfu with a second forward pass of the layers where activation checkpointing is full "
    "(2 N of the layers + 4 L a s; arXiv:2205.05198). Absent where the recomputed part is not known.",
    Better.neither,
    3,
    PERCENT,
    "HFU",
)

# --- what a run cost over all of its starts, derived by analysis --------------------------------------------------
NODE_TIME = Metric(
    "node_time_s",
    "s",
    "Number of whole nodes, spare ones included, times run_time_s without queue, requeue and unsubmitted time: "
    "start-up, useful and lost steps, checkpoints, rest. Prologue, container and starts whose ranks never met are not "
    "included. For a log the time is its initialization and time to train.",
    Better.low,
    4,
    HOUR,
)
RANK_TIME = Metric(
    "rank_time_s",
    "s",
    "The time of node_time_s, times the number of ranks that fit on its nodes; on GPUs a rank is a GPU.",
    Better.low,
    4,
    HOUR,
)
RANK_TIME_PER_TOKEN = Metric(
    "rank_time_per_token_s", "s", "rank_time_s divided by tokens_trained.", Better.low, 4, HOUR_PER_BILLION_TOKENS
)
RELATIVE_COST = Metric(
    "relative_cost",
    "1",
    "rank_time_per_token_s divided by its median at the reference point; 2 is twice the cost per token.",
    Better.low,
    3,
)
SERVICE_UNITS = Metric(
    "service_units", "1", "node_time_s in hours times cluster.service_units_per_node_hour.", Better.low, 4
)
PRICE = Metric(
    "price",
    "1",
    "rank_time_s of GPUs in hours times cluster.price_per_gpu_hour, plus energy_j in kWh times cluster.pue times "
    "cluster.price_per_kwh, in cluster.currency: the parts that have a price. Energy that was not read for every "
    "device and nearly all of the time is left out, which the table states; ranks on CPUs have no price.",
    Better.low,
    4,
)
PRICE_PER_TOKEN = Metric("price_per_token", "1", "price divided by tokens_trained.", Better.low, 4, PER_MILLION_TOKENS)
PRICE_PER_EPOCH = Metric(
    "price_per_epoch",
    "1",
    "price times epoch_time_s over the time that the run held its nodes: without start-up and lost work.",
    Better.low,
    4,
)
ENERGY = Metric(
    "energy_j",
    "J",
    "Power readings of all recorded devices, integrated by trapezoids over the starts of the run (for a log from "
    "run_start to run_stop); a time without readings adds nothing.",
    Better.low,
    4,
    KILOWATT_HOUR,
)
MEAN_POWER = Metric(
    "mean_power_w",
    "W",
    "energy_j of a program's steps divided by their time: all recorded devices together. Absent where readings are "
    "missing.",
    Better.low,
    4,
)
ENERGY_COVERED = Metric(
    "energy_covered",
    "1",
    "Share of the time of these devices over which power could be integrated.",
    Better.high,
    3,
    PERCENT,
)
ENERGY_PER_TOKEN = Metric(
    "energy_per_token_j",
    "J",
    "energy_j divided by tokens_trained. Absent where energy_covered is below 0.95, or where the recorded devices are "
    "not exactly those of the run.",
    Better.low,
    4,
)

# --- checkpoints of a run, derived by analysis; steps and checkpoints of all starts, repeated ones included -----------
CHECKPOINT_STALL = Metric(
    "checkpoint_stall_s", "s", "Median of checkpoint_time_s: how long a checkpoint blocked training.", Better.low, 3
)
CHECKPOINT_STALL_SHARE = Metric(
    "checkpoint_stall_share",
    "1",
    "Sum of checkpoint_time_s divided by the sum of step_time_s.",
    Better.low,
    3,
    PERCENT,
)
CHECKPOINT_BANDWIDTH = Metric(
    "checkpoint_bandwidth_bytes_per_s",
    "B/s",
    "Median over checkpoints of checkpoint_size_bytes divided by checkpoint_write_time_s, all ranks together; for the "
    "native engine that time includes the sync of the files to disk.",
    Better.high,
    3,
    GIGABYTE_PER_S,
)
CHECKPOINT_BANDWIDTH_LOW = Metric(
    "checkpoint_bandwidth_low_bytes_per_s", "B/s", "The same of the slowest checkpoint.", Better.high, 3
)
CHECKPOINT_BANDWIDTH_HIGH = Metric(
    "checkpoint_bandwidth_high_bytes_per_s", "B/s", "The same of the fastest checkpoint.", Better.high, 3
)

# --- storage of a run, derived by analysis from the records of its processes ------------------------------------------
STORAGE_DIRECTIONS = ("read", "write")
STORAGE_READ_PEAK = Metric(
    "storage_read_peak_bytes_per_s",
    "B/s",
    "Most bytes that all ranks together read from storage in any second: what the page cache did not have.",
    digits=4,
    shown_in=MEGABYTE_PER_S,
)
STORAGE_WRITE_PEAK = Metric(
    "storage_write_peak_bytes_per_s",
    "B/s",
    "Most bytes that all ranks together wrote to files in any second; what the page cache takes counts at once, not "
    "when it reaches the disk.",
    digits=4,
    shown_in=MEGABYTE_PER_S,
)
MOUNT_READ_PEAK = Metric(
    "mount_read_peak_bytes_per_s",
    "B/s",
    "Most bytes that the nodes of the run received in any second from the servers of its NFS mounts, or by Lustre, "
    "BeeGFS or IBM Storage Scale (GPFS), these two as means over 10 s; other processes of these nodes included.",
    digits=4,
    shown_in=MEGABYTE_PER_S,
)
MOUNT_WRITE_PEAK = Metric("mount_write_peak_bytes_per_s", "B/s", "The same, sent.", digits=4, shown_in=MEGABYTE_PER_S)
MOUNT_OPERATIONS = Metric(
    "mount_operations",
    "1",
    "Operations that the nodes of the run asked of the servers of its NFS mounts, other processes of these nodes "
    "included.",
    digits=4,
)
STATISTICS = {"peak": "Most bytes in any second", "mean": "Bytes divided by seconds"}
# --- tests of storage, derived by analysis from the events of the run; medians over repeats ---------------------------
CHECKPOINT_IO_RATES = {
    direction: Metric(
        f"checkpoint_io_{direction}_bytes_per_s",
        "B/s",
        f"Size of a checkpoint divided by the time of {words}, all ranks together.",
        Better.high,
        3,
        GIGABYTE_PER_S,
        f"Checkpoint {direction}",
    )
    for direction, words in (
        ("write", "its write, from before its directory is made to after it is renamed"),
        ("read", "its read, with the metadata"),
    )
}
CHECKPOINT_IO_STRAGGLERS = {
    direction: Metric(
        f"checkpoint_io_{direction}_straggler",
        "1",
        f"Longest time in which a rank {did} its own part, divided by the median of the ranks.",
        Better.low,
        3,
        heading=f"{direction.title()}, slowest / median rank",
    )
    for direction, did in (("write", "writes"), ("read", "reads"))
}
CACHED_SHARE = Metric(
    "cached_share",
    "1",
    "Share of the pages of the files that the page cache of a node still had before they were read, by mincore(2); the "
    "node with the most, the repeat with the most. Caches of the storage system are not seen.",
    Better.low,
    3,
    PERCENT,
)
DATA_READ_RATES = {
    (cache, unit): Metric(
        f"data_read_{cache}_{unit}_per_s",
        "1/s" if unit == "samples" else "B/s",
        f"{unit.title()} of samples that all ranks together read in a second, {words}.",
        Better.high,
        4 if unit == "samples" else 3,
        None if unit == "samples" else MEGABYTE_PER_S,
        f"{unit.title()}/s, {cache}" if unit == "samples" else f"Bytes, {cache}",
    )
    for cache, words in (("cold", "after the page caches were emptied"), ("warm", "directly after a first pass"))
    for unit in ("samples", "bytes")
}
DATA_READ_WAITING = {
    cache: Metric(
        f"data_read_{cache}_waiting_share",
        "1",
        f"Share of the time of a rank in which it waited for the loader, {cache}; the mean of the ranks.",
        Better.low,
        3,
        PERCENT,
        f"Waiting, {cache}",
    )
    for cache in ("cold", "warm")
}
FIO_BANDWIDTH = Metric(
    "fio_bytes_per_s",
    "B/s",
    "Bandwidth that fio reports, summed over the ranks.",
    Better.high,
    4,
    MEGABYTE_PER_S,
    "fio bandwidth",
)
FIO_OPERATIONS = Metric(
    "fio_operations_per_s",
    "1/s",
    "Blocks a second that fio reports, summed over the ranks.",
    Better.high,
    4,
    heading="fio blocks/s",
)
FIO_LATENCY = Metric(
    "fio_latency_p99_s",
    "s",
    "Completion latency of a block that 99 % do not exceed, by fio; the rank with the longest.",
    Better.low,
    3,
    MILLISECOND,
    "fio latency p99",
)
STORAGE_TESTS = (
    *CHECKPOINT_IO_RATES.values(),
    *CHECKPOINT_IO_STRAGGLERS.values(),
    *DATA_READ_RATES.values(),
    *DATA_READ_WAITING.values(),
)

STORAGE_RATES: dict[tuple[StoragePhase, str, str], Metric] = {
    (phase, direction, statistic): Metric(
        f"storage_{phase.name}_{direction}_{statistic}_bytes_per_s",
        "B/s",
        f"{words} of phase {phase.name} that all ranks together {'read' if direction == 'read' else 'wrote'}.",
        digits=4,
        shown_in=MEGABYTE_PER_S,
    )
    # Servers read in processes below those that ranks start, whose bytes are not counted while they live.
    for phase in StoragePhase
    if phase is not StoragePhase.serve
    for direction in STORAGE_DIRECTIONS
    for statistic, words in STATISTICS.items()
}

# --- the wall time of a finished run over all of its starts, derived by analysis; the parts sum to run_time_s ---------
GOODPUT = Metric(
    "goodput",
    "1",
    "useful_time_s divided by run_time_s: the share of the wall time spent on steps that the final model results from. "
    "It measures time, not the utilization of the hardware (see mfu).",
    Better.high,
    3,
    PERCENT,
    on_page=True,
)
RUN_TIME = Metric(
    "run_time_s",
    "s",
    "From the submission that led to the first start to the recorded end; without a queue (launcher=local, by hand) "
    "from the start of rank 0's process. Compares the clock of the submitting host with that of rank 0's node.",
    Better.low,
    4,
)
QUEUE_TIME = Metric(
    "queue_time_s",
    "s",
    "From a submission to the start of rank 0's process, for the first start whose ranks met: Slurm's queue, for a "
    "pilot also the wait in its job, prologue, container, srun. Absent without a queue, and where the two clocks would "
    "make it negative.",
    Better.low,
    3,
    group=Group.goodput,
)
STARTUPS_TIME = Metric(
    "startups_time_s", "s", "Sum of startup_time_s over all starts.", Better.low, 3, group=Group.goodput
)
USEFUL_TIME = Metric(
    "useful_time_s",
    "s",
    "Sum of the step times of steps that the final model results from.",
    digits=4,
    group=Group.goodput,
)
LOST_TIME = Metric(
    "lost_time_s",
    "s",
    "Steps that a later start repeated, and the time from the last recorded step of a start to its failure.",
    Better.low,
    3,
    group=Group.goodput,
)
LOST_STEPS = Metric(
    "lost_steps", "1", "Recorded steps that a later start repeated, or that followed its checkpoint.", Better.low, 9
)
CHECKPOINTS_TIME = Metric(
    "checkpoints_time_s", "s", "Sum of checkpoint_time_s over all starts.", Better.low, 3, group=Group.goodput
)
RECOVERY_TIME = Metric(
    "recovery_time_s",
    "s",
    "From the first recorded failure of a start to the end of the first step of the next one.",
    Better.low,
    1,
)
REQUEUE_TIME = Metric(
    "requeue_time_s",
    "s",
    "From the recorded end of a start (else its last recorded step) to the start of rank 0's process of the next one, "
    "without a new submission: detection, pause, queue, starts whose ranks never met.",
    Better.low,
    3,
    group=Group.goodput,
)
UNSUBMITTED_TIME = Metric(
    "unsubmitted_time_s",
    "s",
    "From the end of a start to the next submission of the run (launcher=local: to its next start).",
    Better.low,
    3,
    group=Group.goodput,
)
SUSPENDED_TIME = Metric(
    "suspended_time_s",
    "s",
    "Time for which the process of rank 0 was stopped and went on: `scontrol suspend`, gang scheduling, SIGSTOP. "
    "Recorded if longer than two heartbeats of its watchdog (5 s each, more above 500 ranks), up to one too short.",
    Better.low,
    3,
    group=Group.goodput,
)
REST_TIME = Metric(
    "rest_time_s",
    "s",
    "run_time_s minus the other parts: logging, export, shutdown.",
    Better.low,
    3,
    group=Group.goodput,
)

PROGRAM_TIME = Metric(
    "program_time_s",
    "s",
    "Wall time of all steps of a program, each from the start of its first process to the end of its last.",
    Better.low,
    4,
)

CONSTANTS = [value for value in list(globals().values()) if isinstance(value, Metric)]
REGISTRY: dict[str, Metric] = {metric.name: metric for metric in (*CONSTANTS, *STORAGE_TESTS, *STORAGE_RATES.values())}


def registered(name: str) -> Metric:
    """Return the metric of this name; raise KeyError where there is none."""
    return _BY_NAME[name]


DECLARED_IN = {"FLOP/s": DisplayUnit("GFLOP/s", 1e9), "B/s": GIGABYTE_PER_S, "B": GIBIBYTE}
"""Units in which reports show declared metrics."""


@cache
def declared(name: str, unit: str, definition: str, better: Better) -> Metric:
    """Return the metric of this declaration: that of this name where units agree, else the same object each time."""
    known = _BY_NAME.get(name)
    if known is not None and known.unit == unit:
        return known
    return DeclaredMetric(name, unit, definition, better, digits=4, shown_in=DECLARED_IN.get(unit), on_page=True)


def members(group: Group) -> tuple[Metric, ...]:
    """Return the metrics of a group in the order of this module."""
    return tuple(metric for metric in REGISTRY.values() if metric.group is group)


STEP_METRICS = members(Group.step)
STARTUP_PARTS = members(Group.startup)
GOODPUT_PARTS = members(Group.goodput)
ATTEMPT_METRICS = members(Group.attempt)
EVALUATION_METRICS = members(Group.evaluation)
SERVING_METRICS = members(Group.serving)
SERVER_GAUGES = members(Group.server_sample)
PROFILE_SHARES = members(Group.profile)
DATA_METRICS = members(Group.data)
# Metrics of a whole run, which are columns of runs.csv: not those of a step, an event or a comparison, nor inputs.
RUN_METRICS = tuple(
    metric
    for metric in REGISTRY.values()
    if metric
    not in {
        *STEP_METRICS,
        *SERVER_GAUGES,
        LITGPT_TRAINING_TIME,
        CHECKPOINT_WRITE_TIME,
        CHECKPOINT_READ_TIME,
        DATA_READ_TIME,
        RECOVERY_TIME,
        OWN_TIME,
        BATCH_TIME,
        OTHERS_OWN_TIME,
    }
    and metric not in {TOKENS_PER_STEP, THROUGHPUT_RATIO, PROFILED_STEP_TIME, KERNEL_TIME, KERNEL_CALLS}
)
