"""Which rank does what: the rank grid, without torch.

    rank          one process; on a GPU machine one per GPU
    node          a machine with `ranks_per_node` consecutive ranks
    world size    all ranks = pipeline x replicate x shard x context x tensor
    PP stage      a piece of the layers; a pipeline rank holds one, or several virtual ones
    DP            replicate x shard: ranks that see different sequences
    shard group   ranks that together hold one copy of the weights (FSDP), context x shard of them
    CP group      ranks that each see a part of the same sequences
    TP group      ranks that share each matrix; consecutive, to stay inside a node
    micro-batch   sequences of one forward pass of a rank (MBS)
    step          one optimizer update on GBS = MBS x DP x accumulation sequences

An axis belongs to this grid (pp, dp_replicate, dp_shard, cp, tp); a tensor has dims.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from jobs.schema import EngineKind, Run, Schedule, Sharding, Strategy

AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
Place = tuple[int, int, int, int, int]
"""One number for each of AXES."""


@dataclass(frozen=True)
class Layout:
    """The rank grid; a rank counts its places on AXES with the last axis fastest, as torch's device mesh does."""

    nodes: int
    ranks_per_node: int
    pp: int
    dp_replicate: int
    dp_shard: int
    cp: int
    tp: int

    def __post_init__(self) -> None:
        grid = math.prod(self.shape)
        assert grid == self.world_size, f"{' x '.join(AXES)} = {grid}, world size = {self.world_size}"

    @property
    def world_size(self) -> int:
        """All ranks."""
        return self.nodes * self.ranks_per_node

    @property
    def dp(self) -> int:
        """Data-parallel degree: how many groups of ranks see different sequences."""
        return self.dp_replicate * self.dp_shard

    @property
    def shape(self) -> Place:
        """Degrees in the order of AXES."""
        return (self.pp, self.dp_replicate, self.dp_shard, self.cp, self.tp)

    def coordinates(self, rank: int) -> Place:
        """Position of a rank on each of AXES."""
        places = []
        for degree in reversed(self.shape):
            rank, place = divmod(rank, degree)
            places.append(place)
        tp, cp, shard, replicate, pp = places
        return (pp, replicate, shard, cp, tp)

    def dp_rank(self, rank: int) -> int:
        """Which of the dp slices of a global batch a rank computes on."""
        _, replicate, shard, _, _ = self.coordinates(rank)
        return replicate * self.dp_shard + shard

    def groups(self, axis: str) -> list[list[int]]:
        """The groups of ranks that differ only on one axis, each in the order of that axis."""
        index = AXES.index(axis)
        stride = math.prod(self.shape[index + 1 :])
        firsts = (rank for rank in range(self.world_size) if self.coordinates(rank)[index] == 0)
        return [[first + stride * position for position in range(self.shape[index])] for first in firsts]

    def crosses_nodes(self, axis: str) -> bool:
        """Whether a group of this axis has ranks on more than one node."""
        return any(len({rank // self.ranks_per_node for rank in group}) > 1 for group in self.groups(axis))


def data_degree(run: Run) -> int:
    """Data-parallel degree: what tensor x pipeline x context leave of the ranks."""
    p = run.parallelism
    return run.ranks // (p.tensor * p.pipeline * p.context)


def shard_degree(run: Run) -> int:
    """Data-parallel ranks of one FSDP shard group, as chosen or as the sharding implies."""
    p, dp = run.parallelism, data_degree(run)
    if p.strategy is not Strategy.fsdp or p.sharding is Sharding.NO_SHARD:
        return 1
    if p.data_shard is not None:
        return p.data_shard
    if p.data_replicate is not None:
        return dp // p.data_replicate
    if p.sharding is Sharding.HYBRID_SHARD:
        return max(1, min(dp, run.ranks_per_node // (p.tensor * p.context)))
    return dp


def frees_weights(run: Run) -> bool:
    """Whether FSDP gives gathered weights back after the forward pass, and gathers them again for backward."""
    return run.parallelism.sharding in {Sharding.FULL_SHARD, Sharding.HYBRID_SHARD}


def layout_of(run: Run) -> Layout:
    """The rank grid of a run that jobs.plan.legality has passed."""
    shard = shard_degree(run)
    return Layout(
        nodes=run.nodes,
        ranks_per_node=run.ranks_per_node,
        pp=run.parallelism.pipeline,
        dp_replicate=data_degree(run) // shard,
        dp_shard=shard,
        cp=run.parallelism.context,
        tp=run.parallelism.tensor,
    )


def accumulation(run: Run) -> int:
    """Micro-batches that each rank runs per step: GBS = MBS x DP x accumulation."""
    return run.global_batch_size // (run.job.micro_batch_size * data_degree(run))


def sequence_parallel(run: Run) -> bool:
    """Whether TP cuts activations along the sequence; Megatron's norms can only with GPU kernels."""
    p = run.parallelism
    if p.tensor == 1:
        return False
    if p.sequence_parallel is not None:
        return p.sequence_parallel
    return run.engine.kind is EngineKind.native or run.cluster.gpus


# Stages a rank holds unless the user says otherwise, and the schedules that can hold others.
PIPELINE_STAGES_PER_RANK = {
    Schedule["GPipe"]: 1,
    Schedule["1F1B"]: 1,
    Schedule["Interleaved1F1B"]: 2,
    Schedule["LoopedBFS"]: 2,
    Schedule["InterleavedZeroBubble"]: 2,
    Schedule["ZBVZeroBubble"]: 2,
}


def pipeline_stages_per_rank(run: Run) -> int:
    """Pieces of the model that a pipeline rank holds."""
    p = run.parallelism
    return 1 if p.pipeline == 1 else p.stages_per_rank or PIPELINE_STAGES_PER_RANK[p.schedule]


def pipeline_stages_of(run: Run, pp_rank: int) -> list[int]:
    """Stages a pipeline rank holds: every pp-th, or for a V schedule one from each end."""
    p, count = run.parallelism.pipeline, pipeline_stages_per_rank(run)
    if run.parallelism.schedule is Schedule["ZBVZeroBubble"] and p > 1:
        return [pp_rank, 2 * p - 1 - pp_rank]
    return [pp_rank + i * p for i in range(count)]


def padding(run: Run) -> tuple[int, bool]:
    """What rows of a micro-batch are padded to: a multiple, and whether all micro-batches of a step are equally long.

    Every cut along the sequence must be even. Pipeline stages exchange tensors of one size: whole sequences of
    `job.sequence_length`, so that few sizes occur where rows are packed.
    """
    p = run.parallelism
    if p.pipeline > 1 or p.context > 1 or run.engine.kind is EngineKind.nemo:
        return run.job.sequence_length, True
    return p.tensor if sequence_parallel(run) else 1, False
