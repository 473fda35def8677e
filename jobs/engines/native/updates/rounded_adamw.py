"""AdamW in float32 on bfloat16 tensors, with stochastic rounding.

bfloat16 has 8 significant bits: rounding to nearest loses an update below 1/512 of a weight, in every step anew.
Rounded up with the probability of the part that is cut off, it is right in the mean. The moments are rounded alike: to
nearest, a second moment that should fall by 1/1,000 a step stands still.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.optim import Optimizer

from jobs.engines.native.load_sharded import local_shard

EPSILON = 1e-8
"""torch.optim.AdamW's default."""
CUT_BITS = 16
"""Bits of a float32 that bfloat16 does not have."""
PIECE = 1 << 22
"""Numbers that are updated at a time, so that their copies in float32 take about 100 MB."""


class RoundedAdamW(Optimizer):
    """AdamW; its states have the names of torch's, so checkpoints of either continue with the other."""

    def __init__(
        self,
        parameters: Iterable[Any],
        *,
        lr: float,
        betas: tuple[float, float],
        weight_decay: float,
        seed: int,
        device: torch.device,
    ) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "weight_decay": weight_decay})
        self.seed = seed
        self.generator = torch.Generator(device)
        # At once: before a checkpoint is read, torch would make them by an update with gradients in bfloat16, which
        # parameters refuse whose gradients are in float32 (jobs.engines.native.states.sums_in_float32).
        for parameter in (each for group in self.param_groups for each in group["params"]):
            self.state[parameter] = {
                "step": torch.tensor(0.0),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # nothing computes the loss again
        """Update every parameter that has a gradient."""
        del closure
        number = 0
        for group in self.param_groups:
            for parameter in group["params"]:
                number += 1
                if parameter.grad is not None:
                    self.update(group, parameter, number)

    def update(self, group: dict[str, Any], parameter: Tensor, number: int) -> None:
        """Update the parameter of this number."""
        state = self.state[parameter]
        state["step"] += 1
        step = int(state["step"])
        # No random state is saved: the numbers follow from seed, parameter, place of the shard and update. A resumed
        # run draws those of an uninterrupted one, and ranks with equal weights draw equal ones.
        key = repr((self.seed, number, offset(parameter), step))
        self.generator.manual_seed(zlib.crc32(key.encode()))
        beta1, beta2 = group["betas"]
        rate, decay = group["lr"], group["weight_decay"]
        gradient_of_shard = sharded_gradient(parameter)
        moments = state["exp_avg"], state["exp_avg_sq"]
        for weight, gradient, mean, square in pieces(parameter, gradient_of_shard, *moments):
            # m = b1 m + (1 - b1) g, v = b2 v + (1 - b2) g^2, w = w (1 - lr decay) - lr m' / (sqrt(v') + eps), where
            # m' and v' are m and v divided by 1 - b^step.
            g = gradient.float()
            m = mean.float().lerp_(g, 1 - beta1)
            v = square.float().mul_(beta2).addcmul_(g, g, value=1 - beta2)
            divisor = (v / (1 - beta2**step)).sqrt_().add_(EPSILON)
            w = weight.float().mul_(1 - rate * decay).addcdiv_(m, divisor, value=-rate / (1 - beta1**step))
            for kept, exact in ((weight, w), (mean, m), (square, v)):
                round_into(kept, exact, self.generator)


def sharded_gradient(parameter: Tensor) -> Tensor | None:
    """Return the gradient of a parameter, sharded as it is: that of an embedding under TP without FSDP is whole."""
    gradient = parameter.grad
    if not isinstance(gradient, DTensor) or not isinstance(parameter, DTensor):
        return gradient
    return gradient.redistribute(placements=parameter.placements)


def round_into(kept: Tensor, exact: Tensor, generator: torch.Generator) -> None:
    """Write float32 numbers to a bfloat16 tensor, each up or down so that its mean is right."""
    # The cut bits are a fraction of the gap between two bfloat16 numbers: adding a uniform fraction carries into the
    # kept bits with that probability. Signs do not matter, since these bits are a magnitude.
    bits = exact.view(torch.int32)
    noise = torch.randint(1 << CUT_BITS, bits.shape, dtype=torch.int32, device=bits.device, generator=generator)
    kept.copy_(noise.add_(bits).bitwise_and_(-(1 << CUT_BITS)).view(torch.float32))


def pieces(*tensors: Tensor | None) -> Iterator[tuple[Tensor, ...]]:
    """Yield the local parts of tensors of one shape, some rows at a time."""
    shards = [local_shard(tensor) for tensor in tensors if tensor is not None]
    row = max(1, shards[0][:1].numel())
    yield from zip(*(shard.split(max(1, PIECE // row)) for shard in shards), strict=True)


def offset(parameter: Tensor) -> tuple[int, ...]:
    """Return the place of a shard in the whole tensor."""
    if not isinstance(parameter, DTensor):
        return (0,) * parameter.ndim
    _, place = compute_local_shape_and_global_offset(parameter.shape, parameter.device_mesh, parameter.placements)
    return tuple(place)
