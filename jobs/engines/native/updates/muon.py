"""Muon for the matrices of layers, AdamW for all other weights (https://kellerjordan.github.io/posts/muon).

For a matrix w (n, m) with gradient g, at learning rate lr:

    b <- mu b + (1 - mu) g            momentum
    u = mu b + (1 - mu) g             Nesterov's look ahead, with the new b
    o = U V^T, if u = U S V^T         all directions of u equally long, by Newton and Schulz's iteration
    w <- w (1 - lr decay) - lr 0.2 sqrt(max(n, m)) o

The last factor gives updates the usual size of AdamW's, so both take one learning rate and one decay (arXiv:2502.16982,
section 2.2).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.optim.adamw import adamw

from jobs.engines.native.load_sharded import full, local_shard, shard_of
from jobs.engines.native.optimizers.muon import ITERATIONS
from jobs.engines.native.updates.rounded_adamw import EPSILON

MOMENTUM = 0.95
COEFFICIENTS = 3.4445, -4.775, 2.0315
"""a, b and c of the polynomial a x + b x^3 + c x^5, which moves every singular value near 1 (Jordan's choice)."""
SIZE_OF_ADAMW = 0.2
"""Usual root mean square of AdamW's updates, over the learning rate (arXiv:2502.16982)."""


class Muon(Optimizer):
    """Muon in groups that are marked `orthogonal`, AdamW in all others."""

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        *,
        lr: float,
        betas: tuple[float, float],
        weight_decay: float,
        arithmetic: torch.dtype,
    ) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "weight_decay": weight_decay, "orthogonal": False})
        self.arithmetic = arithmetic

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # nothing computes the loss again
        """Update every parameter that has a gradient."""
        del closure
        for group in self.param_groups:
            given = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not group["orthogonal"]:
                self.update_others(group, given)
            elif given:
                # The matrices of a group are on one mesh (jobs.engines.native.trainer.by_mesh).
                ranks = sharing(given[0])
                size = dist.get_world_size(ranks) if ranks else 1
                for start in range(0, len(given), size):
                    self.update(group, given[start : start + size], ranks)

    def update(self, group: dict[str, Any], matrices: list[Tensor], ranks: dist.ProcessGroup | None) -> None:
        """Update matrices of which these ranks hold shards, at most one for each rank; all of them call it.

        Each rank orthogonalizes one matrix and sends the result to the others.
        """
        own, made = dist.get_rank(ranks) if ranks else 0, torch.empty(0)
        for number, matrix in enumerate(matrices):
            # (n / ranks, m) -> (n, m), one at a time, so that a rank holds its own matrix and one more.
            whole = full(self.look_ahead(matrix))
            if number == own:
                made = orthogonal(whole)
            del whole
        for number, matrix in enumerate(matrices):
            change = made
            if number != own:
                change = torch.empty(matrix.shape, dtype=self.arithmetic, device=matrix.device)
            if ranks:
                dist.broadcast(change, group=ranks, group_src=number)
            size = SIZE_OF_ADAMW * math.sqrt(max(change.shape))
            weight, part = local_shard(matrix), local_shard(shard_of(change, matrix))
            weight.mul_(1 - group["lr"] * group["weight_decay"]).add_(part.to(weight.dtype), alpha=-group["lr"] * size)

    def look_ahead(self, matrix: Tensor) -> Tensor:
        """Add the gradient to the momentum, and return Nesterov's look ahead (u), sharded as the matrix."""
        state, gradient = self.state[matrix], matrix.grad
        assert gradient is not None
        if not state:
            state["momentum"] = torch.zeros_like(matrix)
        momentum: Tensor = state["momentum"].lerp_(gradient, 1 - MOMENTUM)
        return gradient.lerp(momentum, MOMENTUM).to(self.arithmetic)

    def update_others(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        """Update parameters by torch's AdamW."""
        if not parameters:
            return
        for parameter in parameters:
            state = self.state[parameter]
            if not state:
                state["step"] = torch.tensor(0.0)
                state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        states = [self.state[parameter] for parameter in parameters]
        beta1, beta2 = group["betas"]
        adamw(
            parameters,
            [parameter.grad for parameter in parameters if parameter.grad is not None],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=EPSILON,
            maximize=False,
        )


def sharing(matrix: Tensor) -> dist.ProcessGroup | None:
    """Return the ranks that share the work on matrices of one mesh, those of its longest axis; None if it has none."""
    if not isinstance(matrix, DTensor):
        return None
    mesh = matrix.device_mesh
    longest = max(range(mesh.ndim), key=mesh.size)
    return mesh.get_group(longest) if mesh.size(longest) > 1 else None


def orthogonal(matrix: Tensor) -> Tensor:
    """Return U V^T of a matrix U S V^T (n, m), with singular values between about 0.7 and 1.2 in place of 1."""
    a, b, c = COEFFICIENTS
    # (n, m) -> (k, l) with k <= l: the squares are (k, k).
    x: Tensor = matrix.T if len(matrix) > matrix.shape[1] else matrix
    x = x / (x.norm() + 1e-7)  # no singular value above 1
    for _ in range(ITERATIONS):
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    return x.T.contiguous() if len(matrix) > matrix.shape[1] else x
