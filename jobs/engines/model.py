"""The transformer: LitGPT's GPT built from our numbers, without memory until each rank knows its part."""

from __future__ import annotations

import torch
from litgpt.config import Config
from litgpt.model import GPT, Block
from torch import nn

from jobs.engines.litgpt_names import litgpt_fields
from jobs.schema import Model


def empty_model(model: Model, sequence_length: int) -> GPT:
    """The model without memory for its weights (meta device), its rotary table cut to the sequence length."""
    with torch.device("meta"):
        gpt = GPT(Config(**litgpt_fields(model)))
    gpt.max_seq_length = sequence_length
    return gpt


def tie_embeddings(gpt: GPT, *, tied: bool) -> None:
    """Let embedding and head share one weight, where the model does."""
    if tied:
        gpt.transformer.wte.weight = gpt.lm_head.weight


def layers(module: nn.Module) -> list[Block]:
    """The transformer layers that a module holds."""
    return [layer for layer in module.modules() if isinstance(layer, Block)]
