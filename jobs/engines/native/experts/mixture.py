"""Mixtures of experts: a token goes to its k experts, and their results are weighted and added.

    p, e = top k of the router's scores of x          (tokens, k), p normalized by softmax
    y = sum over k of p_k expert_(e_k)(x)             (tokens, hidden), plus the result of shared experts, if any

Copies of the tokens are ordered by expert, so that an expert multiplies consecutive rows. None is dropped, whatever
the load of an expert is. In bfloat16 one grouped product multiplies the rows of all experts, and the host does not
need to know how many each has; otherwise it waits once per layer to read that.

Under TP every rank has a part of each expert's matrices, and its y is a partial sum, which is reduced once per layer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from litgpt.model import LLaMAMoE
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate
from torch.nn import functional as F

from jobs.engines.native.experts.balance import with_balance
from jobs.engines.native.experts.router import route, use_router

Compute = Callable[[Tensor, Tensor], Tensor]
"""(rows ordered by expert, rows of each expert) -> results of the rows."""
GATED = ("fc_1", "fc_2", "proj")
"""Gate, up and down of an expert."""
GROUPED_MULTIPLE = 8
"""Sides of grouped products are multiples of 16 bytes (torch._grouped_mm): 8 numbers of bfloat16."""


class Mixture(LLaMAMoE):  # type: ignore[misc]  # LitGPT publishes no types
    """LitGPT's mixture of experts under its parameter names, with rows in the order of their experts."""

    through: Callable[[Compute, Tensor, Tensor], Tensor] | None
    """Brings rows to the ranks of their experts and back (jobs.engines.native.experts.dispatch)."""
    load: Tensor | None
    """Tokens of each expert (experts,) since it was None."""
    balance: float
    """Weight of the balance loss of a sequence."""
    split: DeviceMesh | None
    """TP ranks, whose results are partial sums; None if each expert's result is complete."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the weighted sum of the results of each token's experts, (..., hidden) -> (..., hidden)."""
        scores, chosen, shares = route(self.gate, x, self.config.n_expert_per_token)
        if self.balance:
            shares = with_balance(shares, scores, chosen, self.balance)
        tokens, chosen, shares = x.flatten(0, -2), chosen.flatten(0, -2), shares.flatten(0, -2).to(x.dtype)
        if self.split is not None:
            # Every rank's gradient of these is a partial sum too.
            tokens, shares = (
                placed(each, self.split, Replicate()).to_local(grad_placements=[Partial()]) for each in (tokens, shares)
            )
        # (tokens, k) -> (tokens k): copy number tokens * k + place
        expert_of = chosen.flatten()
        order = expert_of.argsort(stable=True)
        counts = expert_of.new_zeros(self.config.n_expert).scatter_add_(0, expert_of, torch.ones_like(expert_of))
        self.load = counts if self.load is None else self.load + counts
        copies = tokens[:, None].expand(-1, chosen.shape[1], -1).flatten(0, 1)
        rows = permuted(copies, order)
        results = self.experts(rows, counts) if self.through is None else self.through(self.experts, rows, counts)
        # Back in the order of the copies: argsort of a permutation is its inverse.
        by_token = permuted(results, order.argsort()).view(*chosen.shape, -1)
        y: Tensor = (by_token * shares[..., None]).sum(1).to(x.dtype).view_as(x)
        if self.config.n_shared_expert:
            shared = [own(self.shared_experts.get_parameter(f"{name}.weight")) for name in GATED]
            y = y + gated(tokens, *shared).view_as(y)
        if self.split is not None:
            y = placed(y, self.split, Partial()).redistribute(placements=[Replicate()]).to_local()
        return y


class Experts(nn.ModuleDict):
    """The experts of a layer that this rank holds, by their numbers in the whole layer: a unit of FSDP."""

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Return the results of rows (n, hidden) ordered by expert; counts (experts,) are the rows of each."""
        if self.are_plain:
            matrices = [[own(expert.get_parameter(f"{name}.weight")) for expert in self.values()] for name in GATED]
            if (dtype := grouped_type(matrices, rows)) is not None:
                return grouped(matrices, rows.to(dtype), counts)
        # Experts without rows take part: their gradients are 0, and under TP and FSDP all ranks send alike.
        parts = rows.split(counts.tolist())
        if self.are_plain:
            return torch.cat([gated(part, *of_expert) for part, *of_expert in zip(parts, *matrices, strict=True)])
        return torch.cat([expert(part) for expert, part in zip(self.values(), parts, strict=True)])

    @property
    def are_plain(self) -> bool:
        """Return whether experts are three matrices each: without biases, adapters or 4 bits."""
        linear = [each for each in self.modules() if isinstance(each, nn.Linear)]
        return all(type(each) is nn.Linear and each.bias is None for each in linear)


def use_mixture(mixture: LLaMAMoE) -> None:
    """Turn LitGPT's mixture of experts into a Mixture, in place; parameters keep their names."""
    mixture.__class__ = Mixture
    mixture.through, mixture.load, mixture.balance, mixture.split = None, None, 0.0, None
    mixture.experts = Experts({str(number): expert for number, expert in enumerate(mixture.experts)})
    if (settings := getattr(mixture.config, "router", None)) is not None:
        use_router(mixture.gate, settings)


def placed(x: Tensor, mesh: DeviceMesh, placement: Placement) -> DTensor:
    """Return what every TP rank has, a whole or a partial sum, as one tensor of all."""
    return DTensor.from_local(x, mesh, [placement], run_check=False)


def own(weight: Tensor) -> Tensor:
    """Return this TP rank's part of a weight."""
    return weight.to_local() if isinstance(weight, DTensor) else weight


def gated(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """Return the result of a SwiGLU expert, down(silu(gate x) * up x)."""
    return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


def grouped_type(matrices: list[list[Tensor]], rows: Tensor) -> torch.dtype | None:
    """Return the type in which one product multiplies the rows of all experts; None if each expert has its own.

    torch has grouped products in bfloat16 only.
    """
    device = rows.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else rows.dtype
    fits = all(side % GROUPED_MULTIPLE == 0 for (first, *_) in matrices for side in first.shape)
    return dtype if dtype is torch.bfloat16 and fits else None


def grouped(matrices: list[list[Tensor]], rows: Tensor, counts: Tensor) -> Tensor:
    """Return the results of SwiGLU experts by a grouped product for each of their matrices, in the order of GATED."""
    # Each expert's rows begin at a multiple: the gradient of its weights sums over them. Rows between stay 0.
    padded = (counts + GROUPED_MULTIPLE - 1) // GROUPED_MULTIPLE * GROUPED_MULTIPLE
    ends = padded.cumsum(0)
    moved = (ends - padded) - (counts.cumsum(0) - counts)
    places = torch.arange(len(rows), device=rows.device) + moved.repeat_interleave(counts, output_size=len(rows))
    experts = len(matrices[0])
    x = rows.new_zeros(len(rows) + GROUPED_MULTIPLE * experts, rows.shape[1]).index_copy(0, places, rows)

    def product(x: Tensor, of_experts: list[Tensor]) -> Tensor:
        # (experts, out, in) -> (experts, in, out)
        weights = torch.stack(of_experts).to(x.dtype).transpose(1, 2)
        y: Tensor = torch._grouped_mm(x, weights, ends.to(torch.int32))  # noqa: SLF001 (public since torch 2.12 only)
        return y

    gate, up, down = matrices
    return product(F.silu(product(x, gate)) * product(x, up), down)[places]


class Permuted(torch.autograd.Function):
    """rows[order] of a permutation, whose gradient needs no sums."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Tensor) -> Tensor:
        """Return the rows in another order."""
        ctx.save_for_backward(order)
        return rows[order]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Return the gradients in the first order."""
        (order,) = ctx.saved_tensors
        return torch.empty_like(gradients[0]).index_copy_(0, order, gradients[0]), None


def permuted(rows: Tensor, order: Tensor) -> Tensor:
    """Return rows (n, hidden) in the order of a permutation (n,)."""
    result: Tensor = Permuted.apply(rows, order)  # type: ignore[no-untyped-call]  # torch has no types for it
    return result


def experts_of(module: nn.Module) -> list[Experts]:
    """Return the experts of each layer."""
    return [part for part in module.modules() if isinstance(part, Experts)]
