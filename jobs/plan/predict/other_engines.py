"""Activations and logits of engines whose code is not this program's: formulas with wider intervals.

Megatron-core keeps by Korthikanti et al. 2022 (https://arxiv.org/abs/2205.05198, sections 4.1 and 4.2): inputs of norms
and matrices, which sequence parallelism divides and gathers again in backward; with FlashAttention no scores; gate and
up, and their product. Its full recomputation keeps the input of a layer. With adapters, inputs of frozen matrices are
left out, as in the native engine: whether these engines keep them was not measured.
"""

from __future__ import annotations

from jobs.plan.cost import parameters
from jobs.plan.deepspeed_configuration import filled, settings_of, stage_of
from jobs.plan.predict.activations import WIDTHS, Tokens, attention, feed_forward, layer_input, norms, operands
from jobs.schema import QKV, ActivationCheckpointing, EngineKind, LoraTarget, Mlp, Run

ZERO3 = 3
"""The stage of ZeRO that partitions weights."""
LOGIT_BYTES = 12
"""A logit in 16 bits and in float32, its softmax, and its gradient (Megatron's cross-entropy; LitGPT's the same)."""
UNFUSED_NORM_BYTES = 12
"""Bytes of a number that LitGPT's RMSNorm keeps next to its input: in float32 the input, its square and the result."""


def kept_by_layer(run: Run, x: Tokens) -> int:
    """Return what a layer keeps for backward."""
    if run.engine.activation_checkpointing is ActivationCheckpointing.full:
        return layer_input(run, x)
    return layer(run, x)


def layer(run: Run, x: Tokens) -> int:
    """Return what a layer keeps without checkpointing."""
    if run.engine.kind is EngineKind.nemo:
        # The inputs of the two opening matrices are divided; the activation function is one kernel.
        inputs = (operands(run, run.model.hidden_size, targets) for targets in (QKV, (LoraTarget.mlp,)))
        gathered = (x.count - x.between) * sum(inputs) * x.width
        gated = 0 if run.model.mlp is Mlp.GptNeoxMLP else 1
        fused = gated * x.count * x.width * run.model.intermediate_size // run.parallelism.tensor
        return norms(run, x) + attention(run, x) + feed_forward(run, x) - gathered - fused
    unfused = 2 * UNFUSED_NORM_BYTES * x.count * run.model.hidden_size if run.engine.kind is EngineKind.litgpt else 0
    return norms(run, x) + attention(run, x) + feed_forward(run, x) + unfused


def buckets(run: Run) -> int:
    """Return the buffers of DeepSpeed's collectives, each at most a message of all parameters.

    Twice for overlapped reductions; stage 3 also holds gathered weights (https://www.deepspeed.ai/docs/config-json/,
    section ZeRO).
    """
    if run.engine.kind is not EngineKind.deepspeed:
        return 0
    chosen, most = settings_of(run), parameters(run.model)
    reduced = filled(chosen.reduce_bucket_size, run.model.hidden_size**2) * (2 if chosen.overlap_comm else 1)
    gathered = chosen.stage3_max_live_parameters if stage_of(run) == ZERO3 else chosen.allgather_bucket_size
    return WIDTHS[run.job.precision] * (min(reduced, most) + min(gathered, most))


def loss(run: Run, x: Tokens) -> int:
    """Return the memory of the logits, which Megatron divides by TP."""
    return LOGIT_BYTES * x.count * run.model.vocab_size // run.parallelism.tensor
