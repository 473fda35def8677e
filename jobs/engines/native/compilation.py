"""Compilation of layers by torch.compile."""

from __future__ import annotations

import torch
from litgpt.model import Block


def compile_layer(layer: Block) -> None:
    """Compile a layer in place, one graph for all equal layers.

    Its forward method is compiled and not the module: FSDP's hooks around it stay outside the graph, and parameters
    keep their names.
    """
    layer.forward = torch.compile(layer.forward)
