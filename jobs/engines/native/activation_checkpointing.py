"""Activation checkpointing: layers that compute activations again in backward instead of keeping them."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from litgpt.model import Block
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from jobs.schema import ActivationCheckpointing

ATEN = torch.ops.aten
# What is dear to compute again: matrix products and attention.
KEPT = {
    ATEN.mm.default,
    ATEN.addmm.default,
    ATEN.bmm.default,
    ATEN._scaled_dot_product_flash_attention.default,
    ATEN._scaled_dot_product_efficient_attention.default,
    ATEN._scaled_dot_product_cudnn_attention.default,
    ATEN._scaled_dot_product_flash_attention_for_cpu.default,
}


def recompute(layer: Block, mode: ActivationCheckpointing) -> None:
    """Checkpoint a layer in place.

    Its forward method is wrapped and not the module, so that parameters keep their names.
    """
    if mode is ActivationCheckpointing.none:
        return
    options: dict[str, Any] = {"use_reentrant": False}
    if mode is ActivationCheckpointing.selective:
        options["context_fn"] = selective_contexts
    layer.forward = partial(checkpoint, layer.forward, **options)


def selective_contexts() -> Any:
    """Forward and recomputation contexts of the selective mode."""
    return create_selective_checkpoint_contexts(keep_dear)


def keep_dear(_context: Any, operator: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    """The selective mode's choice for one operator."""
    return CheckpointPolicy.MUST_SAVE if operator in KEPT else CheckpointPolicy.PREFER_RECOMPUTE
