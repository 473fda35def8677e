"""Activation checkpointing: recompute a layer's activations in the backward pass instead of keeping them.

none        keep all activations
selective   keep the results of matrix products and attention, recompute the cheap rest
full        keep the input of each layer only: about a third more arithmetic (a second forward pass)
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from litgpt.model import Block
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from jobs.schema import ActivationCheckpointing

ATEN = torch.ops.aten
# Operators that are expensive to recompute: matrix products and attention.
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
    """Apply activation checkpointing to a layer in place.

    Wrap the forward method and not the module, so that parameters keep their names.
    """
    if mode is ActivationCheckpointing.none:
        return
    options: dict[str, Any] = {"use_reentrant": False}
    if mode is ActivationCheckpointing.selective:
        options["context_fn"] = selective_contexts
    layer.forward = partial(checkpoint, layer.forward, **options)


def selective_contexts() -> Any:
    """Return the forward and the recomputation context of the selective mode."""
    return create_selective_checkpoint_contexts(keep_expensive)


def keep_expensive(_context: Any, operator: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    """Return the policy of the selective mode for one operator."""
    return CheckpointPolicy.MUST_SAVE if operator in KEPT else CheckpointPolicy.PREFER_RECOMPUTE
