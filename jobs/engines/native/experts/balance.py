"""The load of experts: its imbalance, and a loss that balances it.

The loss of a sequence of T tokens, each with k of n experts, is that of DeepSeek-V3 (arXiv:2412.19437, equations 17 to
20), in which Switch Transformers' (arXiv:2101.03961, equation 4) is taken over each sequence:

    f_i = n / (k T) * tokens of expert i         P_i = mean over tokens of softmax(scores)_i
    L = sum over i of f_i P_i                    1 if all are equal

f has no gradient. The step adds the weight times the mean of L over the sequences of the global batch, summed over
layers, so it depends on no layout. Padding counts as tokens.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class WithLoss(torch.autograd.Function):
    """A tensor, and a loss that backward adds with weight 1: the loss has no other way to the last rank."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor, _loss: Tensor) -> Tensor:
        """Return the tensor."""
        return x.view_as(x)

    @staticmethod
    def backward(_ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        """Return the tensor's gradient, and the loss's."""
        return gradients[0], gradients[0].new_ones((), dtype=torch.float32)


def with_balance(shares: Tensor, scores: Tensor, chosen: Tensor, weight: float) -> Tensor:
    """Return shares whose backward adds the gradient of the loss of all sequences, times `weight`.

    scores (mbs, seq, experts) and chosen (mbs, seq, k) are the router's.
    """
    counts = chosen.new_zeros(len(chosen), scores.shape[-1]).scatter_add_(
        1, chosen.flatten(1), torch.ones_like(chosen).flatten(1)
    )
    load = counts * (scores.shape[-1] / chosen[0].numel())
    balance = (load * scores.softmax(-1, dtype=torch.float32).mean(1)).sum()
    result: Tensor = WithLoss.apply(shares, weight * balance)  # type: ignore[no-untyped-call]  # torch has no types for it
    return result


def summed_loads(counts: dict[int, Tensor], layers: int, experts: int, device: torch.device) -> Tensor:
    """Return the tokens of each expert (layers, experts) of all ranks.

    `counts` are those of the layers of this rank, by their numbers; every rank calls it. Ranks of a TP group count the
    same tokens, which changes no quotient.
    """
    loads = torch.zeros(layers, experts, device=device)
    for layer, count in counts.items():
        loads[layer] = count
    dist.all_reduce(loads)
    return loads


def imbalance(loads: Tensor) -> Tensor:
    """Return the tokens of a layer's busiest expert over the mean of its experts, mean over layers.

    loads are (layers, experts).
    """
    return (loads.amax(1) / loads.mean(1)).mean()


def shift_bias(bias: Tensor, load: Tensor, speed: float) -> None:
    """Make experts with more tokens than the mean less likely to be chosen, and others more likely, in place.

    bias (experts,) += speed * sign(mean load - load), DeepSeek-V3's balance without a loss (arXiv:2412.19437, section
    2.1.2; arXiv:2408.15664). load (experts,) is that of a step.
    """
    bias.add_((load.mean() - load).sign(), alpha=speed)
