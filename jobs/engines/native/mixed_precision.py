"""Mixed precision without FSDP: arithmetic in 16 bits on float32 weights. FSDP has its own policy (data_parallel).

Both compute alike, so layouts can be compared: weights are rounded to 16 bits where they are used, and activations have
16 bits from the embedding on, between layers and between pipeline stages.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn


def without_autocast(x: Tensor) -> AbstractContextManager[object]:
    """Return a context in which operators on a tensor's device keep the types of their inputs; meta has no autocast."""
    return nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)


def arithmetic(x: Tensor) -> torch.dtype:
    """Return the type in which matrices multiply a tensor."""
    autocasts = not x.is_meta and torch.is_autocast_enabled(x.device.type)
    return torch.get_autocast_dtype(x.device.type) if autocasts else x.dtype


def autocast(module: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
    """Wrap a module's forward method in autocast to a type of 16 bits, in place."""
    module.forward = torch.autocast(device.type, dtype)(module.forward)
    for part in module.modules():
        if isinstance(part, nn.Embedding):
            # Autocast leaves the rows of a table in float32, and sums of the two types too: every activation between
            # layers would be twice as wide.
            part.register_forward_hook(lambda _part, _tokens, x: x.to(dtype))
