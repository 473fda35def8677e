"""The weight tensors of a model by shape, and the part of each that a rank keeps under TP and FSDP."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise
from typing import Any

from jobs.parallelism import Parallelism
from jobs.plan.predict.once import once
from jobs.schema import (
    LatentAttention,
    Lora,
    LoraTarget,
    Mlp,
    Model,
    Norm,
    NormPlace,
    PromptEncoder,
    PromptTuning,
    Run,
)

NF4_BLOCK, SCALES_BLOCK = 64, 256
"""Numbers with one scale, and scales with one of their own (jobs.engines.native.customization.nf4)."""
LSTM_LAYERS = 2
"""Layers of the LSTM that encodes virtual tokens (https://arxiv.org/abs/2103.10385)."""


class Split(Enum):
    """The side of a weight that tensor parallelism divides (jobs.engines.native.tensor_parallel)."""

    rows = "rows"
    """Outputs: the matrix that opens a pair, embedding and head."""
    columns = "columns"
    """Inputs: the matrix that closes a pair."""
    none = "none"
    """Every rank keeps the whole weight: norms, and biases added after the reduction."""


@dataclass(frozen=True)
class Weight:
    """A weight tensor, outputs x inputs; a vector has one column."""

    rows: int
    columns: int = 1
    split: Split = Split.none
    of_expert: bool = False
    copies: int = 1
    """Tensors of this shape: those of experts are listed once."""

    @property
    def size(self) -> int:
        """Return the number of elements of one tensor."""
        return self.rows * self.columns

    def held(self, tensor: int, shards: int = 1) -> int:
        """Return one tensor's elements on the first rank of `tensor` TP ranks and `shards` FSDP ranks, the most.

        Both cut as torch.chunk does, in parts of ceil(n / parts); FSDP cuts the rows that TP left.
        """
        rows = -(-self.rows // tensor) if self.split is Split.rows else self.rows
        columns = -(-self.columns // tensor) if self.split is Split.columns else self.columns
        return -(-rows // shards) * columns


def kinds_of_layers(model: Model, numbers: Sequence[int] | None = None) -> list[tuple[int, Model]]:
    """Return how many of some layers, or of all, are of each kind, with a model that has only such layers.

    That is, the layers of a mixture of experts with a dense feed-forward, if these are among them, and the others.
    """
    return [(count, with_layers(model, dense=dense)) for dense, count in counts_of_layers(model, numbers).items()]


def counts_of_layers(model: Model, numbers: Sequence[int] | None = None) -> dict[bool, int]:
    """Return how many of some layers, or of all, are dense (Model.is_dense), and how many are others, if any are."""
    numbers, is_dense = range(model.layers) if numbers is None else numbers, model.is_dense
    dense = sum(is_dense[number] for number in numbers)
    return {kind: count for kind, count in ((True, dense), (False, len(numbers) - dense)) if count}


@once
def with_layers(model: Model, *, dense: bool) -> Model:
    """Return a model all of whose layers are as its dense ones, or as the others."""
    if not any(model.is_dense):
        return model
    without: dict[str, Any] = {"experts": 0, "experts_per_token": 0, "moe_intermediate_size": None, "router": None}
    dense_layer: dict[str, Any] = {"mlp": Mlp.LLaMAMLP, "shared_experts": 0, **without}
    return replace(model, dense_layers=0, experts_every=1, **(dense_layer if dense else {}))


def kinds_of_run(run: Run, numbers: Sequence[int] | None = None) -> list[tuple[int, Run]]:
    """Return how many of some layers, or of all, are of each kind, with a run whose model has only such layers."""
    return [(count, run_with_layers(run, dense=dense)) for dense, count in counts_of_layers(run.model, numbers).items()]


@once
def run_with_layers(run: Run, *, dense: bool) -> Run:
    """Return a run whose model has only dense layers, or only the others (with_layers)."""
    return replace(run, model=with_layers(run.model, dense=dense)) if any(run.model.is_dense) else run


@once
def layer_weights(model: Model) -> tuple[Weight, ...]:
    """Return the weights of a layer: attention, the feed-forward (a router and experts), and its norms.

    Those of a layer with experts, if some layers have them (kinds_of_layers).
    """
    feed_forward = mlp_weights(model)
    if model.mlp is Mlp.LLaMAMoE:
        shared = mlp_weights(model, model.shared_size) if model.shared_experts else []
        router = linear(model.experts, model.hidden_size, Split.none, bias=model.bias)
        feed_forward = [*router, *of_experts(model, feed_forward), *shared]
    return (
        *(attention_weights(model) if model.latent is None else latent_weights(model, model.latent)),
        *feed_forward,
        *norm_weights(model) * norms_of_layer(model),
        *(head_norm_weights(model) if model.norm_qk else []),
        *([Weight(model.heads, split=Split.rows)] if model.attention_sinks else []),
    )


def attention_weights(model: Model) -> list[Weight]:
    """Return the fused matrix of queries, keys and values, and the closing one."""
    qkv_width = (model.heads + 2 * model.kv_heads) * model.head_size
    return [
        *linear(qkv_width, model.hidden_size, Split.rows, bias=model.bias or model.attention_bias),
        *linear(model.hidden_size, model.heads * model.head_size, Split.columns, bias=model.bias),
    ]


def latent_weights(model: Model, latent: LatentAttention) -> list[Weight]:
    """Return the weights of latent attention; every TP rank has those of narrow vectors and of their norms whole."""
    hidden, heads, rope, rank = model.hidden_size, model.heads, latent.rope_head_size, latent.q_lora_rank
    opening = heads * (model.head_size - rope + latent.value_head_size)
    return [
        *([] if rank is None else [Weight(rank, hidden), Weight(rank)]),
        Weight(heads * model.head_size, rank or hidden, Split.rows),
        Weight(latent.kv_lora_rank + rope, hidden),
        Weight(latent.kv_lora_rank),
        Weight(opening, latent.kv_lora_rank, Split.rows),
        Weight(hidden, heads * latent.value_head_size, Split.columns),
    ]


def in_4_bits(weights: Iterable[Weight], width: int) -> list[Weight]:
    """Return the weights of a layer with matrices as rows of numbers of `width` bytes that hold 4-bit ones."""
    return [replace(each, columns=each.columns // (2 * width)) if each.columns > 1 else each for each in weights]


def scale_bytes(weights: Iterable[Weight]) -> int:
    """Return the bytes of the scales of matrices in 4 bits: one per block, and four per block of blocks."""
    blocks = [(weight.copies, -(-weight.size // NF4_BLOCK)) for weight in weights if weight.columns > 1]
    return sum(copies * (count + 4 * -(-count // SCALES_BLOCK)) for copies, count in blocks)


def mlp_weights(model: Model, inner_size: int | None = None) -> list[Weight]:
    """Return the weights of a feed-forward, or of one expert: gate and up where it is gated, else up; and down."""
    width, hidden = model.hidden_size, inner_size or model.inner_size
    opening = linear(hidden, width, Split.rows, bias=model.bias)
    closing = linear(width, hidden, Split.columns, bias=model.bias)
    return [*opening * (1 if model.mlp is Mlp.GptNeoxMLP else 2), *closing]


def of_experts(model: Model, weights: Iterable[Weight]) -> list[Weight]:
    """Return the weights of all experts of a layer, given those of one."""
    return [replace(weight, of_expert=True, copies=model.experts) for weight in weights]


def held_by_rank(weights: Iterable[Weight], p: Parallelism, shards: int = 1) -> int:
    """Return the elements on a rank: TP and FSDP cut each weight (Weight.held), and EP ranks divide the experts.

    FSDP shards an expert over shards / EP ranks.
    """
    found = [0, 0]
    for weight in weights:
        parts = -(-shards // p.expert) if weight.of_expert else shards
        found[weight.of_expert] += weight.copies * weight.held(p.tensor, parts)
    return found[0] + found[1] // p.expert


def adapter_weights(model: Model, lora: Lora, *, fused: bool = False) -> list[Weight]:
    """Return the weights of the adapters of one layer, which TP divides with their matrix.

    If `fused` (NeMo), query, key and value have one adapter, and so have gate and up; and TP divides all of them, A by
    its rank where its inputs are whole.
    """
    hidden, heads_width = model.hidden_size, model.heads * model.head_size
    widths = {
        LoraTarget.query: heads_width,
        LoraTarget.key: model.kv_heads * model.head_size,
        LoraTarget.value: model.kv_heads * model.head_size,
    }
    parts = [width for target, width in widths.items() if target in lora.targets]
    found = []
    if model.latent is not None:
        *of_queries, kv_a, kv_b, closing = (each for each in latent_weights(model, model.latent) if each.columns > 1)
        chosen = {LoraTarget.query: of_queries, LoraTarget.key: [kv_a, kv_b], LoraTarget.projection: [closing]}
        matrices = [each for target, group in chosen.items() if target in lora.targets for each in group]
        return [part for matrix in matrices for part in adapter(matrix, lora.rank)]
    if parts:
        # One matrix for the inputs of all parts.
        found += [Weight(lora.rank * (1 if fused else len(parts)), hidden), Weight(sum(parts), lora.rank, Split.rows)]
    if LoraTarget.projection in lora.targets:
        found += adapter(Weight(hidden, heads_width, Split.columns), lora.rank)
    if LoraTarget.mlp in lora.targets:
        *opening, closing = (weight for weight in mlp_weights(model) if weight.columns > 1)
        if fused:
            # Megatron's linear_fc1 is gate and up in one matrix.
            opening = [Weight(sum(weight.rows for weight in opening), hidden, Split.rows)]
        matrices = [*opening, closing]
        if model.mlp is Mlp.LLaMAMoE:
            matrices = [Weight(model.experts, hidden), *of_experts(model, matrices)]
        found += [part for matrix in matrices for part in adapter(matrix, lora.rank)]
    if not fused:
        return found
    return [replace(weight, split=Split.rows) if weight.split is Split.none else weight for weight in found]


def prompt_weights(model: Model, chosen: PromptTuning) -> list[Weight]:
    """Return the weights of virtual tokens and their encoder, which every TP rank keeps whole."""
    return [Weight(chosen.virtual_tokens, model.hidden_size), *encoder_weights(model.hidden_size, chosen).values()]


def encoder_weights(hidden: int, chosen: PromptTuning) -> dict[str, Weight]:
    """Return the weights of an encoder of virtual tokens by name, in order, with the shapes of PEFT's PromptEncoder.

    Those of an LSTM have torch's names, and four gates as rows.
    """
    inner = chosen.encoder_hidden_size or hidden
    match chosen.encoder:
        case None:
            return {}
        case PromptEncoder.mlp:
            return linear_layers([hidden, inner, inner, hidden])
        case PromptEncoder.lstm:
            found: dict[str, Weight] = {}
            for layer in range(LSTM_LAYERS):
                # The second layer reads both directions of the first.
                inputs = 2 * inner if layer else hidden
                for direction in ("", "_reverse"):
                    place = f"l{layer}{direction}"
                    found[f"lstm_weight_ih_{place}"] = Weight(4 * inner, inputs)
                    found[f"lstm_weight_hh_{place}"] = Weight(4 * inner, inner)
                    found |= {f"lstm_bias_{part}_{place}": Weight(4 * inner) for part in ("ih", "hh")}
            return found | linear_layers([2 * inner, 2 * inner, hidden])


def linear_layers(widths: list[int]) -> dict[str, Weight]:
    """Return the weights of linear layers one after another, from widths between them."""
    found: dict[str, Weight] = {}
    for place, (inputs, outputs) in enumerate(pairwise(widths)):
        found |= {f"mlp_weight_{place}": Weight(outputs, inputs), f"mlp_bias_{place}": Weight(outputs)}
    return found


def adapter(matrix: Weight, rank: int) -> list[Weight]:
    """Return the two weights of a matrix's adapter: each is divided on the side that it shares with the matrix."""
    of_inputs = Split.columns if matrix.split is Split.columns else Split.none
    of_outputs = Split.rows if matrix.split is Split.rows else Split.none
    pair = [Weight(rank, matrix.columns, of_inputs), Weight(matrix.rows, rank, of_outputs)]
    return [replace(weight, of_expert=matrix.of_expert, copies=matrix.copies) for weight in pair]


def linear(rows: int, columns: int, split: Split, *, bias: bool) -> list[Weight]:
    """Return a matrix, and its bias if it has one, which TP divides with the rows."""
    biases = [Weight(rows, 1, Split.rows if split is Split.rows else Split.none)] if bias else []
    return [Weight(rows, columns, split), *biases]


def norms_of_layer(model: Model) -> int:
    """Return the number of norms of hidden states in a layer."""
    return 4 if model.norm_place is NormPlace.around else 2


@once
def norm_weights(model: Model) -> list[Weight]:
    """Return the weights of one normalization: scale, and bias for LayerNorm."""
    return [Weight(model.hidden_size)] * (2 if model.norm is Norm.LayerNorm else 1)


def head_norm_weights(model: Model) -> list[Weight]:
    """Return the weights of the norms of queries and of keys: all heads share them, or each has its own."""
    if not model.norm_qk_whole:
        return [replace(weight, rows=model.head_size) for weight in norm_weights(model)] * 2
    sizes = [heads * model.head_size for heads in (model.heads, model.kv_heads)]
    return [replace(weight, rows=size, split=Split.rows) for size in sizes for weight in norm_weights(model)]


@once
def embedding_weights(model: Model) -> list[Weight]:
    """Return the embedding, vocab x hidden; the output head has the same shape."""
    return [Weight(model.vocab_size, model.hidden_size, Split.rows)]


def size(weights: Iterable[Weight]) -> int:
    """Return the number of elements of all weights."""
    return sum(weight.copies * weight.size for weight in weights)
