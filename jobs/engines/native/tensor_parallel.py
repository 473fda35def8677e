"""Tensor parallelism: each matrix is sharded over the TP group by torch's DTensor styles.

A pair of matrices y = B f(A x) needs one reduction (Megatron-LM, https://arxiv.org/abs/1909.08053): A is sharded by
rows of its weight (column-wise in Megatron's words), f works on each part alone, B is sharded by columns, and the
partial sums of B are reduced. Attention: A = qkv, B = proj. Feed-forward: A = fc, B = proj.

LitGPT fuses query, key and value as rows [all q | all k | all v]. Equal row blocks would give one rank queries only,
so the rows are regrouped by rank, [q0 k0 v0 | q1 k1 v1 | ...], when weights are loaded, and regrouped back when they
are saved: checkpoints and exports have LitGPT's order for every layout.
"""

from __future__ import annotations

import copy

import torch
from litgpt.config import Config
from litgpt.model import GPT, Block, LLaMAMoE
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard, distribute_module
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from jobs.engines.native.loss import ChunkedHead
from jobs.engines.native.model import layers


def apply_tp(gpt: GPT, mesh: DeviceMesh, *, sequence_parallel: bool, loss_parallel: bool) -> None:
    """Shard the model over the TP group, in place.

    With sequence_parallel, activations between the pairs of matrices are sharded too, (mbs, seq / tp, hidden): the
    reduction becomes a reduce-scatter, and an all-gather precedes the next pair (https://arxiv.org/abs/2205.05198).
    With loss_parallel the logits stay a DTensor (mbs, seq, vocab / tp).
    """
    # Attention splits its own heads only.
    config = copy.copy(gpt.config)
    config.n_head //= mesh.size()
    config.n_query_groups //= mesh.size()
    between = Shard(1) if sequence_parallel else Replicate()
    for layer in layers(gpt):
        layer.attn.config = config
        parallelize_module(layer, mesh, layer_plan(layer, between))
    plan: dict[str, ParallelStyle] = {
        "transformer.wte": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
        "lm_head": WeightOnly()
        if isinstance(getattr(gpt, "lm_head", None), ChunkedHead)
        else ColwiseParallel(
            input_layouts=between,
            output_layouts=Shard(-1) if loss_parallel else Replicate(),
            use_local_output=not loss_parallel,
        ),
    }
    if sequence_parallel:
        plan["transformer.ln_f"] = SequenceParallel()
    # A pipeline rank may lack embedding or head.
    held = dict(gpt.named_modules())
    parallelize_module(gpt, mesh, {name: style for name, style in plan.items() if name in held})


class WeightOnly(ColwiseParallel):
    """Shard a matrix by rows of its weight; its module takes and returns what it did."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        return distribute_module(module, device_mesh, self._partition_linear_fn)


def layer_plan(layer: Block, between: Replicate | Shard) -> dict[str, ParallelStyle]:
    """Return torch's style for each matrix of one layer."""
    plan: dict[str, ParallelStyle] = {
        "attn.qkv": ColwiseParallel(),
        "attn.proj": RowwiseParallel(output_layouts=between),
    }
    experts = isinstance(layer.mlp, LLaMAMoE)
    for name, module in layer.get_submodule("mlp").named_modules(prefix="mlp"):
        if name.endswith((".fc", ".fc_1", ".fc_2")):
            plan[name] = ColwiseParallel()
        elif name.endswith(".proj") and isinstance(module, nn.Linear):
            # Reduce each expert's output by itself: the router's gradient needs it complete.
            plan[name] = RowwiseParallel(output_layouts=Replicate() if experts else between)
    if isinstance(between, Shard):
        plan |= {"norm_1": SequenceParallel(), "norm_2": SequenceParallel()}
        # LitGPT passes six positional arguments to attention; only the first is sharded.
        rest = (None,) * 5
        plan["attn"] = PrepareModuleInput(input_layouts=(between, *rest), desired_input_layouts=(Replicate(), *rest))
        plan["mlp"] = (
            PrepareModuleInputOutput(
                input_layouts=between,
                desired_input_layouts=Replicate(),
                use_local_input=True,
                output_layouts=Replicate(),
                desired_output_layouts=between,
            )
            if experts
            else PrepareModuleInput(input_layouts=between, desired_input_layouts=Replicate())
        )
    return plan


def qkv_rows(config: Config, tensor: int) -> Tensor:
    """Return the row numbers of LitGPT's fused qkv in the order [q0 k0 v0 | q1 k1 v1 | ...] of TP ranks."""
    heads, groups, size = config.n_head, config.n_query_groups, config.head_size
    q, k, v = torch.arange((heads + 2 * groups) * size).split((heads * size, groups * size, groups * size))
    by_rank = zip(q.chunk(tensor), k.chunk(tensor), v.chunk(tensor), strict=True)
    return torch.cat([rows for parts in by_rank for rows in parts])


def grouped_by_rank(name: str, full: Tensor, config: Config, tensor: int) -> Tensor:
    """Return a full weight in the row order of the layout; only fused qkv differs from LitGPT's."""
    return full[qkv_rows(config, tensor)] if tensor > 1 and ".attn.qkv." in name else full


def as_in_litgpt(name: str, full: Tensor, config: Config, tensor: int) -> Tensor:
    """Return a full weight in LitGPT's row order: the inverse of grouped_by_rank."""
    return full[torch.argsort(qkv_rows(config, tensor))] if tensor > 1 and ".attn.qkv." in name else full
