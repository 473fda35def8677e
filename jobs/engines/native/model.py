"""The transformer: LitGPT's GPT with a loss, built on the meta device (no memory) until each rank knows its shard."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from litgpt.config import Config
from litgpt.model import GPT, Block
from torch import Tensor, nn

from jobs.engines.litgpt.names import litgpt_fields
from jobs.engines.native.attention import Attention, bounds_of, positions_in
from jobs.engines.native.loss import ChunkedHead, summed_loss
from jobs.engines.native.norm import fuse_norms
from jobs.schema import Model


class Decoder(GPT):  # type: ignore[misc]  # LitGPT publishes no types
    """LitGPT's GPT under its parameter names; forward returns the loss and accepts packed rows."""

    def __init__(self, config: Config, chunk: int | None) -> None:
        super().__init__(config)
        if chunk is not None:
            self.lm_head.__class__, self.lm_head.size = ChunkedHead, chunk
        fuse_norms(self)
        for layer in layers(self):
            layer.attn.__class__ = Attention

    def forward(self, inputs: Tensor, targets: Tensor, labels: int, bounds: Tensor | None = None) -> Tensor:
        """Return the loss summed over targets (mbs, seq); `labels` of them count. Packed rows have bounds."""
        # Tokens (mbs, seq) -> embeddings (mbs, seq, hidden) -> layers -> norm -> head and loss.
        x = embedded(self.transformer.wte, prompt_of(self), inputs)
        x = through(self.transformer.h, x, (self.cos, self.sin), targets, bounds)
        return summed_loss(self.transformer.ln_f(x), self.lm_head, targets, labels)


def prompt_of(gpt: GPT) -> nn.Module | None:
    """Return the virtual tokens of a model (jobs.engines.native.customization.prompt_tuning), if it has any."""
    return dict(gpt.transformer.items()).get("prompt")


def embedded(wte: nn.Module, prompt: nn.Module | None, inputs: Tensor) -> Tensor:
    """Return embeddings (mbs, seq, hidden) of inputs (mbs, seq), whose virtual tokens have negative numbers."""
    x: Tensor = wte(inputs) if prompt is None else prompt(wte(inputs.clamp(min=0)), inputs)
    return x


def through(
    blocks: Iterable[nn.Module], x: Tensor, rotary: tuple[Tensor, Tensor], targets: Tensor, bounds: Tensor | None
) -> Tensor:
    """Return hidden states (mbs, seq, hidden) after some layers; under sequence parallelism (mbs, seq / tp, hidden)."""
    # The length is the targets', since x may be sharded along the sequence.
    row = targets.shape[1]
    if bounds is None:
        cos, sin = (table[None, :row] for table in rotary)
    else:
        bounds = bounds_of(bounds)
        positions = positions_in(bounds, row)
        cos, sin = (table[None, positions] for table in rotary)
    for block in blocks:
        # Positional, as in GPT.forward: tensor parallelism addresses attention's inputs by position.
        x = block(x, cos, sin, bounds, None, None)
    return x


def empty_model(model: Model, row_length: int, chunk: int | None = None) -> Decoder:
    """Return the model on the meta device, with a rotary table of the longest row; `chunk` as of loss_chunk."""
    with torch.device("meta"):
        gpt = Decoder(Config(**litgpt_fields(model)), chunk)
    gpt.max_seq_length = row_length
    for layer in layers(gpt):
        layer.attn.longest = row_length
    return gpt


def tie_embeddings(gpt: GPT, *, tied: bool) -> None:
    """Let embedding and head share one weight if `tied`."""
    if tied:
        gpt.transformer.wte.weight = gpt.lm_head.weight


def ends(module: nn.Module) -> tuple[list[nn.Module], list[nn.Module]]:
    """Return what a module has before its layers, embedding and virtual tokens, and after them: norm and head."""
    held = {name.rpartition(".")[2]: part for name, part in module.named_modules()}
    before, after = (
        [held[name] for name in names if name in held] for names in (("wte", "prompt"), ("ln_f", "lm_head"))
    )
    return before, after


def layers(module: nn.Module) -> list[Block]:
    """Return the transformer layers of a module."""
    return [layer for layer in module.modules() if isinstance(layer, Block)]
