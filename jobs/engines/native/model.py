"""The transformer: LitGPT's GPT built from our numbers, without memory until each rank knows its part."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import torch
from litgpt.config import Config
from litgpt.model import GPT, Block
from torch import Tensor, nn

from jobs.engines.native.attention import samples_of, self_attention
from jobs.engines.native.loss import summed_loss
from jobs.engines.native.rotary import rotated
from jobs.plan.litgpt_names import litgpt_fields
from jobs.schema import Loss, Model


class Decoder(GPT):  # type: ignore[misc]  # LitGPT publishes no types
    """LitGPT's GPT, by its parameter names, whose forward pass ends in the loss and takes packed rows."""

    def __init__(self, config: Config, loss: Loss) -> None:
        super().__init__(config)
        self.loss = loss
        for layer in layers(self):
            layer.attn.forward = partial(self_attention, layer.attn, rotated)

    def forward(self, inputs: Tensor, targets: Tensor, positions: Tensor | None = None) -> Tensor:
        """The loss summed over targets; all (mbs, seq), or one packed row and where in its sample each token stands."""
        x = through(self.transformer.h, self.transformer.wte(inputs), (self.cos, self.sin), targets, positions)
        return summed_loss(self.loss, self.transformer.ln_f(x), self.lm_head, targets)


def through(
    blocks: Iterable[nn.Module], x: Tensor, rotary: tuple[Tensor, Tensor], targets: Tensor, positions: Tensor | None
) -> Tensor:
    """Hidden states (mbs, seq or TP's part of it, hidden) of tokens with these targets (mbs, seq) through layers."""
    if positions is None:
        cos, sin = (table[None, : targets.shape[1]] for table in rotary)
        samples = None
    else:
        cos, sin = (table[positions] for table in rotary)
        samples = samples_of(positions)
    for block in blocks:
        # By position, as GPT does: tensor parallelism knows attention's inputs by their place.
        x = block(x, cos, sin, samples, None, None)
    return x


def empty_model(model: Model, sequence_length: int, loss: Loss) -> Decoder:
    """The model without memory for its weights (meta device), its rotary table cut to the sequence length."""
    with torch.device("meta"):
        gpt = Decoder(Config(**litgpt_fields(model)), loss)
    gpt.max_seq_length = sequence_length
    return gpt


def tie_embeddings(gpt: GPT, *, tied: bool) -> None:
    """Let embedding and head share one weight, where the model does."""
    if tied:
        gpt.transformer.wte.weight = gpt.lm_head.weight


def layers(module: nn.Module) -> list[Block]:
    """The transformer layers that a module holds."""
    return [layer for layer in module.modules() if isinstance(layer, Block)]
