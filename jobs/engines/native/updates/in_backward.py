"""Weights updated during backward, each as soon as its gradient is complete, which is freed at once.

One gradient exists at a time, with FSDP those of one unit (engine.update_in_backward). What is kept of each is its
norm. The norm of all is known only at the end, so nothing can be clipped.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


def update_in_backward(groups: list[list[nn.Parameter]], optimizer: Optimizer) -> list[list[Tensor]]:
    """Have backward update the parameters; return lists for each group, which it fills with the gradients' norms.

    FSDP runs these hooks too, after it has reduced the gradients of a unit (torch,
    distributed/fsdp/_fully_shard/_fsdp_collectives.py).
    """
    norms: list[list[Tensor]] = [[] for _ in groups]
    for group, found in zip(groups, norms, strict=True):
        for parameter in group:
            parameter.register_post_accumulate_grad_hook(partial(update, optimizer, found))
    return norms


def update(optimizer: Optimizer, norms: list[Tensor], parameter: Tensor) -> None:
    """Update the only parameter that has a gradient at this moment, and free that."""
    assert parameter.grad is not None
    norms += norms_in_float32([parameter.grad])
    optimizer.step()
    parameter.grad = None


def norms_in_float32(gradients: list[Tensor]) -> list[Tensor]:
    """Return the norms of gradients of any type. torch's get_total_norm has theirs: 8 bits with bfloat16 weights."""
    return list(torch._foreach_norm(gradients, 2, dtype=torch.float32))  # noqa: SLF001 (as get_total_norm does)
