"""Causal attention over each row, or over each sample of a packed row.

A packed row concatenates samples. A mask of (row, row) would cost memory and arithmetic quadratic in the row, so the
samples' bounds are passed instead and attention runs on each sample alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from typing import cast

import torch
import torch.nn.functional as F
from litgpt.model import CausalSelfAttention
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

Rotate = Callable[[Tensor, Tensor, Tensor, int], tuple[Tensor, Tensor, Tensor]]
"""(qkv, cos, sin, groups) -> rotated q, rotated k, v; see jobs.engines.native.rotary.rotated."""


@dataclass(frozen=True)
class Samples:
    """The samples of one packed row. Padding counts as a sample, so that no softmax is over nothing."""

    lengths: list[int]
    bounds: Tensor
    """First position of each sample, then the length of the row: (samples + 1), int32, on the row's device."""


def samples_of(positions: Tensor) -> Samples:
    """Return the samples of a row. `positions` (1, row) counts tokens within each sample: 0 starts a new one."""
    end = torch.tensor([positions.shape[1]], device=positions.device)
    bounds = torch.cat([(positions[0] == 0).nonzero().flatten(), end])
    return Samples(bounds.diff().tolist(), bounds.to(torch.int32))


def self_attention(  # noqa: PLR0917 (GPT passes them by position)
    attn: CausalSelfAttention,
    rotate: Rotate,
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    samples: Samples | None = None,
    _input_pos: None = None,
    _input_pos_maxp1: None = None,
) -> Tensor:
    """Replace CausalSelfAttention.forward in training: x (mbs, seq, hidden) -> (mbs, seq, hidden)."""
    heads, groups, size = attn.config.n_head, attn.config.n_query_groups, attn.config.head_size
    # (mbs, seq, (heads + 2 groups) * size) -> (mbs, seq, heads + 2 groups, size)
    qkv = attn.qkv(x).unflatten(-1, (-1, size))
    # Attention wants heads before the sequence: (mbs, heads, seq, size).
    q, k, v = (each.transpose(1, 2) for each in rotate(qkv, cos, sin, groups))
    if heads > groups:
        # Grouped-query attention: heads / groups query heads share one key and value head.
        k, v = (each.repeat_interleave(heads // groups, dim=1) for each in (k, v))
    y: Tensor = attn.proj(attention(q, k, v, samples).flatten(2))
    return y


def attention(q: Tensor, k: Tensor, v: Tensor, samples: Samples | None = None) -> Tensor:
    """Return causal attention, within samples if they are given.

    q, k and v are (mbs, heads, seq, head size), the result is (mbs, seq, heads, head size).
    """
    if samples is not None:
        within: Tensor = within_samples(q, k, v, samples)
        return within
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


# Lengths differ from row to row, and torch.compile would recompile the layer for each of them.
@torch.compiler.disable  # type: ignore[untyped-decorator]  # torch has no types for it
def within_samples(q: Tensor, k: Tensor, v: Tensor, samples: Samples) -> Tensor:
    """Return attention within the samples of one row, by torch's variable-length kernel if it applies."""
    q, k, v = q[0], k[0], v[0]
    if has_varlen_kernel(q):
        heads_last = (q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1))
        bounds, longest = samples.bounds, max(samples.lengths)
        return cast(Tensor, varlen_attn(*heads_last, bounds, bounds, longest, longest, window_size=(-1, 0)))[None]
    # Neighbouring samples of equal length are computed as one batch.
    runs = [(len(list(equal)), length) for length, equal in groupby(samples.lengths)]
    lengths = [count * length for count, length in runs]
    parts = []
    for run, *qkv in zip(runs, q.split(lengths, 1), k.split(lengths, 1), v.split(lengths, 1), strict=True):
        batched = (x.unflatten(1, run).transpose(0, 1) for x in qkv)
        parts.append(attention(*batched).flatten(0, 1))
    return torch.cat(parts)[None]


def has_varlen_kernel(q: Tensor) -> bool:
    """Return whether torch's variable-length FlashAttention accepts these queries (heads, seq, head size)."""
    half = q.dtype in {torch.bfloat16, torch.float16}
    return q.is_cuda and half and q.shape[-1] % 8 == 0 and torch.cuda.get_device_capability(q.device) >= (8, 0)
