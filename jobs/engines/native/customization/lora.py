"""Low-rank adapters (LoRA, https://arxiv.org/abs/2106.09685): y = W x + alpha / rank * B A dropout(x), with W frozen.

An adapted layer keeps its parameter names and gains lora_A and lora_B, with names and shapes of litgpt.lora: for the
fused qkv, A has `rank` rows for each of q, k and v that is adapted, and B has the rows of these. A is drawn as torch
draws a linear layer, B is 0, so that training begins at the base model.

TP shards an adapter with its weight. Where W is split by rows, B is too, and A is whole. Where W is split by columns, A
is too, B is whole, and the results are partial sums, reduced together with those of W. So the forward pass has no
further collective.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

import torch
from litgpt.model import GPT
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Shard

from jobs.engines.native.attention import LatentAttention
from jobs.engines.native.customization.adapted_mlp import ADAPTED
from jobs.engines.native.customization.adapted_product import AdaptedProduct, Shape
from jobs.engines.native.customization.nf4 import Nf4Linear
from jobs.engines.native.load_sharded import full, shard_of
from jobs.engines.native.model import layers
from jobs.engines.native.tensor_parallel import as_in_litgpt, grouped_by_rank
from jobs.engines.native.weights import Values, generator_of
from jobs.schema import QKV, Lora, LoraTarget

ADAPTER = ".lora_"
OF_LATENT = {
    "q_proj": LoraTarget.query,
    "q_a_proj": LoraTarget.query,
    "q_b_proj": LoraTarget.query,
    "kv_a_proj_with_mqa": LoraTarget.key,
    "kv_b_proj": LoraTarget.key,
}
"""Matrices of latent attention; those of keys are of values too."""
Made = Callable[..., Tensor] | None


class AdaptedLinear(nn.Linear):
    """A frozen linear layer with an adapter."""

    parts: tuple[int, ...]
    """Rows of W by part: q, k and v, or all."""
    adapted: tuple[bool, ...]
    """True for each part that has an adapter."""
    scale: float
    dropout: float
    lora_A: nn.Parameter  # noqa: N815 (LitGPT's name)
    lora_B: nn.Parameter  # noqa: N815

    copies: bool = False
    """W x must stay as it is (jobs.engines.native.customization.adapted_product.Shape)."""

    def forward(self, x: Tensor, made: Made = None, given: Sequence[Tensor] = ()) -> Tensor:
        """Return W x + scale * B A dropout(x), (..., in) -> (..., out); under TP of a DTensor.

        Backward keeps x, or else what x is made of: x = made(given), on this rank.
        """
        b = self.lora_B
        # Gradients of these go through x.
        source = made, [each.detach() for each in given]
        if not isinstance(x, DTensor) or not isinstance(b, DTensor):
            return self.product((x, self.weight, self.bias, self.lora_A, b), self.kept(x, 1, 0), 1, *source)
        # On local tensors, since DTensor cannot split its rows into q, k and v. What every rank holds whole gets
        # gradients that are partial sums.
        mesh, by_rows, partial = b.device_mesh, b.placements[0].is_shard(), [Partial()]
        of_whole, of_split = (partial, None) if by_rows else (None, partial)
        # Every rank has the whole bias of a matrix that is split by columns, and their results are added.
        adds = self.bias is not None and (by_rows or mesh.get_local_rank() == 0)
        own, bias = local(x, of_whole), local(self.bias, None) if adds else None
        kept = self.kept(own, 1, 0) if by_rows else self.kept(own, mesh.size(), mesh.get_local_rank())
        tensors = own, local(self.weight, None), bias, local(self.lora_A, of_whole), local(b, of_split)
        y = self.product(tensors, kept, mesh.size() if by_rows else 1, *source)
        return DTensor.from_local(y, mesh, [Shard(y.ndim - 1) if by_rows else Partial()], run_check=False)

    def product(
        self, tensors: Sequence[Tensor | None], kept: Tensor | None, ranks: int, made: Made, given: Sequence[Tensor]
    ) -> Tensor:
        """Return W x + bias + scale * B A x of x, W, bias, A and B; `ranks` have a share of the rows of each part."""
        scale = self.scale if kept is None else self.scale / (1 - self.dropout)
        shape = Shape(self.spans(ranks), scale, self.plain, made, self.copies)
        y: Tensor = AdaptedProduct.apply(*tensors, kept, shape, *given)  # type: ignore[no-untyped-call]  # torch has no types for it
        return y

    @property
    def plain(self) -> Callable[[Tensor], Tensor] | None:
        """Return what makes W of the parameter; None: that is W."""
        return None

    def spans(self, ranks: int) -> tuple[tuple[int, int], ...]:
        """Return the first row of each part with an adapter, and the one after the last; `ranks` share each part."""
        ends = [end // ranks for end in accumulate(self.parts)]
        return tuple(
            (end - part // ranks, end)
            for part, end, has_one in zip(self.parts, ends, self.adapted, strict=True)
            if has_one
        )

    def kept(self, x: Tensor, ranks: int, place: int) -> Tensor | None:
        """Return which numbers of x dropout keeps, if any are dropped; x is this rank's share of `ranks`' columns.

        Every rank of a TP group draws the same numbers for all columns, so that their number does not change which are
        dropped.
        """
        if not self.training or self.dropout == 0:
            return None
        width = x.shape[-1]
        drawn = torch.empty(*x.shape[:-1], width * ranks, dtype=torch.bool, device=x.device).bernoulli_(
            1 - self.dropout
        )
        # Backward keeps this rank's columns only; a view would keep all of them.
        return drawn.narrow(-1, place * width, width).contiguous()

    def merged(self, name: str, gpt: GPT, tensor: int) -> Tensor:
        """Return W + scale * B A, in the type and sharding of W; every rank that holds a shard of it calls this."""
        a, b = full(self.lora_A), as_in_litgpt(f"{name}.lora_B", full(self.lora_B), gpt.config, tensor)
        spans = self.spans(1)
        change = torch.zeros(self.out_features, self.in_features, device=a.device)
        of_parts = zip(
            spans, a.float().chunk(len(spans)), b.float().split([end - begin for begin, end in spans]), strict=True
        )
        for (begin, end), inner, outer in of_parts:
            change[begin:end] = outer @ inner * self.scale
        weight = plain_weight(self)
        rows = grouped_by_rank(f"{name}.weight", change, gpt.config, tensor)
        return (weight.float() + shard_of(rows, weight)).to(weight.dtype)


class AdaptedNf4Linear(AdaptedLinear, Nf4Linear):
    """A frozen linear layer in 4 bits with an adapter (QLoRA)."""

    @property
    def plain(self) -> Callable[[Tensor], Tensor]:
        """Return what makes W of the parameter."""
        return self.unpack


def adapt(gpt: GPT, lora: Lora, dtype: torch.dtype) -> None:
    """Add adapters of a type to the targets of every layer, in place."""
    config = gpt.config
    heads, groups = (count * config.head_size for count in (config.n_head, config.n_query_groups))
    of_qkv = tuple(target in lora.targets for target in QKV)
    config.adapted_parts = of_qkv
    for layer in layers(gpt):
        if isinstance(layer.attn, LatentAttention):
            for name, target in OF_LATENT.items():
                if target in lora.targets and hasattr(layer.attn, name):
                    adapt_linear(layer.attn.get_submodule(name), lora, dtype)
        elif any(of_qkv):
            adapt_linear(layer.attn.qkv, lora, dtype, (heads, groups, groups), of_qkv)
        if LoraTarget.projection in lora.targets:
            adapt_linear(layer.attn.proj, lora, dtype)
        for module in list(layer.mlp.modules()) if LoraTarget.mlp in lora.targets else ():
            module.__class__ = ADAPTED.get(type(module), type(module))
            if isinstance(module, nn.Linear):
                adapt_linear(module, lora, dtype)


def adapt_linear(
    linear: nn.Module,
    lora: Lora,
    dtype: torch.dtype,
    parts: tuple[int, ...] | None = None,
    adapted: tuple[bool, ...] = (True,),
) -> None:
    """Add an adapter to some parts of a linear layer's rows, in place."""
    linear.__class__ = AdaptedNf4Linear if isinstance(linear, Nf4Linear) else AdaptedLinear
    assert isinstance(linear, AdaptedLinear)
    linear.parts, linear.adapted = parts or (linear.out_features,), adapted
    linear.scale, linear.dropout = lora.alpha / lora.rank, lora.dropout
    rows = sum(part for part, has_one in zip(linear.parts, adapted, strict=True) if has_one)
    device = linear.weight.device
    linear.lora_A = nn.Parameter(torch.empty(lora.rank * sum(adapted), linear.in_features, dtype=dtype, device=device))
    linear.lora_B = nn.Parameter(torch.empty(rows, lora.rank, dtype=dtype, device=device))


def with_adapters(values: Values, seed: int) -> Values:
    """Return a source of first weights that draws adapters from the seed, and takes all others from `values`."""

    def value(name: str, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
        if ADAPTER not in name:
            return values(name, shape, dtype, device)
        drawn = torch.zeros(*shape, dtype=torch.float32, device=device)
        if name.endswith("lora_A"):
            bound = 1 / math.sqrt(shape[1])
            drawn.uniform_(-bound, bound, generator=generator_of(name, seed, device))
        return drawn.to(dtype)

    return value


def merged_weights(gpt: GPT, tensor: int) -> Iterator[tuple[str, Tensor]]:
    """Yield the adapted weights with their adapters added, in the layout's order of rows; all ranks call it.

    And all weights in 4 bits as plain ones, in the memory of the host: the device may not have room for them.
    """
    for name, module in gpt.named_modules():
        if isinstance(module, AdaptedLinear):
            merged = module.merged(name, gpt, tensor)
        elif isinstance(module, Nf4Linear):
            merged = plain_weight(module)
        else:
            continue
        yield f"{name}.weight", merged.cpu() if isinstance(module, Nf4Linear) else merged


def plain_weight(linear: nn.Linear) -> Tensor:
    """Return a layer's weight in its type, sharded as its parameter; every rank that holds a shard of it calls this."""
    if not isinstance(linear, Nf4Linear):
        return linear.weight.detach()
    return shard_of(linear.unpack(full(linear.weight)), linear.weight)


def local(tensor: Tensor, gradient: list[Partial] | None) -> Tensor:
    """Return this rank's part of a DTensor, whose gradient has these placements, or else the tensor's."""
    assert isinstance(tensor, DTensor)
    return tensor.to_local(grad_placements=gradient)


def seed_dropout(seed: int, step: int, place: Sequence[int]) -> None:
    """Seed the dropout of a step, so that a resumed run draws what an uninterrupted one does.

    `place` distinguishes ranks that must not draw the same numbers: all but those of a TP group.
    """
    torch.manual_seed(zlib.crc32(repr((seed, step, *place)).encode()))
