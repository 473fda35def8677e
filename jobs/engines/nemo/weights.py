"""Convert weights between LitGPT's and Megatron's names and row orders.

    attn.qkv          rows [all q | all k | all v]   linear_qkv   rows [q k v of group 1 | q k v of group 2 | ...]
    mlp.fc_1, fc_2    gate and up                    linear_fc1   rows of a rank [its gate | its up]
    norm_1, norm_2                                   norms of their own, or a part of the matrix after them
    mlp.experts.5                   with EP the second expert of a rank that has four, a module (local_experts.1) or
                                    a part of a grouped product (linear_fc1.weight1)

TP shards rows of qkv, fc1, embedding and head, and columns of the output projections; norms are replicated.
Layers carry their number in the whole model, so virtual pipeline stages need no arithmetic here; experts do not.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn

from jobs.engines.native.weights import INITIAL_STD, Values, random_value


class Cut(Enum):
    """The sharding of a Megatron parameter over TP."""

    whole = "whole"
    rows = "rows"
    columns = "columns"
    qkv = "qkv"
    """Rows, by query group."""


@dataclass(frozen=True)
class Source:
    """The LitGPT tensors whose rows form a Megatron parameter, and its sharding."""

    names: tuple[str, ...]
    cut: Cut


ENDS = {
    "embedding.word_embeddings": Source(("transformer.wte",), Cut.rows),
    "output_layer": Source(("lm_head",), Cut.rows),
    "decoder.final_layernorm": Source(("transformer.ln_f",), Cut.whole),
}
IN_LAYER = {
    "input_layernorm": Source(("norm_1",), Cut.whole),
    "self_attention.linear_qkv": Source(("attn.qkv",), Cut.qkv),
    "self_attention.linear_proj": Source(("attn.proj",), Cut.columns),
    "pre_mlp_layernorm": Source(("norm_2",), Cut.whole),
    "mlp.linear_fc1": Source(("mlp.fc",), Cut.rows),
    "mlp.linear_fc2": Source(("mlp.proj",), Cut.columns),
    "mlp.router": Source(("mlp.gate",), Cut.whole),
    "self_attention.q_layernorm": Source(("attn.norm_q",), Cut.whole),
    "self_attention.k_layernorm": Source(("attn.norm_k",), Cut.whole),
}
SINKS = "self_attention.core_attention.softmax_offset"
EXPERT = re.compile(r"mlp\.experts\.(?:local_experts\.(\d+)\.)?(linear_fc[12])\.(weight|bias)(\d*)")
# Transformer Engine's layers contain the norm before their matrix.
FUSED_NORMS = {
    "self_attention.linear_qkv": "input_layernorm",
    "mlp.linear_fc1": "pre_mlp_layernorm",
}
LAYER = re.compile(r"decoder\.layers\.(\d+)\.(.+)")
ADAPTER = ".adapter."


def source_of(name: str, model: GPTModel) -> Source:
    """Return the source of a parameter of this rank's model; adapters have none."""
    name = name.replace(".to_wrap.", ".")
    module, kind = name.rsplit(".", 1)
    match = LAYER.fullmatch(module)
    if match is None:
        source, prefix = ENDS[module], ""
        if model.share_embeddings_and_output_weights and source.cut is Cut.rows:
            source = ENDS["output_layer"]  # LitGPT's name of the shared weight
    else:
        layer, module = model.decoder.layers[int(match[1])], match[2]
        prefix = f"transformer.h.{layer.layer_number - 1}."
        if f"{module}.{kind}" == SINKS:
            return Source((f"{prefix}attn.sinks",), Cut.rows)
        expert = EXPERT.fullmatch(f"{module}.{kind}")
        if expert is not None:
            module, kind = f"mlp.{expert[2]}", expert[3]
            of_expert = f"mlp.experts.{first_expert(model.config) + int(expert[1] or expert[4])}."
        if kind.startswith("layer_norm_"):
            module, kind = FUSED_NORMS[module], kind.removeprefix("layer_norm_")
        source = IN_LAYER[module]
        if module == "mlp.linear_fc1" and model.config.gated_linear_unit:
            source = Source(("mlp.fc_1", "mlp.fc_2"), Cut.rows)
        if expert is not None:
            source = Source(tuple(part.replace("mlp.", of_expert) for part in source.names), source.cut)
    # The bias of a column-sharded matrix is added once, after the sum over ranks.
    cut = Cut.whole if source.cut is Cut.columns and kind == "bias" else source.cut
    return Source(tuple(f"{prefix}{part}.{kind}" for part in source.names), cut)


def first_expert(config: TransformerConfig) -> int:
    """Return the number of this EP rank's first expert."""
    ranks = parallel_state.get_expert_model_parallel_world_size()
    return int(parallel_state.get_expert_model_parallel_rank() * config.num_moe_experts // ranks)


# --- one parameter -------------------------------------------------------------------------------------------


def full_shape(source: Source, part: Sequence[int], ranks: int) -> list[int]:
    """Return the shape of each of the source's tensors, given the shape of a shard over `ranks` TP ranks."""
    rows, *columns = part
    rows = rows // len(source.names) * (ranks if source.cut in {Cut.rows, Cut.qkv} else 1)
    if source.cut is Cut.columns:
        columns[0] *= ranks
    return [rows, *columns]


def shard_of(source: Source, tensors: Sequence[Tensor], config: TransformerConfig, rank: int, ranks: int) -> Tensor:
    """Return a TP rank's shard of full LitGPT tensors."""
    match source.cut:
        case Cut.whole:
            return tensors[0]
        case Cut.columns:
            return tensors[0].chunk(ranks, dim=1)[rank]
        case Cut.rows:
            return torch.cat([tensor.chunk(ranks)[rank] for tensor in tensors])
        case Cut.qkv:
            return by_query_group(tensors[0], config).chunk(ranks)[rank]


def joined(source: Source, parts: Sequence[Tensor], config: TransformerConfig) -> list[Tensor]:
    """Return full LitGPT tensors from the shards of all TP ranks: the inverse of `shard_of`."""
    match source.cut:
        case Cut.whole:
            return [parts[0]]
        case Cut.columns:
            return [torch.cat(list(parts), dim=1)]
        case Cut.rows:
            pieces = [part.chunk(len(source.names)) for part in parts]
            return [torch.cat([piece[i] for piece in pieces]) for i in range(len(source.names))]
        case Cut.qkv:
            return [by_kind(torch.cat(list(parts)), config)]


def by_query_group(qkv: Tensor, config: TransformerConfig) -> Tensor:
    """Regroup rows [all q | all k | all v] as [q k v of group 1 | ...]; qkv ((heads + 2 groups) * size, ...)."""
    groups, size = config.num_query_groups, config.kv_channels
    queries = config.num_attention_heads * size
    kinds = qkv.split([queries, groups * size, groups * size])
    # q (groups, heads / groups x size, ...), k and v (groups, size, ...): side by side, a group's rows are neighbours.
    return torch.cat([kind.unflatten(0, (groups, -1)) for kind in kinds], dim=1).flatten(0, 1)


def by_kind(qkv: Tensor, config: TransformerConfig) -> Tensor:
    """Regroup rows [q k v of group 1 | ...] as [all q | all k | all v]: the inverse of `by_query_group`."""
    groups, size = config.num_query_groups, config.kv_channels
    queries = config.num_attention_heads // groups * size
    return torch.cat(
        [kind.flatten(0, 1) for kind in qkv.unflatten(0, (groups, -1)).split([queries, size, size], dim=1)]
    )


# --- a rank's model ------------------------------------------------------------------------------------------


@torch.no_grad()
def load_sharded(model: GPTModel, values: Values, seed: int) -> None:
    """Load this rank's shards of the run's first weights; adapters are drawn from the seed."""
    rank = parallel_state.get_tensor_model_parallel_rank()
    ranks = parallel_state.get_tensor_model_parallel_world_size()
    for name, parameter in model.named_parameters():
        if ADAPTER in name:
            parameter.copy_(adapter_value(name, model, seed, parameter.shape, parameter.device))
            continue
        source = source_of(name, model)
        shape = full_shape(source, parameter.shape, ranks)
        tensors = [values(part, shape, torch.float32, parameter.device) for part in source.names]
        parameter.copy_(shard_of(source, tensors, model.config, rank, ranks))


def adapter_value(name: str, model: GPTModel, seed: int, part: Sequence[int], device: torch.device) -> Tensor:
    """Return the first value of an adapter's matrix: 0 for linear_out, Xavier normal for linear_in, in any layout."""
    if ".linear_out." in name:
        return torch.zeros(*part, device=device)
    match = LAYER.fullmatch(name)
    assert match is not None, name
    number = model.decoder.layers[int(match[1])].layer_number
    # linear_in is sharded by columns if its matrix is (proj, fc2), else by rows.
    dim = 1 if IN_LAYER[match[2].split(ADAPTER)[0]].cut is Cut.columns else 0
    ranks = parallel_state.get_tensor_model_parallel_world_size()
    shape = list(part)
    shape[dim] *= ranks
    whole = random_value(f"{number}.{match[2]}", shape, torch.float32, device, seed, norm=False)
    mine: Tensor = whole.chunk(ranks, dim)[parallel_state.get_tensor_model_parallel_rank()]
    # Xavier: the standard deviation is sqrt(2 / (rows + columns)), and the values were drawn with INITIAL_STD.
    return mine.mul(math.sqrt(2 / sum(shape)) / INITIAL_STD)


@torch.no_grad()
def litgpt_weights(model: GPTModel) -> Iterator[tuple[str, Tensor]]:
    """Yield full weights by LitGPT's names on the CPU, adapters merged; all TP ranks of the stage call it.

    Those of the experts that this EP rank has; all other weights on the first one.
    """
    adapters = {name: parameter for name, parameter in model.named_parameters() if ADAPTER in name}
    elsewhere = parallel_state.get_expert_model_parallel_rank() > 0
    for name, parameter in model.named_parameters():
        if name in adapters or (elsewhere and ".experts." not in name):
            continue
        parts = gathered(parameter)
        source = source_of(name, model)
        adapter = name.replace(".to_wrap.weight", f"{ADAPTER}linear_out.weight")
        if adapter in adapters:
            parts = merged(
                parts, source, adapters[adapter], adapters[adapter.replace("linear_out", "linear_in")], model
            )
        for part, tensor in zip(source.names, joined(source, parts, model.config), strict=True):
            yield part, tensor.cpu()


def merged(
    parts: list[Tensor], source: Source, going_out: nn.Parameter, going_in: nn.Parameter, model: GPTModel
) -> list[Tensor]:
    """Return the shards of W + alpha / rank * linear_out @ linear_in; the adapter is sharded as in NeMo."""
    lora = model.config.lora
    delta = (
        torch.cat(gathered(going_out)).float()
        @ torch.cat(gathered(going_in), dim=1 if source.cut is Cut.columns else 0).float()
        * (lora.alpha / lora.dim)
    )
    pieces = delta.chunk(len(parts), dim=1 if source.cut is Cut.columns else 0)
    return [(part.float() + piece).to(part.dtype) for part, piece in zip(parts, pieces, strict=True)]


def gathered(parameter: nn.Parameter) -> list[Tensor]:
    """Return the shards of a parameter from all TP ranks, in order."""
    ranks = parallel_state.get_tensor_model_parallel_world_size()
    parts = [torch.empty_like(parameter) for _ in range(ranks)]
    torch.distributed.all_gather(
        parts, parameter.detach().contiguous(), group=parallel_state.get_tensor_model_parallel_group()
    )
    return parts
