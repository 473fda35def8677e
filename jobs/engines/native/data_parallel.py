"""Data parallelism: DDP, and FSDP2 with PyTorch's four sharding strategies.

    FULL_SHARD      one shard group of all data-parallel ranks, gathered parameters freed after forward (ZeRO-3)
    SHARD_GRAD_OP   one shard group, gathered parameters kept until the last backward of a step (ZeRO-2)
    NO_SHARD        shard groups of one rank: every rank holds all parameters, gradients are all-reduced
    HYBRID_SHARD    FULL_SHARD within shard groups (by default one per node), gradients all-reduced between them

All of them average gradients over the data-parallel ranks. Context-parallel ranks hold equal weights and see
different tokens, so shard groups span them too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from jobs.engines.native.experts.mixture import experts_of
from jobs.engines.native.model import ends, layers
from jobs.engines.native.weights import TYPES
from jobs.layout import frees_weights
from jobs.parallelism import DP_REPLICATE, DP_SHARD, EP, SHARD_GROUP_AXES, Axis, ReduceEach
from jobs.schema import Precision, Run


def shard(unit: nn.Module, run: Run, mesh: DeviceMesh) -> None:
    """Apply FSDP2 in place: embedding, each layer, and norm and head are units, each gathered at once.

    The root has no weights of its own, so the first layer waits for the embedding only. Tied, the embedding is the
    head: then both, and the norm, are the root's.
    """
    policy = MixedPrecisionPolicy()
    if run.job.precision is not Precision.float32:
        # Compute in 16 bits, reduce gradients in float32 unless the run says otherwise. Inputs are not cast:
        # activations have 16 bits already, and the rotary table must stay float32.
        narrow, reduced = TYPES[run.job.precision], TYPES[run.engine.gradients]
        policy = MixedPrecisionPolicy(param_dtype=narrow, reduce_dtype=reduced, cast_forward_inputs=False)
    data_mesh = data_parallel_mesh(mesh, SHARD_GROUP_AXES)
    before, after = ([], []) if run.model.tie_embeddings else ends(unit)
    # EP ranks have different experts, so these are sharded over the others; each layer's before the layer itself.
    divided = list(experts_of(unit)) if run.parallelism.expert > 1 else []
    of_experts = data_parallel_mesh(mesh, tuple(axis for axis in SHARD_GROUP_AXES if axis is not EP))
    for experts in divided:
        fully_shard(experts, mesh=of_experts, mp_policy=policy, reshard_after_forward=frees_weights(run))
    for part in (*before, *layers(unit)):
        fully_shard(part, mesh=data_mesh, mp_policy=policy, reshard_after_forward=frees_weights(run))
    for part in cast(list[FSDPModule], before):
        if isinstance(part, nn.Embedding):
            # The gradient of its weight needs the tokens only, and tokens have none.
            part.set_unshard_in_backward(unshard_in_backward=False)
    if after:
        # Backward starts with the head, so freeing it would only gather it twice.
        fully_shard(after, mesh=data_mesh, mp_policy=policy, reshard_after_forward=False)
    # The host waits for the counts of tokens in each layer with divided experts, so it is not ahead of the device.
    ahead = run.parallelism.prefetch or (1 if divided else None)
    if ahead is not None:
        gather_ahead(cast(list[FSDPModule], [*before, *layers(unit), *after[:1]]), ahead)
    fully_shard(unit, mesh=data_mesh, mp_policy=policy)


def gather_ahead(units: list[FSDPModule], depth: int) -> None:
    """Let each FSDP unit gather the weights of the next `depth` units before it computes, in forward and in backward.

    The host then issues the all-gathers early, so that they overlap with computation even if it is not far ahead. A
    layer gathers its own experts, a unit inside it, first: selective checkpointing wants the same operators in forward
    and when it computes again, so none may gather inside the layer.
    """
    for i, unit in enumerate(units):
        after, before = units[i + 1 : i + 1 + depth], units[max(0, i - depth) : i][::-1]
        unit.set_modules_to_forward_prefetch(
            [*inside(unit), *(part for each in after for part in (each, *inside(each)))]
        )
        unit.set_modules_to_backward_prefetch(
            [*inside(unit), *(part for each in before for part in (each, *inside(each)))]
        )


def inside(unit: FSDPModule) -> list[FSDPModule]:
    """Return the experts in a layer, if FSDP shards them by themselves."""
    return [part for part in experts_of(cast(nn.Module, unit)) if isinstance(part, FSDPModule)]


def data_parallel_mesh(mesh: DeviceMesh, axes: Sequence[Axis]) -> DeviceMesh:
    """Return the mesh that FSDP shards over (1-D), or replicates and shards over (2-D); `axes` are its shard group."""
    names = tuple(axis.name for axis in axes if axis is DP_SHARD or mesh[axis.name].size() > 1)
    shard_axis = "_".join(names)
    if len(names) > 1:
        # Their ranks need the same weights, so parameters are sharded over all axes as one.
        mesh[names]._flatten(shard_axis)  # noqa: SLF001 (torch has no public name for it yet)
    replicated = mesh[DP_REPLICATE.name].size() > 1 or mesh[shard_axis].size() == 1
    return mesh[DP_REPLICATE.name, shard_axis] if replicated else mesh[shard_axis]


def replicate(gpt: nn.Module, mesh: DeviceMesh, run: Run) -> DistributedDataParallel:
    """Return the model in DDP over the replicas.

    Its buffers are constant tables, so nothing is broadcast; gradients lie in the buckets and not in memory of their
    own next to them.
    """
    replicas = mesh[DP_REPLICATE.name].get_group()
    model = DistributedDataParallel(
        gpt,
        process_group=replicas,
        bucket_cap_mb=run.parallelism.bucket_mb,
        broadcast_buffers=False,
        gradient_as_bucket_view=True,
    )
    if run.engine.gradients is Precision.bfloat16 and run.engine.parameters is Precision.float32:
        # torch compares the annotations of hooks with types, and ours are text.
        model.register_comm_hook(replicas, lambda group, bucket: mean_in_bfloat16(group, bucket.buffer()))
    return model


def mean_in_bfloat16(replicas: dist.ProcessGroup, wide: Tensor) -> Future[Tensor]:
    """Return the mean over replicas of some of DDP's float32 gradients, sent in bfloat16; written in place.

    As torch's bf16_compress_hook, which refuses CPUs.
    """
    sent = wide.bfloat16().div_(replicas.size())
    work = dist.all_reduce(sent, group=replicas, async_op=True)
    done: Future[Tensor] = work.get_future().then(lambda _: wide.copy_(sent))
    return done


def prepare_backward(model: nn.Module, run: Run, *, last: bool) -> None:
    """Set before a forward pass what its backward sends and frees; `last` is true in a step's last micro-batch.

    Gradients add up, so one all-reduce over replicas after the last micro-batch has the sum of all. Within a shard
    group FSDP reduces after each, unless the run pays for unsharded gradients (parallelism.reduce_each).
    """
    if isinstance(model, DistributedDataParallel):
        model.require_backward_grad_sync = last  # what DDP.no_sync() sets
    elif isinstance(model, FSDPModule):
        model.set_requires_all_reduce(last)
        if run.parallelism.reduce_each is ReduceEach.step:
            model.set_requires_gradient_sync(last)
        if not frees_weights(run):
            # No weight changes before the update. All of them are whole when backward begins, so to keep them for the
            # next forward pass takes no more memory than that moment does.
            model.set_reshard_after_backward(last)
