"""AdamW in float32 whose moments of matrices are kept in 8 bits (https://arxiv.org/abs/2110.02861).

A block of a row has one scale, its largest magnitude, and each number the nearest of 256 values in [-1, 1] times it:

    x = scale code[i],  scale = max |x|

The values lie close together near 0 and near their decade's start (the paper's dynamic code), so that numbers of seven
decades share a block. codes have the shape of their matrix and scales its rows, both sharded as it is: checkpoints
contain them as they are, and another layout divides them anew. (torchao's optimizer keeps a shard in 8 bits or in
float32 by its size, and blocks may cross rows, so that another layout cannot read its states.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from jobs.engines.native.optimizers.adamw_8bit import block_of
from jobs.engines.native.updates.rounded_adamw import EPSILON, pieces, sharded_gradient

DECADES = 7
IN_FLOAT32 = "exp_avg", "exp_avg_sq"
IN_8_BITS = "exp_avg_codes", "exp_avg_scales", "exp_avg_sq_codes", "exp_avg_sq_scales"
"""States; torch would read numbers of an AdamW's checkpoint into codes with their names."""
Code = Callable[[torch.device], Tensor]
TINY = torch.finfo(torch.float32).tiny


class EightBitAdamW(Optimizer):
    """AdamW; vectors have the states of torch's AdamW."""

    def __init__(
        self, parameters: Iterable[Any], *, lr: float, betas: tuple[float, float], weight_decay: float
    ) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # nothing computes the loss again
        """Update every parameter that has a gradient."""
        del closure
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.update(group, parameter)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state as it is: torch would convert codes and scales to the type of weights."""
        super().load_state_dict({**state_dict, "state": {}})
        saved, own = (
            [each for group in groups for each in group["params"]]
            for groups in (state_dict["param_groups"], self.param_groups)
        )
        self.state.update(
            {
                parameter: dict(state_dict["state"][key])
                for key, parameter in zip(saved, own, strict=True)
                if key in state_dict["state"]
            }
        )

    def update(self, group: dict[str, Any], parameter: Tensor) -> None:
        """Update a parameter and its moments."""
        state = self.state[parameter]
        if not state:
            state |= first_state(parameter)
        state["step"] += 1
        step = int(state["step"])
        beta1, beta2 = group["betas"]
        rate, decay = group["lr"], group["weight_decay"]
        names = IN_8_BITS if (in_8_bits := parameter.ndim > 1) else IN_FLOAT32
        for weight, gradient, *moments in pieces(
            parameter, sharded_gradient(parameter), *(state[name] for name in names)
        ):
            if not weight.numel():  # a rank with fewer rows than there are ranks
                continue
            m, v = (decoded(mean_code, *moments[:2]), decoded(square_code, *moments[2:])) if in_8_bits else moments
            # m = b1 m + (1 - b1) g, v = b2 v + (1 - b2) g^2, w = w (1 - lr decay) - lr m' / (sqrt(v') + eps), where
            # m' and v' are m and v divided by 1 - b^step.
            g = gradient.float()
            m.lerp_(g, 1 - beta1)
            v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
            divisor = (v / (1 - beta2**step)).sqrt_().add_(EPSILON)
            weight.copy_(weight.float().mul_(1 - rate * decay).addcdiv_(m, divisor, value=-rate / (1 - beta1**step)))
            if in_8_bits:
                encode(mean_code, m, *moments[:2])
                encode(square_code, v, *moments[2:])


def first_state(parameter: Tensor) -> dict[str, Tensor]:
    """Return the state of a parameter before its first update, sharded as the parameter."""
    step = {"step": torch.tensor(0.0)}
    if parameter.ndim < 2:
        return step | {name: empty(parameter, torch.float32) for name in IN_FLOAT32}
    block = block_of(parameter.shape[-1])
    return step | {
        name: empty(parameter, torch.uint8) if name.endswith("codes") else empty(parameter, torch.float32, block)
        for name in IN_8_BITS
    }


def empty(parameter: Tensor, dtype: torch.dtype, block: int = 1) -> Tensor:
    """Return zeros for the blocks of a parameter's rows, sharded as the parameter."""
    shape = (*parameter.shape[:-1], parameter.shape[-1] // block)
    if not isinstance(parameter, DTensor):
        return torch.zeros(shape, dtype=dtype, device=parameter.device)
    local = parameter.to_local().shape
    zeros = torch.zeros((*local[:-1], local[-1] // block), dtype=dtype, device=parameter.device)
    stride = torch.empty(shape, device="meta").stride()
    mesh, placements = parameter.device_mesh, parameter.placements
    return DTensor.from_local(zeros, mesh, placements, run_check=False, shape=torch.Size(shape), stride=stride)


def code_of(parts: int) -> list[float]:
    """Return the positive values of the dynamic code: 1, and in decade i of seven the middles of `parts` 2^i parts."""
    values = [1.0]
    for i in range(DECADES):
        count = parts << i
        values += [10.0 ** (i + 1 - DECADES) * (0.1 + 0.9 * (k + 0.5) / count) for k in range(count)]
    return sorted(values)


@cache
def mean_code(device: torch.device) -> Tensor:
    """Return the 256 values of first moments, of both signs, in increasing order."""
    positive = code_of(1)
    return torch.tensor([*(-value for value in positive[-2::-1]), 0.0, *positive], device=device)


@cache
def square_code(device: torch.device) -> Tensor:
    """Return the 255 values of second moments.

    Without the code's 0: a second moment rounded to it would divide a first one by epsilon.
    """
    return torch.tensor(code_of(2), device=device)


def decoded(code: Code, codes: Tensor, scales: Tensor) -> Tensor:
    """Return the numbers (rows, columns) of codes (rows, columns) and scales (rows, blocks)."""
    numbers = code(codes.device)[codes.int()]
    found: Tensor = numbers.unflatten(-1, (scales.shape[-1], -1)).mul_(scales[..., None]).flatten(-2)
    return found


def encode(code: Code, numbers: Tensor, codes: Tensor, scales: Tensor) -> None:
    """Write numbers to codes and scales, each as the nearest value of the code."""
    blocks, values = numbers.unflatten(-1, (scales.shape[-1], -1)), code(numbers.device)
    scales.copy_(blocks.abs().amax(-1))
    # A block of zeros has the scale 0 and may have any codes.
    shares = blocks / scales[..., None].clamp(min=TINY)
    codes.copy_(torch.bucketize(shares.flatten(-2), (values[1:] + values[:-1]) / 2, out_int32=True))
