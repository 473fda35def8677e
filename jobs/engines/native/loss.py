"""The loss: cross-entropy summed over labels, from whole logits or from some rows of them at a time."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Replicate

from jobs.data.dataset import IGNORED
from jobs.schema import Loss

# Labels whose logits are in memory at once, and in float32: 1024 x 32000 of them are 131 MB.
CHUNK = 1024


def summed_loss(kind: Loss, hidden: Tensor, head: nn.Module, targets: Tensor) -> Tensor:
    """Cross-entropy summed over labels; hidden (mbs, seq, hidden), targets (mbs, seq), -100 where no loss is taken.

    Called inside the forward pass that FSDP gathers the head's weight for.
    """
    if kind is Loss.chunked:
        return chunked(hidden, head.get_parameter("weight"), targets)
    return whole(head(hidden), targets)


def whole(logits: Tensor, targets: Tensor) -> Tensor:
    """From all logits (mbs, seq, vocab), which TP may have cut along the vocabulary."""
    loss = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum")
    return loss.to_local() if isinstance(loss, DTensor) else loss


def chunked(hidden: Tensor, weight: Tensor, targets: Tensor, size: int = CHUNK) -> Tensor:
    """From hidden states and the head's weight, `size` labels at a time; positions without a label cost nothing."""
    group = None
    if isinstance(weight, DTensor):
        if not isinstance(hidden, DTensor):
            hidden = DTensor.from_local(hidden, weight.device_mesh, [Replicate()], run_check=False)
        # Each rank's rows of the weight give a part of the gradient.
        hidden = hidden.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])
        group, weight = weight.device_mesh.get_group(), weight.to_local()
    device = hidden.device.type
    if torch.is_autocast_enabled(device):
        hidden, weight = (x.to(torch.get_autocast_dtype(device)) for x in (hidden, weight))
    labelled = targets != IGNORED
    loss: Tensor = LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]  # torch has no types for it
        hidden[labelled], weight, targets[labelled], size, group
    )
    return loss


class LinearCrossEntropy(torch.autograd.Function):
    """Cross-entropy of hidden @ weight.T, whose logits live for one chunk: gradients are computed in the forward pass.

    torch.nn.functional.linear_cross_entropy does the same, but returns the sum in the type of the hidden states (three
    digits of it in bfloat16) and does not know a weight whose rows TP cut.
    """

    @staticmethod
    def forward(  # noqa: PLR0917 (torch passes them by position)
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, size: int, group: dist.ProcessGroup | None
    ) -> Tensor:
        """Sum over targets (n) of hidden (n, hidden) and this rank's rows of the weight (vocab / tp, hidden)."""
        rows = len(weight)
        own = targets - (dist.get_rank(group) * rows if group else 0)
        loss = torch.zeros((), device=hidden.device)
        hidden_gradient = torch.empty_like(hidden)
        weight_gradient = torch.zeros_like(weight, dtype=torch.float32)
        for h, row, gradient in zip(hidden.split(size), own.split(size), hidden_gradient.split(size), strict=True):
            logits = (h @ weight.T).float()
            top = logits.amax(1, keepdim=True)
            if group:
                dist.all_reduce(top, dist.ReduceOp.MAX, group)
            logits.sub_(top)
            here = ((row >= 0) & (row < rows)).float()[:, None]
            place = row.clamp(0, rows - 1)[:, None]
            of_target = logits.gather(1, place) * here
            total = logits.exp_().sum(1, keepdim=True)
            if group:
                both = torch.cat([of_target, total])
                dist.all_reduce(both, group=group)
                of_target, total = both.split(len(h))
            loss += (total.log() - of_target).sum()
            if ctx.needs_input_grad[0]:  # not in an evaluation
                # The softmax, less one at the target.
                error = logits.div_(total).scatter_add_(1, place, -here).to(h.dtype)
                torch.mm(error, weight, out=gradient)
                if error.dtype == weight_gradient.dtype:
                    weight_gradient.addmm_(error.T, h)
                else:
                    weight_gradient += error.T @ h
        ctx.save_for_backward(hidden_gradient, weight_gradient.to(weight.dtype))
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients that forward left, times that of the loss."""
        hidden_gradient, weight_gradient = ctx.saved_tensors
        return hidden_gradient * gradients[0], weight_gradient * gradients[0], None, None, None
