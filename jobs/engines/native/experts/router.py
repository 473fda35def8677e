"""The router of a mixture: it chooses k of n experts for each token, and their shares in its result.

Without `model.router`: the k highest products s of a token and the experts' vectors, and softmax over these k.

With it (DeepSeek-V2, arXiv:2405.04434; V3, arXiv:2412.19437, section 2.1.2), in float32:

    a = softmax(s) or sigmoid(s)                     (n,) affinities of the experts
    c = a, or a + b with DeepSeek-V3's sigmoid       b (n,) is no parameter and changes the choice only
    groups of consecutive experts: only those in the groups with the highest sums of their best c can be chosen
    e = top k of c,   p = a_e                        (k,)
    p / sum(p) if normalized, times the scale        (k,) shares
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jobs.engines.native.mixed_precision import without_autocast

BIAS = "e_score_correction_bias"
"""The buffer of b, by its name in LitGPT and Hugging Face."""
INPUTS = "sigmoid_inputs"
"""Name of scores that multiply inputs of experts (jobs.schema.RouterScores)."""


class Routed(NamedTuple):
    """The choice of a router for tokens (mbs, seq)."""

    scores: Tensor
    """(mbs, seq, n), whose softmax is each token's distribution over the experts."""
    chosen: Tensor
    """(mbs, seq, k), numbers of experts."""
    shares: Tensor
    """(mbs, seq, k), weights of their results, float32."""


class Router(nn.Linear):
    """A router by affinities of all experts, with the weight of the linear layer that it was."""

    settings: dict[str, Any]
    """The fields of jobs.schema.Router."""

    def route(self, x: Tensor, count: int) -> Routed:
        """Return the choice of `count` experts for x (mbs, seq, hidden)."""
        settings = self.settings
        with without_autocast(x):
            scores = F.linear(x.float(), self.weight.float())
        if settings["scores"] in {"sigmoid", INPUTS}:
            # softmax(log a) = a / sum(a), of which the balance loss takes the mean.
            affinities, scores = scores.sigmoid(), F.logsigmoid(scores)
        else:
            affinities = scores.softmax(-1)
        chosen = self.choice(affinities.detach()).topk(count).indices
        shares = affinities.gather(-1, chosen)
        if settings["normalize"]:
            shares = shares / (shares.sum(-1, keepdim=True) + 1e-20)  # transformers' constant
        return Routed(scores, chosen, shares * settings["scale"])

    def choice(self, affinities: Tensor) -> Tensor:
        """Return the numbers (mbs, seq, n) whose highest ones are chosen: -inf for experts of other groups."""
        settings = self.settings
        found = affinities
        if settings["scores"] == "sigmoid":
            found = found + self.get_buffer(BIAS)
        if settings["groups"] == 1:
            return found
        grouped = found.unflatten(-1, (settings["groups"], -1))
        best = grouped.topk(settings["scores_per_group"]).values.sum(-1)
        allowed = torch.zeros_like(best, dtype=torch.bool)
        allowed.scatter_(-1, best.topk(settings["chosen_groups"]).indices, value=True)
        result: Tensor = grouped.masked_fill(~allowed[..., None], -torch.inf).flatten(-2)
        return result


def route(gate: nn.Module, x: Tensor, count: int) -> Routed:
    """Return the choice of a mixture's router, which may have adapters, for x (mbs, seq, hidden)."""
    if isinstance(gate, Router):
        return gate.route(x, count)
    scores = gate(x)
    highest, chosen = scores.topk(count)
    return Routed(scores, chosen, highest.softmax(-1, dtype=torch.float32))


def use_router(gate: nn.Linear, settings: dict[str, Any]) -> None:
    """Turn the linear layer of a mixture into a Router, in place; its parameter keeps its name."""
    gate.__class__ = Router
    gate.settings = settings  # type: ignore[assignment]  # its new class's
    if settings["scores"] == "sigmoid":
        gate.register_buffer(BIAS, torch.zeros(gate.out_features))
