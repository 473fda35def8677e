"""Experts of GPT-OSS in Hugging Face's files: one tensor has all experts of a layer, and gate and up in turn.

    mlp.experts.gate_up_proj       (experts, hidden, 2 inner)    columns gate 0, up 0, gate 1, up 1, ...
    mlp.experts.gate_up_proj_bias  (experts, 2 inner)
    mlp.experts.down_proj          (experts, inner, hidden)
    mlp.experts.down_proj_bias     (experts, hidden)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Stacked:
    """Place of a linear layer of experts in such a tensor."""

    name: str
    """Name of the weights in the layer's experts; that of the biases ends in _bias."""
    first: int = 0
    """First of its outputs."""
    step: int = 1
    """Distance to the next one."""

    def name_of(self, kind: str) -> str:
        """Return the name of the tensor of all weights, or of all biases."""
        return self.name if kind == "weight" else f"{self.name}_{kind}"

    def place(self, whole: Tensor, expert: int) -> Tensor:
        """Return the part of a tensor of all experts that is one expert's weight (out, in), or its bias (out,)."""
        return whole[expert].movedim(-1, 0)[self.first :: self.step]


STACKED = {"fc_1": Stacked("gate_up_proj", 0, 2), "fc_2": Stacked("gate_up_proj", 1, 2), "proj": Stacked("down_proj")}
"""Linear layers of an expert, by LitGPT's name."""
