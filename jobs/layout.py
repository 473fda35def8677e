"""The rank grid, without torch: the rank arithmetic of a run.

    rank            one process; on a GPU machine one per GPU
    node            a machine with `ranks_per_node` consecutive ranks
    world size      number of ranks = PP x DP replicate x DP shard x EP x CP x TP
    pipeline stage  consecutive layers; a pipeline rank holds one, or several virtual ones
    DP              replicate x shard x EP: ranks that see different sequences
    shard group     ranks that together hold one copy of the weights (FSDP, ZeRO 3): DP shard x EP x CP
    EP group        ranks of a shard group that together hold the experts; DP shard x CP ranks shard the same ones
    CP group        ranks that each see a part of the same sequences
    TP group        ranks that share each matrix; consecutive, to stay inside a node
    micro-batch     sequences of one forward pass of a rank (MBS)
    step            one optimizer update on GBS = MBS x DP x accumulation sequences

The grid has axes (pp, dp_replicate, dp_shard, ep, cp, tp), the table of jobs.parallelism; a tensor has dims.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from jobs.engines.engine import engine_of
from jobs.parallelism import (
    AXES,
    AXIS_NAMES,
    DATA_AXES,
    DP_REPLICATE,
    DP_SHARD,
    INNER_AXES,
    MODEL_AXES,
    SET_AXES,
    SHARD_PARTS,
    Axis,
    Schedule,
    Sharding,
    Strategy,
)
from jobs.schema import Run

Place = tuple[int, ...]
"""One number for each of AXES."""
GPU_ROW_MULTIPLE = 64
"""Tokens that rows of unequal length are rounded up to on GPUs: few lengths, whole tiles of matrix kernels."""


# --- grid ----------------------------------------------------------------------------------------------------


def degree_of(run: Run, axis: Axis) -> int:
    """Return the degree of one of SET_AXES as the run sets it."""
    value: int = getattr(run.parallelism, axis.field)
    return value


def degree_product(run: Run, axes: Iterable[Axis]) -> int:
    """Return the product of the degrees of some of SET_AXES."""
    return math.prod(degree_of(run, axis) for axis in axes)


@dataclass(frozen=True)
class Layout:
    """The rank grid; ranks count along AXES with the last axis fastest, as in torch's device mesh."""

    nodes: int
    ranks_per_node: int
    shape: Place
    """Degrees in the order of AXES."""

    def __post_init__(self) -> None:
        grid = math.prod(self.shape)
        assert grid == self.world_size, f"{' x '.join(AXIS_NAMES)} = {grid}, world size = {self.world_size}"

    @property
    def world_size(self) -> int:
        """Return the number of ranks."""
        return self.nodes * self.ranks_per_node

    @classmethod
    def by_name(cls, nodes: int, ranks_per_node: int, degrees: Mapping[str, int]) -> Layout:
        """Return the grid with these degrees, one for each of AXIS_NAMES."""
        return cls(nodes, ranks_per_node, tuple(degrees[name] for name in AXIS_NAMES))

    def record(self) -> dict[str, int]:
        """Return nodes, ranks per node and the degrees by name of axis, as plan.json holds them."""
        sizes = {"nodes": self.nodes, "ranks_per_node": self.ranks_per_node}
        return sizes | dict(zip(AXIS_NAMES, self.shape, strict=True))

    @property
    def dp(self) -> int:
        """Return the data-parallel degree: the number of groups of ranks that see different sequences."""
        return self.product(DATA_AXES)

    def degree(self, axis: Axis) -> int:
        """Return the number of ranks along an axis."""
        return self.shape[AXES.index(axis)]

    def product(self, axes: Iterable[Axis]) -> int:
        """Return the product of the degrees of some axes."""
        return math.prod(map(self.degree, axes))

    def coordinates(self, rank: int) -> Place:
        """Return the position of a rank on each of AXES: the digits of its number in the mixed radix `shape`."""
        places = []
        for size in reversed(self.shape):
            rank, place = divmod(rank, size)
            places.append(place)
        return tuple(reversed(places))

    def place(self, rank: int, axis: Axis) -> int:
        """Return the position of a rank on one axis."""
        return self.coordinates(rank)[AXES.index(axis)]

    def axes_between(self, ranks: Sequence[int]) -> str:
        """Return the axes along which the ranks of a group differ, joined by `+`; `world` for all of several axes."""
        places = [self.coordinates(rank) for rank in ranks]
        varying = [
            axis for axis, along in zip(AXIS_NAMES, zip(*places, strict=True), strict=True) if len(set(along)) > 1
        ]
        whole = len(places) == self.world_size and len(varying) > 1
        return "world" if whole else "+".join(varying)

    def dp_rank(self, rank: int) -> int:
        """Return which of the dp slices of a global batch a rank computes."""
        # Digits of the data axes in their mixed radix.
        number = 0
        for axis in DATA_AXES:
            number = number * self.degree(axis) + self.place(rank, axis)
        return number

    def groups(self, axis: Axis) -> list[list[int]]:
        """Return the groups of ranks that differ on one axis only, each in the order of that axis."""
        stride = math.prod(self.shape[AXES.index(axis) + 1 :])
        firsts = (rank for rank in range(self.world_size) if self.place(rank, axis) == 0)
        return [[first + stride * position for position in range(self.degree(axis))] for first in firsts]

    def crosses_nodes(self, axis: Axis) -> bool:
        """Return whether a group of this axis has ranks on more than one node."""
        return any(len({rank // self.ranks_per_node for rank in group}) > 1 for group in self.groups(axis))


def data_degree(run: Run) -> int:
    """Return the data-parallel degree: world size / (TP x PP x CP)."""
    return run.ranks // degree_product(run, MODEL_AXES)


def shard_degree(run: Run) -> int:
    """Return the data-parallel ranks of one shard group, as set or as sharding and strategy imply."""
    p, dp = run.parallelism, data_degree(run)
    if p.strategy is Strategy.zero3:
        return dp
    if p.strategy is not Strategy.fsdp or p.sharding is Sharding.NO_SHARD:
        return 1
    if p.data_shard is not None:
        return p.data_shard
    if p.data_replicate is not None:
        return dp // p.data_replicate
    if p.sharding is Sharding.HYBRID_SHARD:
        # As many as fit a node next to the inner axes.
        return max(1, min(dp, run.ranks_per_node // degree_product(run, INNER_AXES)))
    return dp


def frees_weights(run: Run) -> bool:
    """Return whether FSDP frees gathered weights after the forward pass and gathers them again for backward."""
    return run.parallelism.sharding in {Sharding.FULL_SHARD, Sharding.HYBRID_SHARD}


def uses_ddp(run: Run) -> bool:
    """Return whether DDP keeps the replicas equal."""
    return run.parallelism.strategy is Strategy.ddp and degree_product(run, MODEL_AXES) == 1


def uses_fsdp(run: Run) -> bool:
    """Return whether FSDP manages the parameters.

    It also manages replicas of a model with TP or PP, as NO_SHARD: the arithmetic is DDP's, and FSDP supports the
    DTensors and pipeline stages that DDP's buckets do not.
    """
    strategy = run.parallelism.strategy
    return strategy is Strategy.fsdp or (strategy is Strategy.ddp and not uses_ddp(run) and data_degree(run) > 1)


def layout_of(run: Run) -> Layout:
    """Return the rank grid of a run that jobs.plan.legality has passed."""
    degrees = {axis.name: degree_of(run, axis) for axis in SET_AXES}
    parts = degree_product(run, SHARD_PARTS)
    # Megatron's EP ranks shard nothing else.
    shard = max(shard_degree(run), parts)
    degrees |= {DP_REPLICATE.name: data_degree(run) // shard, DP_SHARD.name: shard // parts}
    return Layout.by_name(run.nodes, run.ranks_per_node, degrees)


# --- batch and pipeline --------------------------------------------------------------------------------------


def accumulation(run: Run) -> int:
    """Return the micro-batches of a rank in a step: GBS / (MBS x DP)."""
    return run.global_batch_size // (run.job.micro_batch_size * data_degree(run))


def sequence_parallel(run: Run) -> bool:
    """Return whether TP shards activations along the sequence; Megatron's norms support it on GPUs only."""
    p = run.parallelism
    if p.tensor == 1:
        return False
    if p.sequence_parallel is not None:
        return p.sequence_parallel
    return engine_of(run).shards_sequences_on_cpus or run.cluster.gpus


# Pipeline stages of a rank by default. Schedules with 1 accept no other number, those with 2 accept more but for ZBV.
PIPELINE_STAGES_PER_RANK = {
    Schedule["GPipe"]: 1,
    Schedule["1F1B"]: 1,
    Schedule["Interleaved1F1B"]: 2,
    Schedule["LoopedBFS"]: 2,
    Schedule["InterleavedZeroBubble"]: 2,
    Schedule["ZBVZeroBubble"]: 2,
}


def linked_ranks(run: Run) -> int:
    """Return the consecutive ranks whose GPUs have one link: those of a node, or of the nodes of an NVLink domain.

    Slurm's topology/block gives a job the nodes of one domain after those of another, and with --segment=N at least N
    nodes of each.
    """
    nodes = max(1, (run.gpu.link_domain_gpus or 0) // run.cluster.ranks_per_node)
    segment = run.cluster.sbatch.get("segment", "")
    if nodes > 1 and segment.isdecimal():
        nodes = min(nodes, max(1, int(segment)))
    return run.ranks_per_node * min(nodes, run.nodes)


def tensor_stays_on_link(run: Run) -> bool:
    """Return whether no TP group needs the network: its traffic is in the path of every layer."""
    return linked_ranks(run) % run.parallelism.tensor == 0


def pipeline_stages_per_rank(run: Run) -> int:
    """Return the number of pipeline stages that a pipeline rank holds."""
    p = run.parallelism
    return 1 if p.pipeline == 1 else p.stages_per_rank or PIPELINE_STAGES_PER_RANK[p.schedule]


def pipeline_stages_of(run: Run, pp_rank: int) -> list[int]:
    """Return the pipeline stages of a rank: pp_rank, pp_rank + PP, ...; for a V schedule one from each end."""
    p, count = run.parallelism.pipeline, pipeline_stages_per_rank(run)
    if run.parallelism.schedule is Schedule["ZBVZeroBubble"] and p > 1:
        return [pp_rank, 2 * p - 1 - pp_rank]
    return [pp_rank + i * p for i in range(count)]


def has_gpus(run: Run) -> bool:
    """Return whether the configuration has GPUs: of the cluster, or of this machine (launcher=local)."""
    return run.cluster.gpus or run.gpu.name != "none"


def gpu_limits(run: Run) -> dict[str, float]:
    """Return the limits at which the GPUs are held, by their keys; empty without one."""
    limits = {
        "cluster.gpu_power_limit_w": run.cluster.gpu_power_limit_w,
        "cluster.gpu_clock_mhz": run.cluster.gpu_clock_mhz,
    }
    return {key: value for key, value in limits.items() if value is not None}


def padding(run: Run) -> tuple[int, bool]:
    """Return the number whose multiple rows are padded to, and whether a step's micro-batches have equal lengths.

    Sharding along the sequence needs an even split. Pipeline stages exchange tensors of one size: whole sequences of
    Job.row_length, so that few sizes occur where rows are packed. GPUs prepare an attention kernel for every new
    length, which takes longer than a few positions of padding.
    """
    whole_rows = any(degree_of(run, axis) > 1 for axis in MODEL_AXES if axis.needs_whole_rows)
    if whole_rows or engine_of(run).has_whole_rows:
        return run.job.row_length, True
    multiple = run.parallelism.tensor if sequence_parallel(run) else 1
    on_gpus = math.lcm(multiple, GPU_ROW_MULTIPLE)
    # No row may be longer than the rotary table, which has that number of rows.
    if engine_of(run).pads_for_kernels and has_gpus(run) and run.job.row_length % on_gpus == 0:
        multiple = on_gpus
    return multiple, False
