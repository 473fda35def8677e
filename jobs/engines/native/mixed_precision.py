"""Mixed precision without FSDP: arithmetic in 16 bits on float32 weights. FSDP has its own policy (data_parallel)."""

from __future__ import annotations

import torch
from torch import nn


def autocast(module: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
    """Wrap a module's forward method in autocast to a type of 16 bits, in place."""
    module.forward = torch.autocast(device.type, dtype)(module.forward)
