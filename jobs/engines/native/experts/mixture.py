"""Mixtures of experts: a token goes to its k experts, and their results are weighted and added.

    p, e = top k of the router's scores of x          (tokens, k), p normalized by softmax
    y = sum over k of p_k expert_(e_k)(x)             (tokens, hidden), plus the result of shared experts, if any

or, with router.scores=sigmoid_inputs (Llama 4), the sum of expert_(e_k)(p_k x).

Copies of the tokens are ordered by expert, so that an expert multiplies consecutive rows. None is dropped, whatever
the load of an expert is. In bfloat16 one grouped product multiplies the rows of all experts, and the host does not
need to know how many each has; otherwise it waits once per layer to read that.

Under TP every rank has a part of each expert's matrices, and its y is a partial sum, which is reduced once per layer.

An expert is down(silu(g) u) of g = gate(x) and u = up(x), or limited SwiGLU (GPT-OSS) with L = model.swiglu_limit:

    g' = min(g, L)    u' = min(max(u, -L), L)    down(g' sigmoid(1.702 g') (u' + 1))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from litgpt.model import LLaMAMLP, LLaMAMoE
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate
from torch.nn import functional as F

from jobs.engines.native.experts.balance import with_balance
from jobs.engines.native.experts.router import INPUTS, route, use_router
from jobs.engines.native.mixed_precision import arithmetic
from jobs.plan.predict.activations import GROUPED_MULTIPLE

Compute = Callable[[Tensor, Tensor], Tensor]
"""(rows ordered by expert, rows of each expert) -> results of the rows."""
Linear = tuple[Tensor, Tensor | None]
"""Weight (out, in) and bias (out,) of a linear layer."""
SLOPE = 1.702
"""Factor of the sigmoid in limited SwiGLU, by which GELU is approximated (https://arxiv.org/abs/1606.08415)."""
GATED = ("fc_1", "fc_2", "proj")
"""Gate, up and down of an expert."""


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
    weighs_inputs: bool
    """Multiply inputs of experts by their shares, and not their results."""

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
        copies, of_inputs = tokens[:, None].expand(-1, chosen.shape[1], -1), self.weighs_inputs
        rows = permuted((copies * shares[..., None] if of_inputs else copies).flatten(0, 1), order)
        results = self.experts(rows, counts) if self.through is None else self.through(self.experts, rows, counts)
        # Back in the order of the copies: argsort of a permutation is its inverse.
        by_token = permuted(results, order.argsort()).view(*chosen.shape, -1)
        y: Tensor = (by_token if of_inputs else by_token * shares[..., None]).sum(1).to(x.dtype).view_as(x)
        if self.config.n_shared_expert:
            shared = [linear_of(self.shared_experts.get_submodule(name)) for name in GATED]
            y = y + gated(tokens, shared, None).view_as(y)
        if self.split is not None:
            y = placed(y, self.split, Partial()).redistribute(placements=[Replicate()]).to_local()
        return y


class Experts(nn.ModuleDict):
    """The experts of a layer that this rank holds, by their numbers in the whole layer: a unit of FSDP.

    `limit` is that of gate and up; None: SwiGLU.
    """

    def __init__(self, experts: Mapping[str, nn.Module], limit: float | None) -> None:
        super().__init__(experts)
        self.limit = limit

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Return the results of rows (n, hidden) ordered by expert; counts (experts,) are the rows of each."""
        if self.are_plain:
            layers = [[linear_of(expert.get_submodule(name)) for expert in self.values()] for name in GATED]
            if (dtype := grouped_type(layers, rows)) is not None:
                return grouped(layers, rows.to(dtype), counts, self.limit)
        # Experts without rows take part: their gradients are 0, and under TP and FSDP all ranks send alike.
        parts = rows.split(counts.tolist())
        if self.are_plain:
            by_expert = zip(parts, *layers, strict=True)
            return torch.cat([gated(part, of_expert, self.limit) for part, *of_expert in by_expert])
        return torch.cat([expert(part) for expert, part in zip(self.values(), parts, strict=True)])

    @property
    def are_plain(self) -> bool:
        """Return whether experts are three linear layers each: without adapters or 4 bits."""
        return all(type(each) is nn.Linear for expert in self.values() for each in expert.children())


class LimitedExpert(LLaMAMLP):  # type: ignore[misc]  # LitGPT publishes no types
    """An expert with limited SwiGLU, by itself: with adapters, or in 4 bits."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the result of x (..., hidden), of the same shape."""
        result: Tensor = self.proj(activated(self.fc_1(x), self.fc_2(x), self.config.swiglu_limit))
        return result


def use_mixture(mixture: LLaMAMoE) -> None:
    """Turn LitGPT's mixture of experts into a Mixture, in place; parameters keep their names."""
    mixture.__class__ = Mixture
    mixture.through, mixture.load, mixture.balance, mixture.split = None, None, 0.0, None
    config = mixture.config
    if config.router_bias:
        mixture.gate = nn.Linear(config.n_embd, config.n_expert)
    for expert in mixture.experts if config.swiglu_limit else ():
        expert.__class__ = LimitedExpert
    numbered = {str(number): expert for number, expert in enumerate(mixture.experts)}
    mixture.experts = Experts(numbered, config.swiglu_limit)
    mixture.weighs_inputs = config.router is not None and config.router["scores"] == INPUTS
    if config.router is not None:
        use_router(mixture.gate, config.router)


def placed(x: Tensor, mesh: DeviceMesh, placement: Placement) -> DTensor:
    """Return what every TP rank has, a whole or a partial sum, as one tensor of all."""
    return DTensor.from_local(x, mesh, [placement], run_check=False)


def linear_of(linear: Any) -> Linear:
    """Return this TP rank's part of a linear layer.

    The results of ranks with a part of its columns are added, so each adds an equal share of the bias, which is whole
    on all of them.
    """
    weight, bias = linear.weight, linear.bias
    own: Tensor = weight.to_local() if isinstance(weight, DTensor) else weight
    if not isinstance(bias, DTensor):
        return own, bias
    if bias.placements[0].is_shard():
        return own, bias.to_local()
    return own, bias.to_local(grad_placements=[Partial()]) / bias.device_mesh.size()


def gated(x: Tensor, layers: Sequence[Linear], limit: float | None) -> Tensor:
    """Return the result of an expert, whose linear layers are in the order of GATED."""
    gate, up, down = layers
    return F.linear(activated(F.linear(x, *gate), F.linear(x, *up), limit), *down)


def activated(gate: Tensor, up: Tensor, limit: float | None) -> Tensor:
    """Return SwiGLU of gate and up, or limited SwiGLU."""
    if limit is None:
        return F.silu(gate) * up
    result: Tensor = LimitedSwiGLU.apply(gate, up, limit)  # type: ignore[no-untyped-call]  # torch has no types for it
    return result


class LimitedSwiGLU(torch.autograd.Function):
    """Limited SwiGLU, which keeps its two inputs only; autograd would keep six tensors of their size."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, limit: float) -> Tensor:
        """Return g sigmoid(1.702 g) (u + 1) of limited g and u."""
        ctx.save_for_backward(gate, up)
        ctx.limit = limit
        g, u = gate.clamp(max=limit), up.clamp(-limit, limit)
        return g * torch.sigmoid(SLOPE * g) * (u + 1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        """Return the gradients of gate and up: 0 beyond the limit."""
        gate, up = ctx.saved_tensors
        g, u = gate.clamp(max=ctx.limit), up.clamp(-ctx.limit, ctx.limit)
        share = torch.sigmoid(SLOPE * g)
        of_gate = gradients[0] * (u + 1) * share * (1 + SLOPE * g * (1 - share))
        return of_gate * (gate <= ctx.limit), gradients[0] * g * share * (up.abs() <= ctx.limit), None


def grouped_type(layers: list[list[Linear]], rows: Tensor) -> torch.dtype | None:
    """Return the type in which one product multiplies the rows of all experts; None if each expert has its own.

    torch has grouped products in bfloat16 only.
    """
    dtype = arithmetic(rows)
    fits = all(side % GROUPED_MULTIPLE == 0 for ((weight, _), *_) in layers for side in weight.shape)
    return dtype if dtype is torch.bfloat16 and fits else None


def grouped(layers: list[list[Linear]], rows: Tensor, counts: Tensor, limit: float | None) -> Tensor:
    """Return the results of experts by a grouped product for each of their linear layers, in the order of GATED.

    A bias is the weight of a further input that is 1: the gradients of all biases are part of a grouped product too.
    """
    # Each expert's rows begin at a multiple: the gradient of its weights sums over them. Rows between stay 0.
    padded = (counts + GROUPED_MULTIPLE - 1) // GROUPED_MULTIPLE * GROUPED_MULTIPLE
    ends = padded.cumsum(0)
    moved = (ends - padded) - (counts.cumsum(0) - counts)
    places = torch.arange(len(rows), device=rows.device) + moved.repeat_interleave(counts, output_size=len(rows))
    spread: Tensor = Spread.apply(rows, places, len(rows) + GROUPED_MULTIPLE * len(layers[0]))  # type: ignore[no-untyped-call]  # torch has no types for it
    # (n, 8): 1 and seven 0, since sides are multiples; 0 between.
    ones = F.pad(rows.new_zeros(len(spread), 1).index_fill(0, places, 1), (0, GROUPED_MULTIPLE - 1))

    def product(x: Tensor, of_experts: list[Linear]) -> Tensor:
        weights, biases = zip(*of_experts, strict=True)
        given = [each for each in (*weights, *biases) if each is not None]
        y: Tensor = GroupedProduct.apply(x, ends.to(torch.int32), len(weights), *given)  # type: ignore[no-untyped-call]  # torch has no types for it
        return y

    def with_ones(x: Tensor) -> Tensor:
        return x if layers[0][0][1] is None else torch.cat((x, ones), 1)

    gate, up, down = layers
    x = with_ones(spread)
    return product(with_ones(activated(product(x, gate), product(x, up), limit)), down)[places]


class GroupedProduct(torch.autograd.Function):
    """The product of each expert's rows with its weight, and its bias as the weight of a further input.

    Weights are put one after the other for it, and again in the backward pass: a copy of all weights of the model would
    be kept, also of those that FSDP frees after forward.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, ends: Tensor, experts: int, *parameters: Tensor) -> Tensor:
        """Return the products of rows (n, in) that end at `ends`; parameters are all weights, then all biases."""
        keeps_x = any(ctx.needs_input_grad[3:])
        ctx.save_for_backward(x if keeps_x else None, ends, *parameters)
        ctx.experts = experts
        # (experts, out, in) -> (experts, in, out)
        return torch._grouped_mm(x, stacked(parameters, experts, x.dtype).transpose(1, 2), ends)  # noqa: SLF001 (public since torch 2.12 only)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of rows, weights and biases."""
        (gradient,), (x, ends, *parameters) = gradients, ctx.saved_tensors
        of_x = None
        if ctx.needs_input_grad[0]:
            of_x = torch._grouped_mm(gradient, stacked(parameters, ctx.experts, gradient.dtype), ends)  # noqa: SLF001
        if x is None:
            return of_x, None, None, *(None for _ in parameters)
        # (experts, out, in)
        of_weights = torch._grouped_mm(gradient.T, x, ends)  # noqa: SLF001
        inputs = parameters[0].shape[1]
        found = [*of_weights[..., :inputs].unbind(), *(of_weights[..., inputs].unbind() if x.shape[1] > inputs else ())]
        return of_x, None, None, *(each.to(own.dtype) for each, own in zip(found, parameters, strict=True))


def stacked(parameters: Sequence[Tensor], experts: int, dtype: torch.dtype) -> Tensor:
    """Return the weights of experts in a type, (experts, out, in), with their biases, if there are any, as (in + 8)."""
    weights = torch.stack([each.to(dtype) for each in parameters[:experts]])
    if len(parameters) == experts:
        return weights
    biases = torch.stack([each.to(dtype) for each in parameters[experts:]])[..., None]
    return torch.cat((weights, F.pad(biases, (0, GROUPED_MULTIPLE - 1))), 2)


class Spread(torch.autograd.Function):
    """Rows at their places among zeros; autograd would keep the rows."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, places: Tensor, length: int) -> Tensor:
        """Return (length, hidden)."""
        ctx.save_for_backward(places)
        return rows.new_zeros(length, rows.shape[1]).index_copy_(0, places, rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradients of the rows."""
        (places,) = ctx.saved_tensors
        return gradients[0][places], None, None


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
