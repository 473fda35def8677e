"""Memory of engine=native in a step besides states, activations and loss: backward of one layer, and FSDP's buffers.

tests/jobs/plan/test_activations.py compares the sums with the real engine.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import Any

from jobs.engines.engine import engine_of
from jobs.engines.native.loss_chunk import loss_chunk
from jobs.layout import accumulation, frees_weights, sequence_parallel, uses_fsdp
from jobs.parallelism import SHARD_PARTS, Strategy
from jobs.plan.predict.activations import (
    WIDTHS,
    Tokens,
    closing_operands,
    feed_forward,
    has_grouped_products,
    has_wide_weights,
    in_autocast,
    layer_input,
    scored,
)
from jobs.plan.predict.once import once
from jobs.plan.predict.states import layer_as_stored, shard_ranks, undivided_gradients
from jobs.plan.predict.weights import (
    NF4_BLOCK,
    Weight,
    adapter_weights,
    embedding_weights,
    held_by_rank,
    kinds_of_layers,
    layer_weights,
    norm_weights,
)
from jobs.schema import LoraTarget, Mlp, Run


def backward_of_layer(run: Run, x: Tokens) -> int:
    """Return the gradients that exist at once in backward of the feed-forward, which has the largest.

    With the gradient of the layer's result: either those of the closing matrix and of its input, for which sequence
    parallelism gathers the result's gradient; or those of its input, up and silu, while what it kept of that is freed.
    """
    model, tensor = run.model, run.parallelism.tensor
    wide = model.inner_size // tensor
    tokens = x.count * x.width * max(1, model.experts_per_token)
    inputs = tokens * wide + x.count * x.width * model.shared_size // tensor
    matrix = wide * model.hidden_size * x.width if run.job.trains_all_weights else 0
    others = 0
    if has_grouped_products(run):
        # Those of a rank's experts one after the other, for the gradient of its input and as that of the weights; with
        # biases, the matrices that these are added to too. FSDP has the gradients of two others in the last product,
        # when two operands of the first one are freed.
        of_experts = model.experts // run.parallelism.expert * wide * model.hidden_size * x.width
        matrix = of_experts * (2 if model.bias else 1)
        if uses_fsdp(run) and run.job.trains_all_weights:
            others = max(0, 2 * of_experts - tokens * (wide + model.hidden_size))
    gathered = x.count * x.width * model.hidden_size if sequence_parallel(run) else 0
    if in_autocast(run) and has_wide_weights(run):
        # Autocast casts the gradient of the weight up.
        matrix *= 3
    made = 3 if model.mlp is not Mlp.GptNeoxMLP else 2
    activation = made * inputs - tokens // x.width * closing_operands(run, x, wide)
    return layer_input(run, x) + max(inputs + matrix + others + gathered, activation) + unpacked_matrix(run, x)


def unpacked_matrix(run: Run, x: Tokens) -> int:
    """Return what a product with a matrix in 4 bits takes: the largest one and its scales in float32."""
    if not run.job.quantizes_base:
        return 0
    largest = max(weight.size for _, kind in kinds_of_layers(run.model) for weight in layer_weights(kind))
    return x.width * largest + 4 * largest // NF4_BLOCK


def masks_of_layer(run: Run, x: Tokens) -> int:
    """Return what the dropout before the closing matrix takes next to a layer, where it draws its mask.

    One byte per number of the columns of all TP ranks, the matrix's input, and that with dropout. And what the layer
    does not keep: its input and the matrix's result; gradient, input and result of attention as they are between pairs
    of matrices.
    """
    if run.job.lora is None or not run.job.lora.dropout or LoraTarget.mlp not in run.job.lora.targets:
        return 0
    wide = run.model.inner_size // run.parallelism.tensor
    later = closing_operands(run, x, wide)
    drawn = run.model.inner_size + 2 * wide * x.width
    return x.count * (drawn + 2 * run.model.hidden_size * x.width - later) + 3 * layer_input(run, x)


def scores_of_layer(run: Run, x: Tokens) -> int:
    """Return what backward of capped scores takes next to a layer, when the feed-forward has freed what it kept.

    The gradients of their weights and of the scores, in float32.
    """
    if run.model.attention_softcap is None:
        return 0
    scores = x.count * scored(run, x) * run.model.heads // run.parallelism.tensor
    return 2 * 4 * scores - feed_forward(run, x)


@once
def in_layer(run: Run) -> int:
    """Return the weights of one layer on a TP rank, adapters included."""
    adapters = adapter_weights(run.model, run.job.lora) if run.job.lora else []
    return held(run, [*layer_as_stored(run), *adapters])


@once
def trained_in_layer(run: Run) -> int:
    """Return those weights of a layer that have gradients."""
    if run.job.trains_all_weights:
        return in_layer(run)
    return held(run, adapter_weights(run.model, run.job.lora)) if run.job.lora else 0


@once
def in_head(run: Run) -> int:
    """Return the weights of head and last norm on a TP rank, which FSDP gathers at once."""
    return held(run, [*embedding_weights(run.model), *norm_weights(run.model)])


def trained_in_head(run: Run) -> int:
    """Return those weights of head and last norm that have gradients: none if weights are frozen."""
    return in_head(run) if run.job.trains_all_weights else 0


def held(run: Run, weights: list[Weight]) -> int:
    """Return the elements of some weights on a TP rank, of experts those of its EP rank."""
    return held_by_rank(weights, run.parallelism)


class Backward(Enum):
    """A moment of backward."""

    last = "last"
    """In the last layer: the gradients of the head are reduced."""
    begin = "begin"
    """Between two layers: the weights of one have been copied from their message, and the next message is there."""
    before = "before"
    """In a layer before it: the gradients of the layer after it are reduced."""
    after = "after"
    """At the end of a layer, when it has all gradients of its own weights."""


def gathers_for_loss(run: Run) -> int:
    """Return the buffers of FSDP while the loss is computed: head and last norm.

    In chunks the loss is largest in forward, when the message that gathered them still exists next to them.
    """
    if not uses_fsdp(run):
        return 0
    weights = 0 if keeps_gathered(run) else 1
    message = 0 if loss_chunk(run) is None else 1
    return (weights + message) * WIDTHS[run.job.precision] * in_head(run)


def gathers_for_backward(run: Run, neighbour: Run, moment: Backward) -> int:
    """Return the buffers of FSDP in backward of a layer, between or beside layers as those of `neighbour`.

    Weights of this layer, the message of the next one, this layer's gradients, and the message that reduces the
    gradients of what came before: head, or a layer.
    """
    if not uses_fsdp(run):
        return 0
    width, kept, tied = WIDTHS[run.job.precision], keeps_gathered(run), tied_gradient(run)
    # A tied embedding stays gathered until its gradients are summed at the end, and is reduced then.
    embedding = 0 if kept else tied
    if moment is Backward.begin:
        return 0 if kept else width * (2 * in_layer(run) + in_layer(neighbour)) + embedding
    weights = 0 if kept else width * (in_layer(run) + in_layer(neighbour)) + embedding
    of_head = 0 if tied else trained_in_head(run)
    reduced = engine_of(run).gradient_bytes(run) * (of_head if moment is Backward.last else trained_in_layer(neighbour))
    gradients = width * trained_in_layer(run) if moment is Backward.after else 0
    return reduced + weights + gradients


def keeps_gathered(run: Run) -> bool:
    """Return whether FSDP keeps all weights gathered from forward to backward."""
    return run.parallelism.pipeline > 1 or not frees_weights(run)


def gathered_copies(run: Run, weights: int) -> int:
    """Return the copies in the type of the arithmetic of `weights` that FSDP does not shard, only replicates.

    jobs.plan.predict.states counts those that it shards.
    """
    p = run.parallelism
    if not uses_fsdp(run) or p.strategy is Strategy.fsdp or not keeps_gathered(run):
        return 0
    return WIDTHS[run.job.precision] * weights


def freed_in_backward(run: Run) -> int:
    """Return the gathered weights of head and last layer, which FSDP frees after their backward; in a pipeline none.

    Weights kept after forward are freed in the last micro-batch only. With three and more, one in the middle finds
    gradients and frees nothing.
    """
    if not uses_fsdp(run) or run.parallelism.pipeline > 1 or accumulation(run) > 2:
        return 0
    return WIDTHS[run.job.precision] * (in_head(run) + in_layer(run))


def embedding_gradient(run: Run) -> int:
    """Return the embedding's gradient by one micro-batch; under TP of all rows (states.undivided_gradients)."""
    if not run.job.trains_all_weights:
        return 0
    width = WIDTHS[run.job.precision if uses_fsdp(run) else run.engine.parameters]
    return width * sum(weight.size for weight in embedding_weights(run.model))


def tied_gradient(run: Run) -> int:
    """Return the gradient of a head that is the embedding, by one micro-batch; 0 if they are two matrices."""
    p = run.parallelism
    return embedding_gradient(run) // p.tensor if run.model.tie_embeddings and p.pipeline == 1 else 0


def end_of_backward(run: Run, *, single: bool) -> int:
    """Return the gradients of the embedding at the end of backward besides the ones of the step so far.

    Its own is computed next to them; with one micro-batch (`single`) it is the one that stays. A tied embedding has the
    head's next to its own, and their sum; under TP also the rows of this rank.
    """
    tied = tied_gradient(run)
    found = embedding_gradient(run) + (3 if run.parallelism.tensor > 1 else 2) * tied
    if not single or (tied and uses_fsdp(run)):
        return found
    return found - tied if tied else 0


def tied_gathers(run: Run) -> int:
    """Return what FSDP holds while the gradients of a tied embedding are summed: its weights, and the first layer.

    It frees an embedding only when all of its gradient is there; of the layer it still has weights and gradients.
    """
    if not frees_weights(run) or not (tied := tied_gradient(run)):
        return 0
    return tied + 2 * WIDTHS[run.job.precision] * trained_in_layer(run)


def head_gradient(run: Run) -> float:
    """Return the gradient of head and last norm that a rank keeps: none if backward has updated them."""
    if run.engine.update_in_backward:
        return 0.0
    return WIDTHS[run.engine.parameters] * trained_in_head(run) / shard_ranks(run)


def first_gradients(run: Run) -> float:
    """Return the gradients of embedding and first layer that a rank keeps, the last ones of a step."""
    embedding = 0
    if run.job.trains_all_weights:
        embedding = held(run, embedding_weights(run.model)) + undivided_gradients(run)
    # What a part of the shard group divides (EP) has fewer shards.
    undivided: dict[str, Any] = {axis.field: 1 for axis in SHARD_PARTS}
    layer = trained_in_layer(replace(run, parallelism=replace(run.parallelism, **undivided)))
    return WIDTHS[run.engine.parameters] * (layer + embedding) / shard_ranks(run)


def pipeline_messages(run: Run, x: Tokens, *, first: bool, last: bool) -> int:
    """Return the buffers of a pipeline stage: torch keeps one for each micro-batch of a step and neighbour."""
    if run.parallelism.pipeline == 1:
        return 0
    neighbours = (not first) + (not last)
    return neighbours * accumulation(run) * x.count * run.model.hidden_size * x.width
