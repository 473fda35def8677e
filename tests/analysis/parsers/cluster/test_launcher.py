"""Nodes and ranks by the lines of launchers."""

from __future__ import annotations

import pytest

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind
from analysis.parsers.cluster.launcher import FORMAT
from analysis.parsers.search import Search

NODES, RANKS, EACH = a.LAUNCHED_NODES, a.LAUNCHED_RANKS, a.LAUNCHED_RANKS_PER_NODE


def stated(text: str) -> dict[object, float]:
    found = list(FORMAT.parse(Search(FORMAT.markers).lines([text.encode()])))
    assert {each.kind for each in found} <= {Kind.setting}
    return {metric: value for each in found for metric, value in each.values.items()}


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("SLURM_NNODES: 2\nNNODES: 2\nGPUS_PER_NODE: 8\n", {NODES: 2, EACH: 8}),
        ("[NODE-0(gpu-11)] [INFO] NNODES: 2\n", {NODES: 2}),
        ("+ torchrun --nnodes=4 --nproc-per-node=8 train.py\n", {NODES: 4, EACH: 8}),
        ("torchrun --nnodes 4 --nproc_per_node 8 train.py\n", {NODES: 4, EACH: 8}),
        ("accelerate launch --num_machines 2 --num_processes 16 train.py\n", {NODES: 2, RANKS: 16}),
        ("[launch.py:164:main] nnodes=1, num_local_procs=8, node_rank=0\n[launch.py:175:main] dist_world_size=8\n",
         {NODES: 1, EACH: 8, RANKS: 8}),
        ("Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/16\n", {RANKS: 16}),
        ("using world size: 16, data-parallel size: 2\n", {RANKS: 16}),
        ("SLURM_NTASKS=16\nSLURM_NTASKS_PER_NODE=8\n", {RANKS: 16, EACH: 8}),
        # Elastic, of a group of ranks, of two jobs, of variables not yet set, of nodes on some clusters.
        ("torchrun --nnodes=1:4 train.py\n", {}),
        ("data parallel world size: 2, dp_world_size=2\n", {}),
        ("NNODES=2\nNNODES=4\n", {}),
        ("torchrun --nnodes=$NNODES --nproc_per_node=${NPROC_PER_NODE}\n", {}),
        ("WORLD_SIZE=2\n", {}),
    ],
)  # fmt: skip
def test_each_launcher_states_its_nodes_and_ranks(text: str, values: dict[object, float]) -> None:
    assert stated(text) == values
