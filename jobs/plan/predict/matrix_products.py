"""Floating-point operations and memory traffic of a micro-batch on one rank.

Tensor parallelism divides matrices as Megatron does (arXiv:1909.08053), sequence parallelism the rest
(arXiv:2205.05198).
"""

from __future__ import annotations

from dataclasses import dataclass

from jobs.engines.engine import engine_of
from jobs.layout import sequence_parallel
from jobs.plan.pipeline_stages import checkpointed_layers
from jobs.plan.predict.activations import (
    WIDTHS,
    chance_of_ranks,
    dispatches_parts,
    has_grouped_products,
    has_wide_weights,
    in_autocast,
    tokens_of,
)
from jobs.plan.predict.flops import attended
from jobs.plan.predict.weights import layer_weights, norms_of_layer, size
from jobs.schema import ActivationCheckpointing, ExpertDispatcher, Float8Recipe, Mlp, Norm, Run

NUMBER_BYTES = {
    Float8Recipe.tensorwise: 1.0,
    Float8Recipe.rowwise: 1.0,
    Float8Recipe.delayed: 1.0,
    Float8Recipe.blockwise: 1.0,
    Float8Recipe.mxfp8: 1 + 1 / 32,
    Float8Recipe.nvfp4: 1 / 2 + 1 / 16,
}
"""Bytes of a number with its part of the scales; those of whole rows and blocks of 128 are not counted."""


@dataclass(frozen=True)
class Product:
    """A matrix product (rows x inner) (inner x columns), and its number."""

    rows: float
    inner: float
    columns: float
    count: float = 1

    @property
    def flops(self) -> float:
        """Return multiplications and additions."""
        return 2 * self.rows * self.inner * self.columns * self.count

    @property
    def read(self) -> float:
        """Return the elements that are read."""
        return (self.rows * self.inner + self.inner * self.columns) * self.count

    @property
    def written(self) -> float:
        """Return the elements that are written."""
        return self.rows * self.columns * self.count


def layer_products(run: Run) -> list[Product]:
    """Return the products of the forward pass of one layer: of attention, shared experts, and the feed-forward."""
    model, t, rows = run.model, run.parallelism.tensor, tokens_of(run).count
    hidden, shared = model.hidden_size, model.shared_size / t
    of_shared = [Product(rows, hidden, shared, 2), Product(rows, shared, hidden)] if shared else []
    return [*attention_products(run), *of_shared, *feed_forward_products(run)]


def attention_products(run: Run) -> list[Product]:
    """Return the products with attention's matrices: query-key-value and output; every TP rank has narrow vectors."""
    model, t, rows = run.model, run.parallelism.tensor, tokens_of(run).count
    heads, hidden = model.heads * model.head_size, model.hidden_size
    if (latent := model.latent) is None:
        qkv = heads + 2 * model.kv_heads * model.head_size
        return [Product(rows, hidden, qkv / t), Product(rows, heads / t, hidden)]
    rope, narrow, rank = latent.rope_head_size, latent.kv_lora_rank, latent.q_lora_rank
    made = model.heads * (model.head_size - rope + latent.value_head_size)
    return [
        *([] if rank is None else [Product(rows, hidden, rank)]),
        Product(rows, rank or hidden, heads / t),
        Product(rows, hidden, narrow + rope),
        Product(rows, narrow, made / t),
        Product(rows, model.heads * latent.value_head_size / t, hidden),
    ]


def feed_forward_products(run: Run) -> list[Product]:
    """Return the products of a feed-forward, or of the experts of a rank."""
    model, t, rows = run.model, run.parallelism.tensor, tokens_of(run).count
    hidden, inner = model.hidden_size, model.inner_size
    opening = 1 if model.mlp is Mlp.GptNeoxMLP else 2
    # Those of this rank, which EP sends the tokens of its group; experts are assumed to be equally busy.
    experts = model.experts // run.parallelism.expert if model.experts else 1
    routed = rows * max(1, model.experts_per_token) / experts
    return [
        Product(routed, hidden, inner / t, opening * experts),
        Product(routed, inner / t, hidden, experts),
    ]


def head_product(run: Run) -> Product:
    """Return the product of the output head."""
    return Product(tokens_of(run).count, run.model.hidden_size, run.model.vocab_size / run.parallelism.tensor)


def passes(run: Run) -> float:
    """Return the matrix work of a step as a number of forward passes.

    Forward, the gradients of activations, those of weights, and recomputation. LoRA needs no gradients of frozen
    weights; the adapters' own products, about 2 rank / width of that work, are left out.
    """
    return (3 if run.job.trains_all_weights else 2) + recomputed_share(run)


def recomputed_share(run: Run) -> float:
    """Return the share of the layers whose forward pass the backward pass repeats as a whole."""
    return checkpointed_share(run) if run.engine.activation_checkpointing is ActivationCheckpointing.full else 0.0


def checkpointed_share(run: Run) -> float:
    """Return the share of the layers of which the backward pass computes anything again."""
    return len(checkpointed_layers(run)) / run.model.layers


def attention_flops(run: Run) -> float:
    """Return the FLOPs of a layer's attention, forward and backward: two products, the half below the diagonal.

    The backward pass computes 2.5 times the forward's (arXiv:2307.08691, section 3.1), the scores again included.
    Those of a slower kernel count as what the GPU's best kernel would have computed meanwhile. Capped scores are
    computed above the diagonal too.
    """
    model, p = run.model, run.parallelism
    # In the mean over the layers; below the diagonal a token attends to half of what it is counted to. Values of latent
    # attention are padded to the size of queries and keys.
    positions = attended_by(run) / model.layers / 2
    if model.attention_softcap is not None:
        positions = float(run.job.sequence_length)
    forward = 2 * 2 * tokens_of(run).count * positions * model.heads * model.head_size / p.tensor
    repeats = 3.5 + recomputed_share(run)
    return forward * repeats / engine_of(run).attention_rate(run)


def attended_by(run: Run) -> float:
    """Return the positions that a token counts as attending to, summed over layers."""
    model, windows = run.model, (run.model.sliding_window, run.model.full_attention_every)
    return attended(run.job.sequence_length, model.layers, *windows, chunked=model.chunked_window)


def element_bytes(run: Run) -> float:
    """Return the bytes that a layer's element-wise kernels read and write: norms, sums, rotary embedding, activation.

    A backward pass moves twice what a forward pass does.
    """
    model, p = run.model, run.parallelism
    repeats = 3 + checkpointed_share(run)
    fused = engine_of(run).fuses_elements(run)
    # Read and written: norms (unfused in more than one pass), two sums of two inputs.
    passed = norms_of_layer(model) * (2 if fused or model.norm is Norm.LayerNorm else 5) + 2 * 3
    residual = passed * model.hidden_size / (p.tensor if sequence_parallel(run) else 1)
    # Read and written; without fusion so is the rotated copy of each head.
    rotary = (2 if fused else 4) * (model.heads + model.kv_heads) * model.head_size / p.tensor
    if (model.norm_qk or model.norm_rotated) and not run.engine.compile:
        # A norm of its own before each rotation, read and written once; compilation makes one kernel of both.
        rotary += 2 * (model.heads + model.kv_heads) * model.head_size / p.tensor
    # GELU reads and writes. Gate and up are read and their product is written; without fusion silu(gate) is written and
    # read again. Limited SwiGLU has seven kernels, three of them with two inputs.
    opening = 2 if model.mlp is Mlp.GptNeoxMLP else 3 if fused else 5
    if model.swiglu_limit is not None and not (fused and engine_of(run).fuses_limited_swiglu):
        opening = 17
    activation = opening * (model.inner_size * max(1, model.experts_per_token) + model.shared_size) / p.tensor
    moved = repeats * WIDTHS[run.job.precision] * tokens_of(run).count * (residual + rotary + activation)
    return moved + permuted_bytes(run) + unpacked_bytes(run) + stacked_bytes(run) + scores_bytes(run)


def permuted_bytes(run: Run) -> float:
    """Return the bytes to bring copies of tokens into the order of their experts and back, read and written.

    A token is read once for all of its copies. With EP they are ordered again by the experts of the rank that they come
    to, if it has several, and back; DeepEP brings tokens that are copied there only. Backward does the same with
    gradients.
    """
    model, x, expert = run.model, tokens_of(run), run.parallelism.expert
    copies = model.experts_per_token
    if not copies:
        return 0.0
    if run.engine.expert_dispatcher is ExpertDispatcher.deepep:
        rows = 2 * (expert * chance_of_ranks(run, 1) + copies) * x.count
    else:
        own = x.between if dispatches_parts(run) else x.count
        rows = 2 * (1 + copies) * own + (4 * copies * x.count if 1 < expert < model.experts else 0)
    return (2 + checkpointed_share(run)) * WIDTHS[run.job.precision] * rows * model.hidden_size


def scores_bytes(run: Run) -> float:
    """Return the bytes that a layer's kernels read and write of capped scores, which are all in memory.

    Forward has six kernels before softmax (product, scale, division, tanh, cap, mask), which read and write them but
    for the product; then softmax to float32, and the cast that the last product reads.
    """
    model, width = run.model, WIDTHS[run.job.precision]
    if model.attention_softcap is None:
        return 0.0
    scores = tokens_of(run).count * run.job.sequence_length * model.heads / run.parallelism.tensor
    forward = 11 * width + (width + 4) + (4 + 2 * width if width < 4 else width)
    return (3 + checkpointed_share(run)) * scores * forward


def rounded_bytes(run: Run) -> float:
    """Return the bytes to round the operands of a layer's products to few bits: inputs, and gradients of outputs.

    Recomputation rounds inputs again. Weights are rounded once per step, or with each update.
    """
    engine = engine_of(run)
    if (recipe := engine.float8_recipe(run)) is None:
        return 0.0
    products, opening = layer_products(run), feed_forward_products(run)[0]
    inputs = sum(each.rows * each.inner * each.count for each in products)
    if run.model.mlp is not Mlp.GptNeoxMLP:
        # Gate and up have one input.
        inputs -= opening.rows * opening.inner * opening.count / 2
    outputs = sum(each.written for each in products)
    return engine.float8_recipes[recipe] * ((1 + recomputed_share(run)) * inputs + outputs)


def stacked_bytes(run: Run) -> float:
    """Return the bytes to put matrices of a rank's experts one after the other for grouped products, each time.

    For forward, for backward, and where that recomputes; once more to add biases
    (jobs.engines.native.experts.mixture.stacked).
    """
    if not has_grouped_products(run):
        return 0.0
    p, width = run.parallelism, WIDTHS[run.job.precision]
    matrices = size(each for each in layer_weights(run.model) if each.of_expert) / p.tensor / p.expert
    read = 4 if in_autocast(run) and has_wide_weights(run) else width
    times = 2 + checkpointed_share(run)
    return times * matrices * (read + width + (2 * width if run.model.bias else 0))


def unpacked_bytes(run: Run) -> float:
    """Return the bytes to make a layer's matrices of 4 bits: for forward, for backward, and where that recomputes."""
    if not run.job.quantizes_base:
        return 0.0
    # Half a byte is read for each number, and one of the arithmetic's type is written.
    matrices = size(weight for weight in layer_weights(run.model) if weight.columns > 1)
    times = 2 + checkpointed_share(run)
    return times * (0.5 + WIDTHS[run.job.precision]) * matrices


def logits_bytes(run: Run) -> float:
    """Return the bytes of the loss: logits in the type of the arithmetic, in float32, and their gradients.

    That is, for each logit: written and read in the arithmetic's type, four passes in float32, and its gradient.
    """
    width = WIDTHS[run.job.precision]
    return tokens_of(run).count * run.model.vocab_size / run.parallelism.tensor * (2 * width + 4 * 4 + width)
