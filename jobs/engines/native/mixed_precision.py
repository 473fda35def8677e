"""Mixed precision without FSDP: bfloat16 arithmetic on float32 weights. FSDP has its own policy (data_parallel)."""

from __future__ import annotations

import torch
from torch import nn


def autocast(module: nn.Module, device: torch.device) -> None:
    """Wrap a module's forward method in bfloat16 autocast, in place."""
    module.forward = torch.autocast(device.type, torch.bfloat16)(module.forward)
