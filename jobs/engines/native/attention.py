"""Causal attention over each row, or over each sample of a packed row.

A packed row concatenates samples. A mask of (row, row) would cost memory and arithmetic quadratic in the row, so the
samples' bounds are passed instead and attention runs on each sample alone.
"""

from __future__ import annotations

from inspect import signature
from itertools import groupby
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from litgpt.model import CausalSelfAttention, RMSNorm
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.nn.attention.varlen import AuxRequest, varlen_attn

from jobs.engines.native.loss import capped
from jobs.engines.native.mixed_precision import without_autocast
from jobs.engines.native.rotary import rotated, rotated_heads
from jobs.plan.predict.activations import FLASH_HEAD_SIZE

GROUPED_VARLEN = "enable_gqa" in signature(varlen_attn).parameters
LATENT_EPS = 1e-6
"""Number added to the variance of narrow vectors, whatever the other norms add (DeepSeek's and transformers' code)."""


def bounds_of(bounds: Tensor) -> Tensor:
    """Return where the samples of a row begin, then its length, as kernels take them: (1, samples + 1) -> int32, flat.

    Padding counts as samples too, so that no softmax is over nothing.
    """
    bounds = bounds[0].to(torch.int32)
    # Rows of equal length with other samples share a compiled graph.
    torch._dynamo.maybe_mark_dynamic(bounds, 0)  # noqa: SLF001 (its public name is only in the making)
    return bounds


def positions_in(bounds: Tensor, row: int) -> Tensor:
    """Return the position of each token of a row in its sample, (row)."""
    place = torch.arange(row, device=bounds.device, dtype=bounds.dtype)
    return place - bounds[torch.bucketize(place, bounds, right=True) - 1]


def bounds_of_chunks(bounds: Tensor, row: int, chunk: int) -> Tensor:
    """Return the bounds of chunks of `chunk` positions of each sample in a row, given those of samples.

    Their number does not depend on the samples, so that the host need not wait for it: empty ones are at the end.
    """
    place = torch.arange(row, device=bounds.device, dtype=bounds.dtype)
    # Where a token begins a chunk, its place, and else the end of the row. No more tokens can begin one.
    begins = place.where(positions_in(bounds, row) % chunk == 0, row).sort().values[: len(bounds) - 1 + row // chunk]
    found = F.pad(begins, (0, 1), value=row)
    torch._dynamo.maybe_mark_dynamic(found, 0)  # noqa: SLF001 (as in bounds_of)
    return found


class Attention(CausalSelfAttention):  # type: ignore[misc]  # LitGPT publishes no types
    """LitGPT's attention in training, with packed rows.

    A class, and not a function bound to each layer: torch.compile tells functions apart by identity and would compile
    every layer for itself.
    """

    longest: int
    """Most positions of a sample: Job.row_length. A constant, where the longest of a row would be a new graph."""
    window: int | None = None
    """Positions that a token attends to, itself included; None: all before it."""
    chunk: int | None = None
    """Positions of a chunk of a sample, within which a token attends; None: no chunks. Bounds are those of chunks."""
    table: int = 0
    """Number of the layer's rotary table."""
    normalizes_heads: bool = False
    """Norms without weights in place of norm_q and norm_k."""
    sinks: nn.Parameter | None
    """A score for each head (heads,) that every token's softmax has besides (SunkAttention); None: no such scores."""
    ring: bool = False
    """Context parallelism sends keys and values around."""
    rotate = staticmethod(rotated)
    """(qkv, cos, sin, groups, norms) -> rotated q, rotated k, v; see jobs.engines.native.rotary.rotated."""

    def forward(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        bounds: Tensor | None = None,
        _input_pos: None = None,
        _input_pos_maxp1: None = None,
    ) -> Tensor:
        """Return attention of x (mbs, seq, hidden), of the same shape; bounds as bounds_of returns them."""
        heads, groups, size = self.config.n_head, self.config.n_query_groups, self.config.head_size
        # (mbs, seq, (heads + 2 groups) * size) -> (mbs, seq, heads + 2 groups, size)
        qkv = self.qkv(x).unflatten(-1, (-1, size))
        # Attention wants heads before the sequence: (mbs, heads, seq, size).
        norms = (self.norm_q, self.norm_k) if self.config.norm_qk else None
        if self.normalizes_heads:
            norms = (self.normalized_head, self.normalized_head)
        q, k, v = (each.transpose(1, 2) for each in self.rotate(qkv, cos, sin, groups, norms))
        # Grouped-query attention: heads / groups query heads share one key and value head.
        window = None if self.window is None or self.window >= self.longest else self.window
        sinks = self.sinks.to_local() if isinstance(self.sinks, DTensor) else self.sinks
        by_bounds = bounds is not None or window is not None or sinks is not None
        cap = self.config.attention_logit_softcapping
        if heads > groups and (cap or not takes_groups(q, packed=by_bounds, ring=self.ring)):
            k, v = (each.repeat_interleave(heads // groups, dim=1) for each in (k, v))
        scalar = self.config.attention_scores_scalar
        reach = Reach(None if scalar is None else scalar**-0.5, window, sinks, cap)
        chunk = min(self.chunk or self.longest, self.longest)
        y = within_chunks(q, k, v, chunk, reach) if bounds is None else within_samples(q, k, v, bounds, chunk, reach)
        result: Tensor = self.proj(y.flatten(2))
        return result

    def normalized_head(self, x: Tensor) -> Tensor:
        """Return x / sqrt(mean(x^2) + eps) of each head (mbs, seq, heads, size): the same before and after rotation."""
        with without_autocast(x):
            return F.rms_norm(x, x.shape[-1:], None, self.config.norm_eps)


class LatentAttention(nn.Module):
    """Multi-head latent attention (DeepSeek-V2, https://arxiv.org/abs/2405.04434), with packed rows.

    A token has one narrow vector c, from which the keys and values of all heads are made, and one rotated key:

        r, c = W_a x                 (rope_head_size), (kv_lora_rank)
        k_h, v_h = W_b norm(c)       for each head (head_size - rope_head_size), (value_head_size)
        q_h = W_q x                  (head_size), or W_qb norm(W_qa x) by a narrow vector (q_lora_rank)
        scores = scale * q_h . [rotated r, k_h]

    Parameters have the names of LitGPT's MultiheadLatentAttention. Rows of W_a, and of each head of W_q and W_qb, begin
    with those that are rotated, half against half (jobs.engines.litgpt.hub_weights.rotated_first).
    """

    longest: int
    """As of Attention."""
    chunk = None
    table = 0
    ring = False
    split: DeviceMesh | None = None
    """TP ranks, each of which has its own heads."""

    def __init__(self, config: Any, block_idx: int) -> None:
        super().__init__()
        sizes, heads, hidden = config.latent, config.n_head, config.n_embd
        narrow, rope, value = sizes["kv_lora_rank"], sizes["rope_head_size"], sizes["value_head_size"]
        self.sizes, self.size, self.block_idx = sizes, config.head_size, block_idx
        if (rank := sizes["q_lora_rank"]) is None:
            self.q_proj = nn.Linear(hidden, heads * self.size, bias=False)
        else:
            self.q_a_proj = nn.Linear(hidden, rank, bias=False)
            self.q_a_norm = RMSNorm(rank, eps=LATENT_EPS)
            self.q_b_proj = nn.Linear(rank, heads * self.size, bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(hidden, narrow + rope, bias=False)
        self.kv_a_norm = RMSNorm(narrow, eps=LATENT_EPS)
        self.kv_b_proj = nn.Linear(narrow, heads * (self.size - rope + value), bias=False)
        self.proj = nn.Linear(heads * value, hidden, bias=False)

    def forward(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        bounds: Tensor | None = None,
        _input_pos: None = None,
        _input_pos_maxp1: None = None,
    ) -> Tensor:
        """Return attention of x (mbs, seq, hidden), of the same shape; bounds as bounds_of returns them."""
        narrow, rope, value = (self.sizes[name] for name in ("kv_lora_rank", "rope_head_size", "value_head_size"))
        direct = self.sizes["q_lora_rank"] is None
        q = self.q_proj(x) if direct else self.q_b_proj(self.q_a_norm(self.q_a_proj(x)))
        # (mbs, seq, heads * size) -> (mbs, seq, heads, size)
        q = rotated_heads(q.unflatten(-1, (-1, self.size)), cos, sin)
        shared, c = self.kv_a_proj_with_mqa(x).split((rope, narrow), -1)
        if self.split is not None:
            # The gradient of what all heads share is a sum over the ranks' heads.
            whole = DTensor.from_local(shared, self.split, [Replicate()], run_check=False)
            shared = whole.to_local(grad_placements=[Partial()])
        own = self.kv_b_proj(self.kv_a_norm(c)).unflatten(-1, (q.shape[2], -1))
        keys, v = own.split((self.size - rope, value), -1)
        turned = rotated_heads(shared.unsqueeze(2), cos, sin)
        k = torch.cat([turned.expand(-1, -1, q.shape[2], -1), keys], -1)
        # Attention wants heads before the sequence: (mbs, heads, seq, size).
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        if has_varlen_kernel(q) and value < self.size:
            # FlashAttention has one size of heads.
            v = F.pad(v, (0, self.size - value))
        reach = Reach(self.sizes["scale"], None)
        y = causal(q, k, v, reach) if bounds is None else within_samples(q, k, v, bounds, self.longest, reach)
        result: Tensor = self.proj(y[..., :value].flatten(2))
        return result


class Reach(NamedTuple):
    """Attention of a layer besides being causal."""

    scale: float | None
    """Factor of the scores; None: 1 / sqrt(head size)."""
    window: int | None
    """Positions that a token attends to, itself included; None: all before it."""
    sinks: Tensor | None = None
    """A further score of each head (heads,), without a value; None: no such scores."""
    cap: float | None = None
    """Number c by which scores s become c tanh(s / c), which no kernel of torch has; None: they stay."""


def causal(q: Tensor, k: Tensor, v: Tensor, reach: Reach) -> Tensor:
    """Return causal attention of q, k and v (mbs, heads, seq, head size), as (mbs, seq, heads, head size)."""
    count, _, row, _ = q.shape
    if reach.sinks is None and reach.cap is None and (reach.window is None or reach.window >= row):
        further = {"scale": reach.scale, **grouped(q, k)}
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, **further).transpose(1, 2)
    bounds = torch.arange(0, (count + 1) * row, row, device=q.device, dtype=torch.int32)
    if has_varlen_kernel(q) and reach.cap is None:
        # torch's other kernels have neither windows nor sinks. (mbs, heads, seq, size) -> (1, heads, mbs x seq, size)
        q, k, v = (each.transpose(0, 1).flatten(1, 2)[None] for each in (q, k, v))
        packed = within_samples(q, k, v, bounds, row, reach)
        return packed.view(count, row, *packed.shape[2:])
    return masked(q, k, v, mask(bounds[:2], row, reach.window), reach)


def within_chunks(q: Tensor, k: Tensor, v: Tensor, chunk: int, reach: Reach) -> Tensor:
    """Return what `causal` returns, of attention within the chunks of each row, of which the last may be shorter."""
    row = q.shape[2]
    if chunk >= row:
        return causal(q, k, v, reach)
    if rest := row % chunk:
        (q, last_q), (k, last_k), (v, last_v) = (each.split((row - rest, rest), 2) for each in (q, k, v))
        whole = within_chunks(q, k, v, chunk, reach)
        return torch.cat([whole, causal(last_q, last_k, last_v, reach)], 1)
    # (mbs, heads, seq, size) -> (mbs x chunks, heads, chunk, size): a view
    q, k, v = (each.unflatten(2, (-1, chunk)).transpose(1, 2).flatten(0, 1) for each in (q, k, v))
    by_chunk = causal(q, k, v, reach)
    return by_chunk.reshape(-1, row, *by_chunk.shape[2:])


def masked(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor, reach: Reach) -> Tensor:
    """Return attention of q, k and v (mbs, heads, seq, head size) by a mask (seq, seq), as (mbs, seq, heads, size)."""
    if reach.sinks is None and reach.cap is None:
        further = {"scale": reach.scale, **grouped(q, k)}
        return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, **further).transpose(1, 2)
    scores = q @ k.mT * (reach.scale or q.shape[-1] ** -0.5)
    if reach.cap is not None:
        scores = capped(scores, reach.cap)
    scores = scores.masked_fill(~allowed, -torch.inf)
    if reach.sinks is None:
        weights = scores.softmax(-1, dtype=torch.float32)
        return (weights.to(v.dtype) @ v).transpose(1, 2)
    # One more score for each token, (mbs, heads, seq, seq + 1), whose weight is dropped again.
    further_score = reach.sinks.to(scores.dtype).view(-1, 1, 1).expand(*scores.shape[:-1], 1)
    scores = torch.cat((scores, further_score), -1)
    weights = scores.softmax(-1, dtype=torch.float32)[..., :-1]
    return (weights.to(v.dtype) @ v).transpose(1, 2)


def within_samples(  # noqa: PLR0917 (q, k and v are one)
    q: Tensor, k: Tensor, v: Tensor, bounds: Tensor, longest: int, reach: Reach
) -> Tensor:
    """Return attention within the samples of one row, by torch's variable-length kernel if it applies."""
    if has_varlen_kernel(q) and reach.cap is None:
        # Some or any number of positions to the left (-1), none to the right: causal.
        left = -1 if reach.window is None else reach.window - 1
        further: dict[str, Any] = {"window_size": (left, 0), "scale": reach.scale, **grouped(q, k)}
        # Not [0], whose backward fills a new tensor with zeros and copies the gradient into it.
        q, k, v = (each.squeeze(0).transpose(0, 1) for each in (q, k, v))
        if reach.sinks is not None:
            sunk = SunkAttention.apply(q, k, v, reach.sinks, bounds, longest, further)  # type: ignore[no-untyped-call]  # torch has no types for it
            return cast(Tensor, sunk)[None]
        return cast(Tensor, varlen_attn(q, k, v, bounds, bounds, longest, longest, **further))[None]
    if torch.compiler.is_compiling():
        # A graph cannot depend on the lengths. Slow, and meant for CPUs, where compilation is only tested.
        return masked(q, k, v, mask(bounds, q.shape[2], reach.window), reach)
    # Neighbouring samples of equal length are computed as one batch; pipeline stages get empty samples at the end.
    runs = [(len(list(equal)), length) for length, equal in groupby(bounds.diff().tolist()) if length]
    lengths = [count * length for count, length in runs]
    parts = []
    for run, *qkv in zip(runs, *(each[0].split(lengths, 1) for each in (q, k, v)), strict=True):
        # (heads, count x length, size) -> (count, heads, length, size)
        own_q, own_k, own_v = (each.unflatten(1, run).transpose(0, 1) for each in qkv)
        parts.append(causal(own_q, own_k, own_v, reach).flatten(0, 1))
    return torch.cat(parts)[None]


class SunkAttention(torch.autograd.Function):
    """Attention with sinks z by a kernel that has none, but returns log-sum-exps l of the scores s next to its o.

        l' = log(exp(l) + exp(z))        o' = sum of exp(s - l') v = o exp(l - l')

    The kernel's backward pass makes the weights exp(s - l) again, and ds = exp(s - l) (do v - do o). With l' and o' in
    place of l and o this is the gradient with sinks. Their value is 0, so dz = -sum over tokens of exp(z - l') do o'.
    """

    @staticmethod
    def forward(  # noqa: PLR0917 (q, k and v are one)
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sinks: Tensor,
        bounds: Tensor,
        longest: int,
        further: dict[str, Any],
    ) -> Tensor:
        """Return attention of q (tokens, heads, size), k and v within bounds; sinks (heads,)."""
        both = varlen_attn(q, k, v, bounds, bounds, longest, longest, return_aux=AuxRequest(lse=True), **further)
        result, sums = cast("tuple[Tensor, Tensor]", both)
        # (heads, tokens) in float32
        with_sinks = torch.logaddexp(sums, sinks.float()[:, None])
        result = (result * (sums - with_sinks).exp().T[..., None]).to(q.dtype)
        ctx.save_for_backward(q, k, v, result, with_sinks, sinks, bounds)
        ctx.longest, ctx.further = longest, further
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of q, k, v and sinks."""
        q, k, v, result, sums, sinks, bounds = ctx.saved_tensors
        gradient, further = gradients[0], ctx.further
        # The state of random numbers is unused: nothing is dropped.
        of_qkv = torch.ops.torch_attn._varlen_attn_backward(  # noqa: SLF001 (that of varlen_attn, with other results)
            gradient, q, k, v, result, sums, bounds, bounds, ctx.longest, ctx.longest,
            further["window_size"] == (-1, 0), bounds.new_zeros(2, dtype=torch.uint64), further["scale"],
            list(further["window_size"]),
        )  # fmt: skip
        products = (gradient * result).sum(-1, dtype=torch.float32)
        of_sinks = -((sinks.float()[:, None] - sums).exp().T * products).sum(0)
        return *of_qkv, of_sinks.to(sinks.dtype), None, None, None


def mask(bounds: Tensor, row: int, window: int | None) -> Tensor:
    """Return which tokens (row, row) each token of a row attends to: those before it in its sample, and itself.

    Only the last `window` of these if it is set.
    """
    place = torch.arange(row, device=bounds.device, dtype=bounds.dtype)
    sample = torch.bucketize(place, bounds, right=True)
    allowed = (sample[:, None] == sample) & (place[:, None] >= place)
    return allowed if window is None else allowed & (place[:, None] - place < window)


def grouped(q: Tensor, k: Tensor) -> dict[str, Any]:
    """Return torch's argument for fewer heads of keys than of queries (mbs, heads, seq, head size)."""
    return {"enable_gqa": True} if k.shape[1] < q.shape[1] else {}


def takes_groups(q: Tensor, *, packed: bool, ring: bool) -> bool:
    """Return whether the kernel for these queries (mbs, heads, seq, head size) takes fewer heads of keys and values.

    FlashAttention and cuDNN do (torch's sdp_utils.cpp: can_use_flash_attention, can_use_cudnn_attention), for packed
    rows since torch 2.12. Its other kernels, for float32 and CPUs, do not: all scores would be in memory.
    """
    return has_varlen_kernel(q) and q.shape[-1] <= FLASH_HEAD_SIZE and not ring and (GROUPED_VARLEN or not packed)


def has_varlen_kernel(q: Tensor) -> bool:
    """Return whether torch's variable-length FlashAttention accepts these queries (mbs, heads, seq, head size)."""
    half = q.dtype in {torch.bfloat16, torch.float16}
    return q.is_cuda and half and q.shape[-1] % 8 == 0 and has_flash(q.device)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # torch has no types for it
def has_flash(device: torch.device) -> bool:
    """Return whether a GPU has FlashAttention."""
    # Ampere and later.
    return torch.cuda.get_device_capability(device) >= (8, 0)
