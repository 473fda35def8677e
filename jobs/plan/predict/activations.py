"""Activations that a rank of engine=native keeps for its backward pass, tensor by tensor, with the kernels of a GPU.

tests/jobs/plan/test_activations.py compares them with those that the real engine keeps, at real size.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from jobs.engines.engine import engine_of
from jobs.layout import GPU_ROW_MULTIPLE, has_gpus, padding, sequence_parallel, uses_fsdp
from jobs.plan.pipeline_stages import checkpointed_layers
from jobs.plan.predict.once import once
from jobs.plan.predict.weights import Split, adapter_weights, kinds_of_layers, layer_weights, run_with_layers
from jobs.schema import (
    INSTRUCTIONS,
    QKV,
    ActivationCheckpointing,
    Batching,
    EngineKind,
    Kernels,
    LatentAttention,
    LigerKernel,
    LoraTarget,
    Mlp,
    Model,
    Norm,
    NormPlace,
    Precision,
    RouterScores,
    Run,
)

WIDTHS = {Precision.float32: 4, Precision.bfloat16: 2, Precision.float16: 2}
"""Bytes of a number."""
FLASH_CAPABILITY, FLASH_HEAD_SIZE = 8.0, 256
"""FlashAttention's limits (jobs.engines.native.attention)."""
GROUPED_MULTIPLE = 8
"""Sides of grouped products are multiples of 16 bytes (torch._grouped_mm): 8 numbers of bfloat16."""
CHEAP_PRODUCT = 64
"""Largest inner size of a matrix product that selective checkpointing computes again
(jobs.engines.native.activation_checkpointing)."""


@dataclass(frozen=True)
class Tokens:
    """A micro-batch on one rank: its tokens, and the bytes of their numbers."""

    count: int
    """Tokens, padding included, of this rank's part of each sequence (CP)."""
    between: int
    """Those that the rank holds between two pairs of matrices: under sequence parallelism 1 / TP."""
    width: int
    """Bytes of a number."""


def with_rows(run: Run, tokens: float) -> Run:
    """Return a run whose rows have this many tokens, virtual ones included."""
    return replace(run, job=replace(run.job, sequence_length=max(1, math.ceil(tokens) - run.job.virtual_tokens)))


@once
def tokens_of(run: Run, *, fewest: bool = False) -> Tokens:
    """Return a micro-batch of rows of the longest samples; with `fewest`, of the shortest rows that may occur.

    Text fills every row, prompts and responses may be shorter.
    """
    p, length = run.parallelism, run.job.row_length
    multiple, whole = padding(run)
    if fewest and not whole and run.data.source in INSTRUCTIONS:
        length = min(length, max(multiple, GPU_ROW_MULTIPLE if has_gpus(run) else 1) + run.job.virtual_tokens)
    count = run.job.micro_batch_size * -(-length // p.context)
    between = -(-count // p.tensor) if sequence_parallel(run) else count
    return Tokens(count=count, between=between, width=WIDTHS[run.job.precision])


def in_autocast(run: Run) -> bool:
    """Return whether 16-bit arithmetic runs in autocast; FSDP and other engines cast weights by themselves."""
    narrow = run.job.precision is not Precision.float32
    # An evaluation is one process without FSDP.
    return engine_of(run).uses_autocast and narrow and not (run.job.train and uses_fsdp(run))


def has_wide_weights(run: Run) -> bool:
    """Return whether what trains is in float32; an evaluation has all weights in it (jobs.work.evaluate.evaluate)."""
    return not run.job.train or run.engine.parameters is Precision.float32


def takes_groups(run: Run) -> bool:
    """Return whether attention takes fewer heads of keys than of queries; other kernels get them repeated."""
    fits = run.model.head_size <= FLASH_HEAD_SIZE and run.model.attention_softcap is None
    return has_flash(run) and fits and run.parallelism.context == 1


def has_flash(run: Run) -> bool:
    """Return whether attention is FlashAttention's kernel (has_varlen_kernel)."""
    capability = run.gpu.compute_capability
    flash = has_gpus(run) and (capability is None or capability >= FLASH_CAPABILITY)
    return flash and run.job.precision is not Precision.float32 and run.model.head_size % 8 == 0


# --- one layer -----------------------------------------------------------------------------------------------


def layer_input(run: Run, x: Tokens) -> int:
    """Return the bytes of a layer's input, which its norm or full checkpointing keeps."""
    return x.between * run.model.hidden_size * x.width


def norm(run: Run, x: Tokens) -> int:
    """Return what a norm keeps: its input, and float32 statistics of each token."""
    return layer_input(run, x) + 4 * x.between * (1 if run.model.norm is Norm.RMSNorm else 2)


def has_fused_norms(run: Run) -> bool:
    """Return whether norms are Liger's kernels."""
    return run.engine.kernels is not Kernels.torch and LigerKernel.rms_norm in run.engine.liger_kernels


def norms(run: Run, x: Tokens) -> int:
    """Return what the norms of a layer keep; the two of a parallel residual have the same input."""
    shared = layer_input(run, x) if run.model.parallel_residual else 0
    before = 0 if run.model.norm_place is NormPlace.after else 2 * norm(run, x) - shared
    # Those after attention and feed-forward keep the result of these, which has the shape of a layer's input.
    return before + (0 if run.model.norm_place is NormPlace.before else 2 * norm(run, x))


def operands(run: Run, x: Tokens, width: int, targets: tuple[LoraTarget, ...], matrices: int = 1) -> int:
    """Return the bytes of each token that matrices keep of their common input for the gradients of their weights.

    Frozen matrices keep none. Adapters keep their common input, and each the result of its A, which TP does not divide,
    and with dropout a mask of one byte a number. Those of other engines keep what is left of the input instead.
    `targets` are the parts of one matrix that may have adapters.
    """
    lora = run.job.lora
    if lora is None:
        return width * x.width if run.job.trains_all_weights else 0
    parts = sum(target in lora.targets for target in targets)
    if not parts:
        return 0
    inputs = matrices if lora.dropout and run.engine.kind is not EngineKind.native else 1
    return (inputs * width + matrices * parts * lora.rank) * x.width + (matrices * width if lora.dropout else 0)


def attention(run: Run, x: Tokens) -> int:
    """Return what attention keeps: its input, q, k and v, the rotated q and k, log-sum-exps, and its result.

    Norms of queries and keys add their statistics, and copies of q and k where Liger's kernel makes them.

    For each token hidden + (q + k) + (q + 2 k) + q numbers, with q and k the widths of the heads on a TP rank, and one
    float32 log-sum-exp per head (https://arxiv.org/abs/2307.08691, algorithm 1). Values are a view of the product qkv,
    which therefore stays whole next to the rotated queries and keys.
    """
    model, tensor = run.model, run.parallelism.tensor
    if model.latent is not None:
        return latent_attention(run, x, model.latent)
    q, k = (heads * model.head_size // tensor for heads in (model.heads, model.kv_heads))
    # Repeated keys and values are copies, and nothing refers to qkv any more, but for norms of its queries and keys.
    repeated = k < q and not takes_groups(run)
    normalizes_qkv = model.norm_rotated or (model.norm_qk and not has_fused_norms(run))
    # Normalized queries and keys are rotated into a tensor each, so that repeated keys free theirs.
    rotated = q + (0 if repeated and (model.norm_qk or model.norm_rotated) else k)
    keys_and_values = (2 * q if repeated else 0) + (q + 2 * k if normalizes_qkv or not repeated else 0)
    # The closing matrix keeps the same result.
    result = max(q * x.width, operands(run, x, q, (LoraTarget.projection,)))
    kept = operands(run, x, model.hidden_size, QKV) + (rotated + keys_and_values) * x.width + result
    return x.count * (kept + statistics_of_heads(run, x) + head_norms(run))


def statistics_of_heads(run: Run, x: Tokens) -> int:
    """Return the bytes for each token that attention keeps of its heads' scores: a float32 log-sum-exp of each.

    Without FlashAttention sinks need all weights, in float32 and in the arithmetic's type, and a mask of one byte. A
    cap needs them everywhere, and its scores.
    """
    heads, cap = run.model.heads // run.parallelism.tensor, run.model.attention_softcap is not None
    if not cap and (not run.model.attention_sinks or has_flash(run)):
        return 4 * heads
    row = scored(run, x)
    weights = (row + run.model.attention_sinks) * 4 + (row * x.width if x.width < 4 else 0) + cap * row * x.width
    return heads * weights + row // run.job.micro_batch_size


def scored(run: Run, x: Tokens) -> int:
    """Return the positions for which a head of a token has a score, where all scores are in memory."""
    return x.count if run.job.batching is Batching.packed else run.job.row_length


def latent_attention(run: Run, x: Tokens, latent: LatentAttention) -> int:
    """Return what latent attention keeps: its input, narrow vectors before and after their norms, q, k, v, its result.

    Values are padded to the size of queries and keys, and so is the result, of which the closing matrix keeps a copy.
    Without that they are a view of the product that made them and keys.
    """
    model, heads = run.model, run.model.heads // run.parallelism.tensor
    rope, size, value = latent.rope_head_size, model.head_size, latent.value_head_size
    query, key = (LoraTarget.query,), (LoraTarget.key,)
    kept = operands(run, x, model.hidden_size, query + key)
    if run.job.lora is not None and run.job.lora.dropout and {*query, *key} <= {*run.job.lora.targets}:
        # A mask for each of the two matrices with this input.
        kept += model.hidden_size
    for rank, beside, targets in ((latent.q_lora_rank, 0, query), (latent.kv_lora_rank, rope, key)):
        if rank is not None:
            # The norm's input, its result, and a float32 statistic.
            kept += (rank + beside) * x.width + 4 + operands(run, x, rank, targets)
    padded = has_flash(run) and value < size
    values = size if padded else size - rope + value
    closing = operands(run, x, heads * value, (LoraTarget.projection,))
    own = heads * (size if padded else value) * x.width
    result = own + closing if padded else max(own, closing)
    return x.count * (kept + heads * (2 * size + values) * x.width + result + 4 * heads)


def head_norms(run: Run) -> int:
    """Return the bytes for each token that norms of queries and keys keep besides qkv."""
    model = run.model
    if not model.norm_qk and not model.norm_rotated:
        return 0
    statistics = 4 * (1 if model.norm is Norm.RMSNorm else 2)
    # Liger's kernel copies queries and keys to one piece of memory.
    copies = WIDTHS[run.job.precision] * model.head_size if model.norm_qk and has_fused_norms(run) else 0
    heads = (model.heads + model.kv_heads) // run.parallelism.tensor
    return heads * copies + (2 if model.norm_qk_whole else heads) * statistics


def feed_forward(run: Run, x: Tokens) -> int:
    """Return what the feed-forward keeps: its input, and the operands of its activation function and last product.

    Gated: gate, up, silu(gate) and their product; Liger and limited SwiGLU compute silu again. Else: up and gelu(up).
    Frozen matrices without adapters keep neither their input nor the last operand, of which an adapter keeps none.
    """
    model, mlp = run.model, (LoraTarget.mlp,)
    gated = model.mlp is not Mlp.GptNeoxMLP
    wide = model.inner_size // run.parallelism.tensor
    again = run.engine.kernels is not Kernels.torch or model.swiglu_limit is not None
    inner = (2 if again else 3) if gated else 1
    inputs = operands(run, x, model.hidden_size, mlp, matrices=2 if gated else 1)
    kept = inner * wide * x.width + closing_operands(run, x, wide)
    if model.experts:
        # The router keeps its input, one by scores of all experts in float32. A token is copied to each of its
        # experts, whose results, but with Llama 4 what they get, are weighted, and added.
        wide = 4 * model.hidden_size if run.job.trains_all_weights else 0
        router = x.count * (wide if model.router else operands(run, x, model.hidden_size, mlp))
        of_inputs = model.router is not None and model.router.scores is RouterScores.sigmoid_inputs
        results = 0 if of_inputs else x.count * x.width * model.experts_per_token * model.hidden_size
        shared = model.shared_size // run.parallelism.tensor
        of_shared = inner * shared * x.width + closing_operands(run, x, shared) + (inputs if shared else 0)
        return router + results + rows_of_experts(run, x) * (inputs + kept) + x.count * of_shared
    return x.count * (inputs + kept)


def closing_operands(run: Run, x: Tokens, wide: int) -> int:
    """Return the bytes of each token that the last product of a feed-forward keeps of its input, of width `wide`.

    Backward of an adapter computes it again (jobs.engines.native.customization.adapted_mlp), but not after Liger's
    kernel.
    """
    kept, engine = operands(run, x, wide, (LoraTarget.mlp,)), run.engine
    liger = engine.kernels is not Kernels.torch and LigerKernel.swiglu in engine.liger_kernels
    overwritten = liger and run.model.mlp in {Mlp.LLaMAMLP, Mlp.LLaMAMoE} and run.model.swiglu_limit is None
    again = run.job.lora is not None and engine.kind is EngineKind.native and not overwritten
    return kept - wide * x.width if kept and again else kept


def rows_of_experts(run: Run, x: Tokens) -> int:
    """Return the rows that a rank's experts compute, if all are equally busy; in a grouped product with those between.

    jobs.engines.native.experts.mixture.grouped: the rows of each expert begin at a multiple.
    """
    between = GROUPED_MULTIPLE * run.model.experts // run.parallelism.expert if has_grouped_products(run) else 0
    return x.count * run.model.experts_per_token + between


def dispatches_parts(run: Run) -> bool:
    """Return whether each rank of a TP group sends its own part of the tokens to the experts.

    Megatron does so under sequence parallelism (megatron/core/transformer/moe/token_dispatcher.py at 0.15.3).
    """
    return engine_of(run).divides_experts_of_replicas and sequence_parallel(run)


def chance_of_ranks(run: Run, ranks: int) -> float:
    """Return the chance that a token has one of its experts on some ranks of an EP group, if all are as likely.

    1 - C(experts elsewhere, chosen) / C(experts, chosen).
    """
    model = run.model
    elsewhere = model.experts - model.experts * ranks // run.parallelism.expert
    return 1 - math.comb(elsewhere, model.experts_per_token) / math.comb(model.experts, model.experts_per_token)


def has_grouped_products(run: Run) -> bool:
    """Return whether one product of the native engine multiplies the rows of all experts."""
    model, lora = run.model, run.job.lora
    if not model.experts or run.engine.kind is not EngineKind.native:
        return False
    adapted = lora is not None and (LoraTarget.mlp in lora.targets or run.job.quantizes_base)
    sides = (model.hidden_size, model.inner_size // run.parallelism.tensor)
    narrow = run.job.precision is Precision.bfloat16
    return narrow and not adapted and not any(side % GROUPED_MULTIPLE for side in sides)


def layer(run: Run, x: Tokens) -> int:
    """Return what a layer keeps without checkpointing, and holds in backward with it."""
    return norms(run, x) + attention(run, x) + feed_forward(run, x)


def unneeded_by_first_layer(run: Run, x: Tokens) -> int:
    """Return the activations that the first layer need not keep: with adapters, its input has no gradient.

    That is, what comes before its first adapter.
    """
    lora = run.job.lora
    if lora is None:
        return 0
    if set(QKV) & set(lora.targets):
        return norm(run, x)
    return attention(run, x) + (norm(run, x) if LoraTarget.projection in lora.targets else norms(run, x))


def expensive_results(run: Run, x: Tokens) -> int:
    """Return the results of matrix products and attention, which selective checkpointing keeps.

    jobs.engines.native.activation_checkpointing.KEPT; those of the closing matrices before TP reduces them. An adapter
    has one more, of A.
    """
    model, tensor, lora = run.model, run.parallelism.tensor, run.job.lora
    q, k = (heads * model.head_size // tensor for heads in (model.heads, model.kv_heads))
    wide = model.inner_size // tensor * (1 if model.mlp is Mlp.GptNeoxMLP else 2)
    shared = 2 * model.shared_size // tensor + model.hidden_size if model.shared_experts else 0
    products = shared + model.hidden_size + (wide + model.hidden_size) * max(1, model.experts_per_token)
    if (latent := model.latent) is None:
        products += q + 2 * k + q
    else:
        made = model.head_size - latent.rope_head_size + latent.value_head_size
        attended = model.head_size if has_flash(run) else latent.value_head_size
        products += (latent.q_lora_rank or 0) + latent.kv_lora_rank + latent.rope_head_size
        products += q + model.heads // tensor * (made + attended)
    if model.attention_softcap is not None:
        # The products of queries and keys, which are no part of a kernel of attention then.
        products += model.heads // tensor * scored(run, x)
    if lora is not None:
        # A token meets the adapters of its experts only.
        met = adapter_weights(replace(model, experts=model.experts_per_token), lora)
        products += sum(
            weight.copies * (weight.rows // (tensor if weight.split is Split.rows else 1))
            for weight in met
            if weight.columns != lora.rank
        )
    return x.count * (products * x.width + 4 * model.heads // tensor)


def kept_by_layer(run: Run, x: Tokens) -> int:
    """Return what a layer keeps from its forward to its backward pass, by the mode of checkpointing."""
    match run.engine.activation_checkpointing:
        case ActivationCheckpointing.none:
            return layer(run, x)
        case ActivationCheckpointing.selective:
            return layer_input(run, x) + expensive_results(run, x)
        case ActivationCheckpointing.full:
            return layer_input(run, x)


def kept_by_layers(run: Run, x: Tokens, numbers: Sequence[int]) -> int:
    """Return what some layers of a model keep, given their numbers."""
    whole = 0 in numbers and 0 not in checkpointed_layers(run)
    unneeded = unneeded_by_first_layer(run_of_layer(run, 0), x) if whole else 0
    return sum(count * kept_by_layer(kind, x) for count, kind in kinds_of_kept(run, numbers)) - unneeded


def kinds_of_kept(run: Run, numbers: Sequence[int]) -> list[tuple[int, Run]]:
    """Return how many of some layers keep alike, with a run that has only such layers."""
    again, dense = checkpointed_layers(run), run.model.is_dense
    kinds = Counter((dense[number], number in again) for number in numbers)
    return [(count, run_of_kind(run, dense=is_dense, again=is_again)) for (is_dense, is_again), count in kinds.items()]


def run_of_layer(run: Run, number: int) -> Run:
    """Return a run all of whose layers are as this one, checkpointed or not."""
    return run_of_kind(run, dense=run.model.is_dense[number], again=number in checkpointed_layers(run))


@once
def run_of_kind(run: Run, *, dense: bool, again: bool) -> Run:
    """Return a run that has only dense layers, or only others, which are checkpointed or not."""
    mode = run.engine.activation_checkpointing if again else ActivationCheckpointing.none
    if mode is not run.engine.activation_checkpointing or run.engine.checkpointed_layers is not None:
        run = replace(run, engine=replace(run.engine, activation_checkpointing=mode, checkpointed_layers=None))
    return run_with_layers(run, dense=dense)


def recomputed(run: Run, x: Tokens) -> int:
    """Return what backward of a checkpointed layer computes again and holds next to what the layer kept."""
    match run.engine.activation_checkpointing:
        case ActivationCheckpointing.none:
            return 0
        case ActivationCheckpointing.selective:
            # Backward needs all kept results but those of the two closing matrices.
            needed = expensive_results(run, x) - 2 * x.count * run.model.hidden_size * x.width
            return layer(run, x) - layer_input(run, x) - needed
        case ActivationCheckpointing.full:
            return layer(run, x) - layer_input(run, x)


def cast_weights(run: Run, numbers: Sequence[int], *, head: bool) -> int:
    """Return the 16-bit copies of weights that autocast makes in forward and the products keep: of those trained.

    Grouped products of experts and adapters make them again.
    """
    if not (in_autocast(run) and has_wide_weights(run) and run.job.trains_all_weights):
        return 0
    tensor, again = run.parallelism.tensor, has_grouped_products(run)

    def of_layer(kind: Model) -> int:
        if kind.latent is not None:
            # TP divides only some of latent attention's. A router by scores of all experts computes in float32.
            matrices = [weight for weight in layer_weights(kind) if weight.columns > 1 and weight.rows != kind.experts]
        else:
            matrices = [weight for weight in layer_weights(kind) if weight.split is not Split.none]
        return sum(weight.copies * weight.held(tensor) for weight in matrices if not (weight.of_expert and again))

    ends = run.model.vocab_size * run.model.hidden_size // tensor if head else 0
    in_layers = sum(count * of_layer(kind) for count, kind in kinds_of_layers(run.model, numbers))
    return WIDTHS[run.job.precision] * (in_layers + ends)


def rotary_table(run: Run, x: Tokens) -> int:
    """Return cosine and sine of each token of a packed row; padded rows share one table."""
    model = run.model
    tables = 1 if model.rope_local_base is None and model.query_temperature is None else 2
    size = int(model.rope_fraction * model.head_size) * tables
    size = size if model.latent is None else model.latent.rope_head_size
    return 2 * 4 * x.count * size if run.job.batching is Batching.packed else 0
