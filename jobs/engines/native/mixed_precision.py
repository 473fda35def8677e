"""Mixed precision where FSDP does not do it: bfloat16 arithmetic on float32 weights."""

from __future__ import annotations

import torch
from torch import nn


def autocast(module: nn.Module, device: torch.device) -> None:
    """Run a module's forward pass in place under bfloat16 autocast."""
    module.forward = torch.autocast(device.type, torch.bfloat16)(module.forward)
