"""Feed-forward layers whose closing matrix has an adapter.

The gradient of its A needs the matrix's input: silu(gate) up, or gelu(up). Nothing else needs that, so backward
computes it again from what the activation function keeps.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from litgpt.model import GemmaMLP, GptNeoxMLP, LLaMAMLP
from torch import Tensor, nn

from jobs.engines.native.experts.mixture import LimitedExpert, activated


class AdaptedGptNeoxMLP(GptNeoxMLP):  # type: ignore[misc]  # LitGPT publishes no types
    """LitGPT's layer without a gate."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the result of x (..., hidden), of the same shape."""
        return closed(self.proj, partial(F.gelu, approximate=self.config.gelu_approximate), self.fc(x))


class AdaptedLLaMAMLP(LLaMAMLP):  # type: ignore[misc]
    """LitGPT's layer with SwiGLU."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the result of x (..., hidden), of the same shape."""
        return closed(self.proj, torch.mul, F.silu(self.fc_1(x)), self.fc_2(x))


class AdaptedGemmaMLP(GemmaMLP):  # type: ignore[misc]
    """LitGPT's layer with a gate and GELU."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the result of x (..., hidden), of the same shape."""
        gate = F.gelu(self.fc_1(x), approximate=self.config.gelu_approximate)
        return closed(self.proj, torch.mul, gate, self.fc_2(x))


class AdaptedLimitedExpert(LimitedExpert):
    """An expert with limited SwiGLU."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the result of x (..., hidden), of the same shape."""
        made = partial(activated, limit=self.config.swiglu_limit)
        return closed(self.proj, made, self.fc_1(x), self.fc_2(x))


def closed(proj: nn.Module, made: Callable[..., Tensor], *given: Tensor) -> Tensor:
    """Return an adapted matrix times made(given), which backward computes again."""
    result: Tensor = proj(made(*given), made=made, given=given)
    return result


ADAPTED = {
    GptNeoxMLP: AdaptedGptNeoxMLP,
    LLaMAMLP: AdaptedLLaMAMLP,
    GemmaMLP: AdaptedGemmaMLP,
    LimitedExpert: AdaptedLimitedExpert,
}
