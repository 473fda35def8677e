"""Activations and logits of engines whose code is not this program's: formulas with wider intervals.

Megatron-core keeps by Korthikanti et al. 2022 (https://arxiv.org/abs/2205.05198, sections 4.1 and 4.2): inputs of norms
and matrices, which sequence parallelism divides and gathers again in backward; with FlashAttention no scores; gate and
up, and their product. Its full recomputation keeps the input of a layer.
"""

from __future__ import annotations

from jobs.plan.predict.activations import Tokens, attention, feed_forward, layer_input, norm
from jobs.schema import ActivationCheckpointing, EngineKind, Mlp, Run

LOGIT_BYTES = 12
"""A logit in 16 bits and in float32, its softmax, and its gradient (Megatron's cross-entropy; LitGPT's the same)."""
UNFUSED_NORM_BYTES = 12
"""Bytes of a number that LitGPT's RMSNorm keeps beside its input: in float32 the input, its square and the result."""


def kept_by_layer(run: Run, x: Tokens) -> int:
    """Return what a layer keeps for backward."""
    if run.engine.activation_checkpointing is ActivationCheckpointing.full:
        return layer_input(run, x)
    return layer(run, x)


def layer(run: Run, x: Tokens) -> int:
    """Return what a layer keeps without checkpointing."""
    if run.engine.kind is EngineKind.nemo:
        # The inputs of the two opening matrices are divided; the activation function is one kernel.
        gathered = 2 * (x.count - x.between) * run.model.hidden_size * x.width
        gated = 0 if run.model.mlp is Mlp.GptNeoxMLP else 1
        fused = gated * x.count * x.width * run.model.intermediate_size // run.parallelism.tensor
        return 2 * norm(run, x) + attention(run, x) + feed_forward(run, x) - gathered - fused
    unfused = 2 * UNFUSED_NORM_BYTES * x.count * run.model.hidden_size if run.engine.kind is EngineKind.litgpt else 0
    return 2 * norm(run, x) + attention(run, x) + feed_forward(run, x) + unfused


def loss(run: Run, x: Tokens) -> int:
    """Return the memory of the logits, which Megatron divides by TP."""
    return LOGIT_BYTES * x.count * run.model.vocab_size // run.parallelism.tensor
