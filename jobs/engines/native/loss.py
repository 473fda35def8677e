"""The loss: cross-entropy summed over labels, from all logits at once or in chunks.

For a label t and logits z = W h: loss = log Z - z_t with Z = sum_v exp z_v, and d loss / d z = softmax(z) - onehot(t).
A z-loss (job.z_loss, in chunks only) adds c log^2 Z to what is minimized, whose gradient is 2 c log Z softmax(z).
Sums, not means: micro-batches and ranks have unequal numbers of labels, and the step divides by their total.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Replicate

from jobs.data.dataset import IGNORED


def summed_loss(hidden: Tensor, head: nn.Module, targets: Tensor, labels: int) -> Tensor:
    """Return cross-entropy summed over labels: hidden (mbs, seq, hidden), targets (mbs, seq), -100 for no loss.

    At most `labels` of the targets are labels.
    """
    if isinstance(head, ChunkedHead):
        # By name: TP's hooks address the first position.
        return cast(Tensor, head(hidden, targets=targets, labels=labels))
    return whole(head(hidden), targets)


@dataclass
class ZLoss:
    """The loss that keeps log Z near 0 (PaLM, https://arxiv.org/abs/2204.02311, section 5)."""

    weight: float
    """c of c log^2 Z."""
    squares: Tensor | None = None
    """Sum of log^2 Z over the labels of a step so far."""

    def add(self, squares: Tensor) -> None:
        """Add those of a micro-batch."""
        self.squares = squares if self.squares is None else self.squares + squares


class ChunkedHead(nn.Linear):
    """An output head that returns the loss from its logits in chunks: FSDP gathers its weight for its forward pass."""

    size: int
    """Labels per chunk."""
    cap: float | None
    """Model.logits_softcap."""
    z_loss: ZLoss | None = None

    def forward(self, hidden: Tensor, targets: Tensor, labels: int) -> Tensor:  # type: ignore[override]  # a head and its loss
        """Return the summed loss (summed_loss)."""
        return chunked(hidden, self.weight, targets, labels, self.size, self.z_loss, self.cap)


class CappedHead(nn.Linear):
    """An output head with capped logits."""

    cap: float
    """Model.logits_softcap."""

    def forward(self, hidden: Tensor) -> Tensor:
        """Return logits (mbs, seq, vocab)."""
        return capped(super().forward(hidden), self.cap)


def capped(x: Tensor, cap: float) -> Tensor:
    """Return cap tanh(x / cap), which is below `cap`, and near x where x is small (Gemma 2, arXiv:2408.00118)."""
    return (x / cap).tanh() * cap


def whole(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the loss from all logits (mbs, seq, vocab), a DTensor sharded along the vocabulary under TP."""
    # In float32: the sum of exp goes over the whole vocabulary, and bfloat16 has three digits.
    loss = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum")
    return loss.to_local() if isinstance(loss, DTensor) else loss


def chunked(  # noqa: PLR0917 (the tensors of a head and its settings)
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    labels: int,
    size: int,
    z_loss: ZLoss | None = None,
    cap: float | None = None,
) -> Tensor:
    """Return the loss from hidden states and the head's weight (vocab, hidden), `size` labels at a time.

    Its logits are capped (`capped`) if there is a cap.
    Its gradient is also that of the z-loss; its value is not.
    """
    group = None
    if isinstance(weight, DTensor):
        if not isinstance(hidden, DTensor):
            hidden = DTensor.from_local(hidden, weight.device_mesh, [Replicate()], run_check=False)
        # Each TP rank holds some rows of the weight, so its gradient of the hidden states is a partial sum.
        # Under sequence parallelism a gather, (mbs, seq / tp, hidden) -> (mbs, seq, hidden).
        hidden = hidden.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])
        group, weight = weight.device_mesh.get_group(), weight.to_local()
    device = hidden.device.type  # no autocast has meta
    if device != "meta" and torch.is_autocast_enabled(device):
        hidden, weight = (x.to(torch.get_autocast_dtype(device)) for x in (hidden, weight))
    # (mbs, seq, hidden) -> (positions, hidden)
    hidden, targets = hidden.flatten(0, 1), targets.flatten()
    # Positions without a label cost nothing. A selection by a mask would wait for the device to count them.
    chosen = (targets == IGNORED).byte().argsort(stable=True)[:labels]
    loss: Tensor
    loss, squares = LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]  # torch has no types for it
        hidden, weight, targets, chosen, size, group, z_loss.weight if z_loss else 0.0, cap
    )
    if z_loss:
        z_loss.add(squares)
    return loss


class LinearCrossEntropy(torch.autograd.Function):
    """Cross-entropy of hidden @ weight.T that computes its gradients in the forward pass, chunk by chunk.

    Logits of one chunk exist at a time. torch.nn.functional.linear_cross_entropy does the same, but returns the sum in
    the type of the hidden states (three digits in bfloat16) and does not support a weight with rows sharded by TP.
    """

    @staticmethod
    def forward(  # noqa: PLR0917 (torch passes them by position)
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        chosen: Tensor,
        size: int,
        group: dist.ProcessGroup | None,
        of_squares: float,
        cap: float | None,
    ) -> tuple[Tensor, Tensor]:
        """Return the sums of loss and log^2 Z over the chosen of n targets.

        hidden (n, hidden), weight (vocab / tp, hidden): own rows; `of_squares` is the z-loss's c.
        """
        rows = len(weight)
        # Targets as row numbers of this rank; those outside 0 .. rows - 1 belong to other TP ranks, or are no labels.
        first = dist.get_rank(group) * rows if group else 0
        loss, squares = torch.zeros((), device=hidden.device), torch.zeros((), device=hidden.device)
        hidden_gradient = torch.zeros_like(hidden)
        # A frozen head needs none, which is as large as itself in float32.
        trains = ctx.needs_input_grad[1]
        # In float32, since every chunk adds to it and 16 bits would round each sum.
        weight_gradient = torch.zeros_like(weight, dtype=torch.float32) if trains else None
        for positions in chosen.split(size):
            target = targets[positions]
            row, counts = target - first, (target != IGNORED).to(hidden.dtype)[:, None]
            # (chunk, 1) each: whether this rank holds the target's row, and the row, clamped for gather.
            here, place = ((row >= 0) & (row < rows))[:, None], row.clamp(0, rows - 1)[:, None]
            # Without a label a state is 0, and so are its gradients.
            h = hidden[positions] * counts
            logits = (h @ weight.T).float()
            if cap is not None:
                logits.div_(cap).tanh_().mul_(cap)
            log_p = logits.log_softmax(1)
            # (chunk, 1): log Z of this rank's rows.
            log_z = logits[:, :1] - log_p[:, :1]
            del logits
            if group:
                # Normalized over this rank's rows; subtract the logarithm of their share of exp z_v over all TP ranks.
                own, log_z = log_z, log_sum_exp(log_z, group)
                log_p += own - log_z
            if of_squares:
                squares += (log_z.square() * counts).sum()
            # Only one TP rank holds the target.
            of_target = log_p.gather(1, place) * here
            if group:
                dist.all_reduce(of_target, group=group)
            loss -= (of_target * counts).sum()
            if not ctx.needs_input_grad[0]:  # an evaluation
                del log_p
                continue
            # Logits are log p + log Z. d (c tanh(x / c)) / d x = 1 - tanh^2(x / c)
            slope = None if cap is None else (log_p + log_z).div_(cap).square_().neg_().add_(1)
            # softmax(z) - onehot(t), then d hidden = error @ W and d W += error.T @ h.
            softmax = log_p.exp_()
            if of_squares:
                # (1 + 2 c log Z) softmax(z) - onehot(t)
                softmax *= 1 + 2 * of_squares * log_z
            softmax.scatter_add_(1, place, -here.float())
            error = (softmax if slope is None else softmax.mul_(slope)).to(h.dtype)
            del log_p, softmax, slope
            hidden_gradient[positions] = (error @ weight) * counts
            if weight_gradient is not None and error.dtype == weight_gradient.dtype:
                weight_gradient.addmm_(error.T, h)
            elif weight_gradient is not None:
                weight_gradient += error.T @ h
            # Or it would exist next to the logits of the next chunk.
            del error
        ctx.save_for_backward(hidden_gradient, None if weight_gradient is None else weight_gradient.to(weight.dtype))
        ctx.mark_non_differentiable(squares)
        return loss, squares

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients that forward computed, times the gradient of the loss."""
        hidden_gradient, weight_gradient = ctx.saved_tensors
        # Forward computed them for a gradient of 1; here the scale of the step comes in.
        of_weight = None if weight_gradient is None else weight_gradient * gradients[0]
        return hidden_gradient * gradients[0], of_weight, None, None, None, None, None, None


def log_sum_exp(own: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return log sum exp over the ranks of a group, without overflow."""
    top = own.clone()
    dist.all_reduce(top, dist.ReduceOp.MAX, group)
    total = (own - top).exp()
    dist.all_reduce(total, group=group)
    return top + total.log()
