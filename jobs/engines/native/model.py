"""The transformer: LitGPT's GPT with a loss, built on the meta device (no memory) until each rank knows its shard."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import torch
from litgpt.model import GPT, Block, LLaMAMLP, LLaMAMoE, build_rope_cache
from torch import Tensor, nn

from jobs.engines.litgpt.config import OwnConfig
from jobs.engines.litgpt.names import litgpt_fields
from jobs.engines.native.attention import (
    Attention,
    LatentAttention,
    bounds_of,
    bounds_of_chunks,
    positions_in,
)
from jobs.engines.native.experts.mixture import use_mixture
from jobs.engines.native.loss import CappedHead, ChunkedHead, summed_loss
from jobs.engines.native.norm import HeadsNorm, fuse_norms
from jobs.engines.native.rotary import growth_tables, tempered, unrotated, yarn_tables
from jobs.schema import Model


class Decoder(GPT):  # type: ignore[misc]  # LitGPT publishes no types
    """LitGPT's GPT under its parameter names; forward returns the loss and accepts packed rows."""

    def __init__(self, config: OwnConfig, chunk: int | None) -> None:
        super().__init__(config)
        if chunk is not None:
            self.lm_head.__class__, self.lm_head.size = ChunkedHead, chunk
        elif config.final_logit_softcapping is not None:
            self.lm_head.__class__ = CappedHead
        self.lm_head.cap = config.final_logit_softcapping
        self.embedding_scale = config.n_embd**0.5 if config.scale_embeddings else 1.0
        fuse_norms(self)
        for number, layer in enumerate(layers(self), start=1):
            if number % config.experts_every:
                layer.mlp = LLaMAMLP(config)
            if isinstance(layer.mlp, LLaMAMoE):
                use_mixture(layer.mlp)
            if config.latent is not None:
                layer.attn = LatentAttention(config, layer.attn.block_idx)
                fuse_norms(layer.attn)
                continue
            attention = layer.attn
            attention.__class__ = Attention
            size = config.sliding_window_size if attention.apply_sliding_window_attention else None
            attention.window, attention.chunk = (None, size) if config.chunked_window else (size, None)
            sinks = nn.Parameter(torch.empty(config.n_head)) if config.attention_sinks else None
            attention.register_parameter("sinks", sinks)
            if config.norm_qk and config.norm_qk_type == "olmo2":
                attention.norm_q.__class__ = attention.norm_k.__class__ = HeadsNorm
            attention.table = config.rope_indices[attention.block_idx] if config.rope_indices else 0
            is_rotated = attention.apply_sliding_window_attention or not config.rope_in_windows
            attention.normalizes_heads = config.norm_rotated and is_rotated
            if not is_rotated and config.query_temperature is None:
                attention.rotate = unrotated
            elif not is_rotated:
                attention.rotate, attention.table = tempered, 1

    def rope_cache(self, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
        """Return cosines and sines, (seq, size), or two tables of both, (2, seq, size).

        The second one is of layers with a sliding window and another base, or of those that multiply queries by it.
        """
        config, scaling = self.config, self.config.rope_adjustments or {}
        if "yarn_factor" in scaling:
            # LitGPT has no YaRN.
            yarn = yarn_tables(self.max_seq_length, config.rope_n_elem, config.rope_base, scaling, device)
            if config.rope_local_base_freq is None:
                return yarn
            local = build_rope_cache(self.max_seq_length, config.rope_n_elem, device, config.rope_local_base_freq)
            cos, sin = (torch.stack(pair) for pair in zip(yarn, local, strict=True))
            return cos, sin
        cos, sin = super().rope_cache(device)
        if config.query_temperature is not None:
            growth = growth_tables(cos, config.query_temperature)
            cos, sin = (torch.stack(pair) for pair in zip((cos, sin), growth, strict=True))
        if config.rope_local_base_freq is None:
            return cos, sin
        return cos.movedim(-1, 0).contiguous(), sin.movedim(-1, 0).contiguous()

    def forward(self, inputs: Tensor, targets: Tensor, labels: int, bounds: Tensor | None = None) -> Tensor:
        """Return the loss summed over targets (mbs, seq); `labels` of them count. Packed rows have bounds."""
        # Tokens (mbs, seq) -> embeddings (mbs, seq, hidden) -> layers -> norm -> head and loss.
        x = embedded(self.transformer.wte, prompt_of(self), inputs, self.embedding_scale)
        x = through(self.transformer.h, x, (self.cos, self.sin), targets, bounds)
        return summed_loss(self.transformer.ln_f(x), self.lm_head, targets, labels)


def prompt_of(gpt: GPT) -> nn.Module | None:
    """Return the virtual tokens of a model (jobs.engines.native.customization.prompt_tuning), if it has any."""
    return dict(gpt.transformer.items()).get("prompt")


def embedded(wte: nn.Module, prompt: nn.Module | None, inputs: Tensor, scale: float) -> Tensor:
    """Return embeddings (mbs, seq, hidden) of inputs (mbs, seq), whose virtual tokens have negative numbers.

    Those of the vocabulary are times `scale`.
    """
    x: Tensor = wte(inputs if prompt is None else inputs.clamp(min=0))
    if scale != 1:
        # Rounded to the type of the embeddings first, as in LitGPT and transformers.
        x = x * torch.tensor(scale, dtype=x.dtype).item()
    return x if prompt is None else cast(Tensor, prompt(x, inputs))


def through(
    blocks: Iterable[nn.Module], x: Tensor, rotary: tuple[Tensor, Tensor], targets: Tensor, bounds: Tensor | None
) -> Tensor:
    """Return hidden states (mbs, seq, hidden) after some layers; under sequence parallelism (mbs, seq / tp, hidden)."""
    # The length is the targets', since x may be sharded along the sequence.
    row = targets.shape[1]
    cos, sin = rotary
    # (seq, size) or (2, seq, size) -> one or two pairs of (1, seq, size)
    pairs = [rotary] if cos.ndim == 2 else list(zip(cos, sin, strict=True))
    if bounds is None:
        tables = [(cos[None, :row], sin[None, :row]) for cos, sin in pairs]
    else:
        bounds = bounds_of(bounds)
        positions = positions_in(bounds, row)
        tables = [(cos[None, positions], sin[None, positions]) for cos, sin in pairs]
    # By the size of chunks, which all layers with any share.
    by_chunk: dict[int | None, Tensor | None] = {None: bounds}
    for block in blocks:
        attention = cast(Attention, block.get_submodule("attn"))
        if (chunk := attention.chunk) is not None and chunk not in by_chunk:
            by_chunk[chunk] = None if bounds is None else bounds_of_chunks(bounds, row, chunk)
        # Positional, as in GPT.forward: tensor parallelism addresses attention's inputs by position.
        x = block(x, *tables[attention.table], by_chunk[chunk], None, None)
    return x


def empty_model(model: Model, row_length: int, chunk: int | None = None) -> Decoder:
    """Return the model on the meta device, with a rotary table of the longest row; `chunk` as of loss_chunk."""
    with torch.device("meta"):
        gpt = Decoder(OwnConfig(**litgpt_fields(model)), chunk)
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
