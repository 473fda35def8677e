"""Compile layers with torch.compile."""

from __future__ import annotations

import torch
from litgpt.model import Block


def compile_layer(layer: Block) -> None:
    """Compile a layer in place; equal layers share one graph.

    Compile the forward method and not the module: FSDP's hooks stay outside the graph, and parameters keep their
    names.
    """
    layer.forward = torch.compile(layer.forward)
