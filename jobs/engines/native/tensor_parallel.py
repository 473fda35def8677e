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
from collections.abc import Sequence

import torch
from litgpt.config import Config
from litgpt.model import GPT, Block, LLaMAMoE
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from jobs.engines.native.attention import LatentAttention
from jobs.engines.native.experts.mixture import Mixture
from jobs.engines.native.loss import ChunkedHead
from jobs.engines.native.model import layers
from jobs.engines.native.norm import HeadsNorm


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
    frozen = {name for name, parameter in gpt.named_parameters() if not parameter.requires_grad}
    for layer in layers(gpt):
        layer.attn.config = config
        parallelize_module(layer, mesh, layer_plan(layer, between))
        if isinstance(layer.attn, LatentAttention):
            layer.attn.split = mesh
        elif layer.attn.sinks is not None:
            layer.attn.sinks = nn.Parameter(distribute_tensor(layer.attn.sinks, mesh, [Shard(0)]))
        if isinstance(layer.mlp, Mixture) and layer.mlp.experts.are_plain:
            layer.mlp.split = mesh
    plan: dict[str, ParallelStyle] = {
        # Split by vocabulary: a rank looks up the tokens that it holds and returns 0 for others; the sum is reduced.
        "transformer.wte": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
        # Split by vocabulary too: each rank has the logits of its own part.
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
    plan["transformer.prompt"] = Whole()
    # A pipeline rank may lack embedding or head.
    held = dict(gpt.named_modules())
    parallelize_module(gpt, mesh, {name: style for name, style in plan.items() if name in held})
    # SequenceParallel registers the weights of norms anew, which then train again.
    for name, parameter in gpt.named_parameters():
        parameter.requires_grad_(name not in frozen)


class WeightOnly(ColwiseParallel):
    """Shard a matrix by rows of its weight; the module's inputs and outputs do not change."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        return distribute_module(module, device_mesh, self._partition_linear_fn)


class Whole(ParallelStyle):
    """Keep a module's parameters whole on every rank; the module's inputs and outputs do not change."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        return distribute_module(module, device_mesh)


class AcrossHeads(ParallelStyle):
    """Shard the weight of a norm of all heads, and its inputs (mbs, seq, heads / tp, size), by heads."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def partition(_name: str, norm: nn.Module, mesh: DeviceMesh) -> None:
            split = distribute_tensor(norm.get_parameter("weight"), mesh, [Shard(0)], src_data_rank=self.src_data_rank)
            norm.register_parameter("weight", nn.Parameter(split))

        def shared(_norm: nn.Module, inputs: tuple[Tensor], mesh: DeviceMesh) -> tuple[Tensor]:
            return (DTensor.from_local(inputs[0], mesh, [Shard(2)], run_check=False),)

        def own(_norm: nn.Module, output: DTensor, _mesh: DeviceMesh) -> Tensor:
            return output.redistribute(placements=[Shard(2)]).to_local()

        return distribute_module(module, device_mesh, partition, shared, own)  # type: ignore[arg-type]  # torch passes on what they return


class SplitRows(ColwiseParallel):
    """Shard a matrix by rows of its weight; of its adapter, lora_B by rows, and lora_A is whole."""

    def _partition_linear_fn(self, name: str, module: nn.Module, device_mesh: DeviceMesh) -> None:
        whole = dict(module.named_parameters(recurse=False)).get("lora_A")
        if whole is not None:
            # torch's style shards all parameters that are there, and replicates those that it leaves.
            del module.lora_A
        super()._partition_linear_fn(name, module, device_mesh)  # type: ignore[no-untyped-call]  # torch has no types
        if whole is not None:
            module.register_parameter("lora_A", whole)


class SplitColumns(RowwiseParallel):
    """Shard a matrix by columns of its weight; of its adapter, lora_A by columns, and lora_B is whole."""

    def _partition_linear_fn(self, name: str, module: nn.Module, device_mesh: DeviceMesh) -> None:
        super()._partition_linear_fn(name, module, device_mesh)  # type: ignore[no-untyped-call]  # torch has no types
        whole = dict(module.named_parameters(recurse=False)).get("lora_A")
        if whole is not None:
            split = distribute_tensor(whole, device_mesh, [Shard(1)], src_data_rank=self.src_data_rank)
            module.register_parameter("lora_A", nn.Parameter(split))


def layer_plan(layer: Block, between: Replicate | Shard) -> dict[str, ParallelStyle]:
    """Return torch's style for each matrix of one layer."""
    latent = isinstance(layer.attn, LatentAttention)
    # Heads are divided. Latent attention's narrow vectors are made by every rank from whole matrices.
    opening = ("q_proj", "q_b_proj", "kv_b_proj") if latent else ("qkv",)
    plan: dict[str, ParallelStyle] = {
        **{f"attn.{name}": SplitRows() for name in opening if hasattr(layer.attn, name)},
        "attn.proj": SplitColumns(output_layouts=between),
    }
    if layer.attn.config.norm_qk:
        # A rank has its own heads, (mbs, seq, heads / tp, size). A scale that heads share gets a sum as its gradient.
        for name in ("attn.norm_q", "attn.norm_k"):
            whole = isinstance(layer.get_submodule(name), HeadsNorm)
            plan[name] = AcrossHeads() if whole else SequenceParallel(sequence_dim=2, use_local_output=True)
    experts = isinstance(layer.mlp, LLaMAMoE)
    for name, module in layer.get_submodule("mlp").named_modules(prefix="mlp"):
        if name.endswith((".fc", ".fc_1", ".fc_2")):
            plan[name] = SplitRows()
        elif name.endswith(".proj") and isinstance(module, nn.Linear):
            # With adapters, reduce each expert's output by itself: the router's gradient needs it complete.
            plan[name] = SplitColumns(output_layouts=Replicate() if experts else between)
    if isinstance(between, Shard):
        # A norm works along hidden, so each rank normalizes its own positions, (mbs, seq / tp, hidden).
        plan |= {name: SequenceParallel() for name in ("norm_1", "norm_2") if not is_identity(layer, name)}
        # Their results are added to plain tensors.
        after = ("post_attention_norm", "post_mlp_norm")
        plan |= {name: SequenceParallel(use_local_output=True) for name in after if not is_identity(layer, name)}
        # LitGPT passes six positional arguments to attention; only the first is sharded.
        rest = (None,) * 5
        # Attention needs every position: all-gather to (mbs, seq, hidden).
        plan["attn"] = PrepareModuleInput(
            input_layouts=(between, *rest),
            desired_input_layouts=(Replicate(), *rest),
            # Whole matrices take plain tensors; the gradients of these are complete on every rank.
            use_local_output=latent,
        )
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


def is_identity(layer: Block, name: str) -> bool:
    """Return whether a layer has no norm in this place."""
    return isinstance(layer.get_submodule(name), nn.Identity)


def qkv_rows(config: Config, tensor: int, chosen: Sequence[bool] = (True, True, True)) -> Tensor:
    """Return the row numbers of LitGPT's fused qkv, or of some of its parts, in the order [q0 k0 v0 | q1 k1 v1 | ...].

    The numbers are of TP ranks.
    """
    heads, groups = (count * config.head_size for count in (config.n_head, config.n_query_groups))
    sizes = [size for size, is_chosen in zip((heads, groups, groups), chosen, strict=True) if is_chosen]
    by_rank = zip(*(part.chunk(tensor) for part in torch.arange(sum(sizes)).split(sizes)), strict=True)
    return torch.cat([rows for parts in by_rank for rows in parts])


def layout_rows(name: str, config: Config, tensor: int) -> Tensor | None:
    """Return the row numbers of LitGPT's tensor in the order of the layout, which differs for fused qkv; else None."""
    if tensor == 1 or ".attn.qkv." not in name or ".lora_A" in name:
        return None
    return qkv_rows(config, tensor, config.adapted_parts) if ".lora_B" in name else qkv_rows(config, tensor)


def grouped_by_rank(name: str, full: Tensor, config: Config, tensor: int) -> Tensor:
    """Return a full weight in the row order of the layout; only fused qkv differs from LitGPT's."""
    rows = layout_rows(name, config, tensor)
    return full if rows is None else full[rows]


def as_in_litgpt(name: str, full: Tensor, config: Config, tensor: int) -> Tensor:
    """Return a full weight in LitGPT's row order: the inverse of grouped_by_rank."""
    rows = layout_rows(name, config, tensor)
    # argsort of a permutation is its inverse.
    return full if rows is None else full[torch.argsort(rows)]
