"""Parallelism as data: its configuration keys, and the axes of the rank grid that their degrees span.

To add an axis: give Parallelism its degree, add its Axis to AXES, and apply it in an engine. The grid, the mesh, the
plan table, the rules of degrees, the nearest legal runs, the search of layouts, process groups and reports follow.
A part of the schema: the text below a field or member is what `slurmscale explain KEY` prints.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from jobs.ranges import Count

NATIVE_ONLY = {"engine": "native"}
"""Metadata of a key of `parallelism` or `job` that only the native engine supports."""

# --- keys ----------------------------------------------------------------------------------------------------


class Strategy(Enum):
    """Method that keeps data-parallel replicas equal."""

    single = "single"
    """One replica, so nothing to keep equal."""
    ddp = "ddp"
    """Every rank holds everything; gradients are all-reduced."""
    fsdp = "fsdp"
    """Fully sharded data parallel; `sharding` selects the tensors."""
    zero1 = "zero1"
    """DeepSpeed's ZeRO stage 1: optimizer state is partitioned."""
    zero2 = "zero2"
    """DeepSpeed's ZeRO stage 2: optimizer state and gradients are partitioned."""
    zero3 = "zero3"
    """DeepSpeed's ZeRO stage 3: weights are partitioned too, and gathered layer by layer."""

    @property
    def is_zero(self) -> bool:
        """True for the stages of DeepSpeed's ZeRO."""
        return self in {Strategy.zero1, Strategy.zero2, Strategy.zero3}


class Sharding(Enum):
    """Tensors that FSDP shards, by PyTorch's names."""

    FULL_SHARD = "FULL_SHARD"
    """Shard parameters, gradients and optimizer state over all ranks; free parameters after forward (ZeRO 3)."""
    SHARD_GRAD_OP = "SHARD_GRAD_OP"
    """FULL_SHARD, but keep parameters whole between forward and backward (ZeRO 2)."""
    NO_SHARD = "NO_SHARD"
    """Hold everything on every rank; all-reduce gradients, as DDP does."""
    HYBRID_SHARD = "HYBRID_SHARD"
    """FULL_SHARD within a node (or `data_shard` ranks), replicas across nodes."""


Schedule = Enum(
    "Schedule",
    {
        "GPipe": "GPipe",
        "1F1B": "1F1B",
        "Interleaved1F1B": "Interleaved1F1B",
        "LoopedBFS": "LoopedBFS",
        "InterleavedZeroBubble": "InterleavedZeroBubble",
        "ZBVZeroBubble": "ZBVZeroBubble",
    },
)
"""Order of a pipeline's forward and backward passes, by PyTorch's names (torch.distributed.pipelining)."""


class ReduceEach(Enum):
    """Interval of FSDP's reduction of gradients."""

    micro_batch = "micro_batch"
    """After each micro-batch: only shards of gradients are kept between micro-batches."""
    step = "step"
    """Once per step, from sums in float32 that each rank keeps of all weights: 4 bytes for each trained weight."""


class StageSplit(Enum):
    """Division of layers among pipeline stages."""

    even = "even"
    """The same number of layers in every stage."""
    balanced = "balanced"
    """About the same number of weights in every stage, embedding and head counted."""


@dataclass(kw_only=True)
class Parallelism:
    """Division of model and batch over ranks; ranks beyond tensor x pipeline x context are data parallel."""

    name: str
    """Name of the choice in run names, tables and reports."""
    strategy: Strategy
    """Method that keeps data-parallel replicas equal."""
    sharding: Sharding | None = None
    """Tensors that FSDP shards; only with strategy=fsdp."""
    data_replicate: Count | None = None
    """Copies of the weights that are kept equal; null: what `sharding` implies."""
    data_shard: Count | None = None
    """Ranks of one FSDP shard group; null: what `sharding` implies."""
    tensor: Count = 1
    """Ranks that share each matrix (TP)."""
    sequence_parallel: bool | None = None
    """With TP, split activations between the matrices along the sequence; null: wherever the engine can."""
    loss_parallel: bool = True
    """With TP, keep the logits split along the vocabulary for the loss."""
    pipeline: Count = 1
    """Ranks that share the layers (PP)."""
    schedule: Schedule = Schedule["1F1B"]
    """Order of a pipeline's forward and backward passes, by PyTorch's names (torch.distributed.pipelining)."""
    stages_per_rank: Count | None = None
    """Pieces of the model that a pipeline rank holds (virtual stages); null: what `schedule` implies."""
    stage_split: StageSplit = StageSplit.even
    """Division of layers among pipeline stages."""
    stage_layers: list[int] | None = None
    """Layers of every stage, first to last; null: as `stage_split` divides them."""
    prefetch: Count | None = field(default=None, metadata=NATIVE_ONLY)
    """Layers whose FSDP weights are gathered ahead, in forward and in backward; null: PyTorch's choice, which is the
    next layer as far as the host is ahead of the device."""
    reduce_each: ReduceEach = field(default=ReduceEach.micro_batch, metadata=NATIVE_ONLY)
    """Interval of FSDP's reduction of gradients; DDP, replicas and pipelines reduce once per step (native)."""
    bucket_mb: Count | None = field(default=None, metadata=NATIVE_ONLY)
    """Gradients that DDP all-reduces at a time, in MiB; null: PyTorch's 25 (native)."""
    context: Count = 1
    """Ranks that share each sequence (CP)."""
    expert: Count = field(default=1, metadata=NATIVE_ONLY)
    """Data-parallel ranks that share the experts of every layer (EP): each has its own part of them, whole, and tokens
    travel to their experts. They are ranks of an FSDP shard group (native) or hold equal copies of all other weights
    (nemo)."""


# --- axes ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Axis:
    """An axis of the rank grid: its names, and what it means for rows, gradients and weights."""

    name: str
    """In meshes, plans and reports."""
    heading: str
    """Heading of its column in a table of runs."""
    field: str
    """Its degree in Parallelism."""
    action: str
    """Verb of a group of its ranks in the drawing of the mesh."""
    averages_gradients: bool = False
    """Its ranks see different tokens through equal weights, so gradients are averaged over them."""
    needs_whole_rows: bool = False
    """Every row is padded to the longest (Job.row_length)."""
    is_data: bool = False
    """Its ranks see different sequences: it is a part of data parallelism."""
    has_own_weights: bool = False
    """Its ranks hold different weights, such as layers, not parts of the same ones."""
    divides: str = ""
    """Field of Model that counts what its ranks divide; only of SHARD_PARTS."""
    example: str = ""
    """Choice of a model that has them."""
    rare: bool = False
    """The plan and messages show it only where its degree is above 1; plans of older versions lack it."""

    @property
    def key(self) -> str:
        """Return the key of its degree in the configuration."""
        return f"parallelism.{self.field}"


PP = Axis(
    name="pp",
    heading="PP",
    field="pipeline",
    action="split the layers",
    needs_whole_rows=True,
    has_own_weights=True,
)
DP_REPLICATE = Axis(
    name="dp_replicate",
    heading="DP replicate",
    field="data_replicate",
    action="keep equal weights",
    averages_gradients=True,
    is_data=True,
)
DP_SHARD = Axis(
    name="dp_shard",
    heading="DP shard",
    field="data_shard",
    action="split the weights",
    averages_gradients=True,
    is_data=True,
)
# Its ranks have different experts, and a part of each other weight (FSDP) or a copy (Megatron).
EP = Axis(
    name="ep",
    heading="EP",
    field="expert",
    action="split the experts",
    averages_gradients=True,
    is_data=True,
    has_own_weights=True,
    divides="experts",
    example="qwen3_30b_a3b",
    rare=True,
)
CP = Axis(
    name="cp",
    heading="CP",
    field="context",
    action="split each sequence",
    averages_gradients=True,
    needs_whole_rows=True,
    rare=True,
)
TP = Axis(name="tp", heading="TP", field="tensor", action="split each matrix")

# Slowest first: consecutive ranks differ in the last axis.
AXES = (PP, DP_REPLICATE, DP_SHARD, EP, CP, TP)
AXIS_NAMES = tuple(axis.name for axis in AXES)
# FSDP shards weights over all ranks that see different tokens, not only over its own axis.
SHARD_GROUP_AXES = tuple(axis for axis in AXES if axis.averages_gradients and axis is not DP_REPLICATE)
# Their ranks see different sequences.
DATA_AXES = tuple(axis for axis in AXES if axis.is_data)
# Data axes inside FSDP's shard group: the user sets their degrees, and DP shard has the other ranks of the group.
SHARD_PARTS = tuple(axis for axis in DATA_AXES if axis not in (DP_REPLICATE, DP_SHARD))
# Axes inside the data-parallel ones: their ranks are consecutive and meet in every layer.
INNER_AXES = AXES[AXES.index(DATA_AXES[-1]) + 1 :]
# Axes that divide the model or each sequence: the user sets their degrees, and the other ranks are data parallel.
# Fastest first, rare ones last: the order of messages and of searches.
MODEL_AXES = tuple(sorted((axis for axis in reversed(AXES) if not axis.is_data), key=lambda axis: axis.rare))
# All axes with a degree of 1 unless the user sets another one.
SET_AXES = (*MODEL_AXES, *SHARD_PARTS)
# MODEL_AXES in the order of tables: dp x cp x tp x pp.
TABLE_AXES = (*INNER_AXES, PP)
