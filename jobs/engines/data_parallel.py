"""Data parallelism: DDP, and FSDP2 with the four shardings PyTorch's users know.

    FULL_SHARD      1-D mesh over dp_shard, parameters freed after forward
    SHARD_GRAD_OP   the same mesh, parameters kept until backward
    NO_SHARD        2-D mesh (dp_replicate = all, dp_shard = 1)
    HYBRID_SHARD    2-D mesh (dp_replicate, dp_shard), by default one shard group a node

All of them average gradients over the data-parallel ranks.
"""

from __future__ import annotations

import torch
from litgpt.model import GPT
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from jobs.schema import Precision, Run, Sharding


def shard(gpt: GPT, run: Run, mesh: DeviceMesh) -> None:
    """Apply FSDP2 in place: every block is a unit of its own, the rest is the root's."""
    policy = MixedPrecisionPolicy()
    if run.job.precision is Precision.bfloat16:
        # Inputs are not cast: activations already are bfloat16, and the rotary table must stay float32.
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)
    hybrid = run.parallelism.sharding in {Sharding.NO_SHARD, Sharding.HYBRID_SHARD}
    data_mesh = mesh["dp_replicate", "dp_shard"] if hybrid else mesh["dp_shard"]
    keep = run.parallelism.sharding is Sharding.SHARD_GRAD_OP
    for block in gpt.transformer.h:
        fully_shard(block, mesh=data_mesh, mp_policy=policy, reshard_after_forward=not keep)
    # The root keeps torch's choice: backward needs its head at once, so freeing it would only gather it twice.
    fully_shard(gpt, mesh=data_mesh, mp_policy=policy)


def replicate(gpt: GPT, mesh: DeviceMesh) -> DistributedDataParallel:
    """Wrap in DDP over the replicas."""
    return DistributedDataParallel(gpt, process_group=mesh["dp_replicate"].get_group())


def reduce_gradients_now(model: nn.Module, *, now: bool) -> None:
    """Say before a forward pass whether its backward reduces over replicas, or a later micro-batch's will.

    FSDP still reduces within a shard group every time: keeping whole gradients would cost the memory it saves.
    """
    if isinstance(model, DistributedDataParallel):
        model.require_backward_grad_sync = now  # what DDP.no_sync() sets
    elif isinstance(model, FSDPModule):
        model.set_requires_all_reduce(now)
