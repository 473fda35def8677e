"""Rotary embedding (https://arxiv.org/abs/2104.09864): rotate queries and keys by their positions.

For the halves a, b of the rotated part of a head: a' = a cos - b sin, b' = b cos + a sin. The gradient is the rotation
by the opposite angle. Values and the unrotated part of a head are not copied.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

Norms = tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]
"""The norms of queries and of keys, each along the head size."""


def rotated(qkv: Tensor, cos: Tensor, sin: Tensor, groups: int, norms: Norms | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return rotated queries, rotated keys, and values; each (mbs, seq, its heads, head size).

    qkv is LitGPT's fused (mbs, seq, heads + 2 x groups, head size), its last 2 x groups heads being keys and values;
    cos and sin are (1 or mbs, seq, rotated part of the head). Queries and keys are normalized first if there are norms.
    The arithmetic is litgpt.model.apply_rope's.
    """
    if torch.compiler.is_compiling():
        return turned(qkv, cos, sin, groups, norms)
    if norms is None:
        q, k, v = Rotated.apply(qkv, cos, sin, groups)  # type: ignore[no-untyped-call]  # torch has no types for it
        return q, k, v
    q, k, v = normalized(qkv, groups, norms)
    return rotated_heads(q, cos, sin), rotated_heads(k, cos, sin), v


def unrotated(qkv: Tensor, _cos: Tensor, _sin: Tensor, groups: int, norms: Norms | None) -> tuple[Tensor, ...]:
    """Return queries, keys and values of a layer that does not rotate them; arguments as of `rotated`."""
    return normalized(qkv, groups, norms)


def tempered(
    qkv: Tensor, growth: Tensor, _sin: Tensor, groups: int, norms: Norms | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what `unrotated` returns, with queries multiplied by the first column of their table (growth_tables)."""
    q, k, v = normalized(qkv, groups, norms)
    return (q * growth[:, :, None, :1]).to(q.dtype), k, v


def rotated_heads(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return heads x (mbs, seq, heads, size), their first numbers rotated; cos and sin as in `rotated`."""
    if torch.compiler.is_compiling():
        return turned_part(x, cos.unsqueeze(2), sin.unsqueeze(2))
    result: Tensor = Turned.apply(x, cos, sin)  # type: ignore[no-untyped-call]  # torch has no types for it
    return result


def normalized(qkv: Tensor, groups: int, norms: Norms | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries and keys after their norms, if there are any, and values."""
    q, k, v = qkv.split((qkv.shape[2] - 2 * groups, groups, groups), 2)
    return (q, k, v) if norms is None else (norms[0](q), norms[1](k), v)


def turned(qkv: Tensor, cos: Tensor, sin: Tensor, groups: int, norms: Norms | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return what `rotated` returns, without writing in place: the compiler fuses it, and derives its gradient."""
    cos, sin = cos.unsqueeze(2), sin.unsqueeze(2)
    q, k, v = normalized(qkv, groups, norms)
    return turned_part(q, cos, sin), turned_part(k, cos, sin), v


def turned_part(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return x (mbs, seq, heads, size), the part that cos and sin (1 or mbs, seq, 1, part) cover rotated."""
    part, rest = x.split((cos.shape[-1], x.shape[-1] - cos.shape[-1]), -1)
    a, b = part.chunk(2, -1)
    return torch.cat([part * cos + torch.cat([-b, a], -1) * sin, rest], -1).to(x.dtype)


class Rotated(torch.autograd.Function):
    """One pass over queries and keys; backward writes into one gradient of qkv, so nothing is concatenated."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, cos: Tensor, sin: Tensor, groups: int) -> tuple[Tensor, ...]:
        """Return what `rotated` returns."""
        ctx.save_for_backward(cos, sin)
        parts = ctx.parts = [qkv.shape[2] - 2 * groups, groups, groups]
        qk, v = qkv[:, :, :-groups], qkv[:, :, -groups:]
        return *turn(qk, cos, sin, torch.empty_like(qk)).split(parts[:2], 2), v

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of qkv: those of queries and keys rotated back."""
        cos, sin = ctx.saved_tensors
        q, _, v = gradients
        gradient = q.new_empty((*q.shape[:2], sum(ctx.parts), q.shape[3]))
        *turned, values = gradient.split(ctx.parts, 2)
        for part, into in zip(gradients, turned, strict=False):
            turn(part, cos, -sin, into)
        values.copy_(v)
        return gradient, None, None, None


class Turned(torch.autograd.Function):
    """One pass over the heads of a tensor of its own: normalized queries, or keys."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return x (mbs, seq, heads, head size), rotated."""
        ctx.save_for_backward(cos, sin)
        return turn(x, cos, sin, torch.empty_like(x))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient rotated back, laid out as the norm's backward reads it: attention's is transposed."""
        cos, sin = ctx.saved_tensors
        return turn(gradient, cos, -sin, gradient.new_empty(gradient.shape)), None, None


def turn(x: Tensor, cos: Tensor, sin: Tensor, into: Tensor) -> Tensor:
    """Write the rotation of x (mbs, seq, heads, head size) to `into`, rounded to its type once."""
    cos, sin = cos.unsqueeze(2), sin.unsqueeze(2)
    n = cos.shape[-1]
    a, b = x[..., : n // 2], x[..., n // 2 : n]
    (cos_a, cos_b), (sin_a, sin_b) = cos.chunk(2, -1), sin.chunk(2, -1)
    torch.addcmul(a * cos_a, b, sin_a, value=-1, out=into[..., : n // 2])
    torch.addcmul(b * cos_b, a, sin_b, out=into[..., n // 2 : n])
    into[..., n:] = x[..., n:]
    return into


def growth_tables(cos: Tensor, temperature: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """Return tables in the shape of cosines and sines (length, size): the growth of queries by position, and zeros.

    `temperature` has the fields of jobs.schema.QueryTemperature.
    """
    position = torch.arange(len(cos), dtype=torch.float32, device=cos.device)
    growth = ((position + 1) / temperature["length"]).floor().log1p() * temperature["scale"] + 1
    return growth[:, None].expand_as(cos), torch.zeros_like(cos)


def yarn_tables(
    length: int, size: int, base: float, scaling: Mapping[str, Any], device: torch.device | None
) -> tuple[Tensor, Tensor]:
    """Return cosines and sines (length, size) of YaRN (https://arxiv.org/abs/2309.00071), as transformers has them.

    size is the rotated part of a head; scaling is as jobs.engines.litgpt.names.adjustments returns it. Frequency i of
    size / 2 turns length / (2 pi base^(2i / size)) times within a length. Those below the number with beta_fast turns
    stay, those above the number with beta_slow turns are divided by the factor, those between are interpolated by i.
    """

    def number_with(turns: float) -> float:
        of_length = scaling["original_max_seq_len"] / (2 * math.pi * turns)
        return size * math.log(of_length) / (2 * math.log(base))

    first, last = number_with(scaling["beta_fast"]), number_with(scaling["beta_slow"])
    if scaling["round_limits"]:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, size - 1)
    # A range of no width would divide by 0; transformers' constant.
    width = (last - first) or 0.001
    number = torch.arange(size // 2, dtype=torch.float32, device=device)
    divided = ((number - first) / width).clamp(0, 1)
    frequencies = base ** (-2 * number / size)
    frequencies = frequencies / scaling["yarn_factor"] * divided + frequencies * (1 - divided)
    angles = torch.outer(torch.arange(length, dtype=torch.float32, device=device), frequencies).repeat(1, 2)
    return angles.cos() * scaling["attention_factor"], angles.sin() * scaling["attention_factor"]
