"""Which rank does what: the rank grid, without torch.

    rank          one process; on a GPU machine one per GPU
    node          a machine with `ranks_per_node` consecutive ranks
    world size    all ranks = pipeline x replicate x shard x tensor
    PP stage      ranks that hold the same layers
    DP            replicate x shard: ranks that see different sequences
    shard group   ranks that together hold one copy of the weights (FSDP)
    TP group      ranks that share each matrix; consecutive, to stay inside a node
    micro-batch   sequences of one forward pass of a rank (MBS)
    step          one optimizer update on GBS = MBS x DP x accumulation sequences

An axis belongs to this grid (pp, dp_replicate, dp_shard, tp); a tensor has dims.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from jobs.schema import Run, Sharding, Strategy

AXES = ("pp", "dp_replicate", "dp_shard", "tp")


@dataclass(frozen=True)
class Layout:
    """The rank grid; rank = ((pp * dp_replicate + i) * dp_shard + j) * tp + k, as torch's device mesh has it."""

    nodes: int
    ranks_per_node: int
    pp: int
    dp_replicate: int
    dp_shard: int
    tp: int

    def __post_init__(self) -> None:
        grid = self.pp * self.dp_replicate * self.dp_shard * self.tp
        assert grid == self.world_size, f"pp*dp_replicate*dp_shard*tp = {grid}, world size = {self.world_size}"

    @property
    def world_size(self) -> int:
        """All ranks."""
        return self.nodes * self.ranks_per_node

    @property
    def dp(self) -> int:
        """Data-parallel degree: how many ranks (or TP x PP groups) see different sequences."""
        return self.dp_replicate * self.dp_shard

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Degrees in the order of AXES."""
        return (self.pp, self.dp_replicate, self.dp_shard, self.tp)

    def coordinates(self, rank: int) -> tuple[int, int, int, int]:
        """Position of a rank on each of AXES."""
        rest, tp = divmod(rank, self.tp)
        rest, shard = divmod(rest, self.dp_shard)
        pp, replicate = divmod(rest, self.dp_replicate)
        return (pp, replicate, shard, tp)

    def groups(self, axis: str) -> list[list[int]]:
        """The groups of ranks that differ only on one axis, each in the order of that axis."""
        index = AXES.index(axis)
        others = [range(degree) for i, degree in enumerate(self.shape) if i != index]
        groups = []
        for rest in itertools.product(*others):
            group = []
            for position in range(self.shape[index]):
                point = (*rest[:index], position, *rest[index:])
                pp, replicate, shard, tp = point
                group.append(((pp * self.dp_replicate + replicate) * self.dp_shard + shard) * self.tp + tp)
            groups.append(group)
        return groups

    def crosses_nodes(self, axis: str) -> bool:
        """Whether a group of this axis has ranks on more than one node."""
        return any(len({rank // self.ranks_per_node for rank in group}) > 1 for group in self.groups(axis))


def shard_degree(run: Run) -> int:
    """Ranks of one FSDP shard group, as chosen or as the sharding implies."""
    dp = run.ranks // (run.parallelism.tensor * run.parallelism.pipeline)
    if run.parallelism.strategy is not Strategy.fsdp or run.parallelism.sharding is Sharding.NO_SHARD:
        return 1
    if run.parallelism.data_shard is not None:
        return run.parallelism.data_shard
    if run.parallelism.sharding is Sharding.HYBRID_SHARD:
        return max(1, min(dp, run.ranks_per_node // run.parallelism.tensor))
    return dp


def layout_of(run: Run) -> Layout:
    """The rank grid of a run that jobs.plan.legality has passed."""
    shard = shard_degree(run)
    dp = run.ranks // (run.parallelism.tensor * run.parallelism.pipeline)
    return Layout(
        nodes=run.nodes,
        ranks_per_node=run.ranks_per_node,
        pp=run.parallelism.pipeline,
        dp_replicate=dp // shard,
        dp_shard=shard,
        tp=run.parallelism.tensor,
    )


def accumulation(run: Run) -> int:
    """Micro-batches that each rank runs per step: GBS = MBS x DP x accumulation."""
    return run.global_batch_size // (run.job.micro_batch_size * layout_of(run).dp)
