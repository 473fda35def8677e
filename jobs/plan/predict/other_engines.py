"""Activations and logits of engines whose code is not this program's: formulas with wider intervals.

Megatron-core keeps by Korthikanti et al. 2022 (https://arxiv.org/abs/2205.05198, sections 4.1 and 4.2): inputs of norms
and matrices, which sequence parallelism divides and gathers again in backward; with FlashAttention no scores; gate and
up, and their product. Its full recomputation keeps the input of a layer. With adapters, inputs of frozen matrices are
left out, as in the native engine: whether these engines keep them was not measured.
"""

from __future__ import annotations

from jobs.engines.engine import engine_of
from jobs.plan.predict.activations import Tokens, layer_input
from jobs.schema import ActivationCheckpointing, Run

LOGIT_BYTES = 12
"""A logit in 16 bits and in float32, its softmax, and its gradient (Megatron's cross-entropy; LitGPT's the same)."""


def kept_by_layer(run: Run, x: Tokens) -> int:
    """Return what a layer keeps for backward."""
    if run.engine.activation_checkpointing is ActivationCheckpointing.full:
        return layer_input(run, x)
    return engine_of(run).layer_bytes(run, x)


def loss(run: Run, x: Tokens) -> int:
    """Return the memory of the logits, which Megatron divides by TP."""
    return LOGIT_BYTES * x.count * run.model.vocab_size // run.parallelism.tensor
