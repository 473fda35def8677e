"""Compile layers with torch.compile."""

from __future__ import annotations

import os

import torch
from litgpt.model import Block
from torch import Tensor, nn

from jobs.private import cache_on_this_machine


def compile_layers(layers: list[Block]) -> None:
    """Compile each layer in place, whole or not at all; equal layers share one graph.

    Compile the forward method and not the module: FSDP's hooks stay outside the graph, and parameters keep their
    names. Whatever would break the graph, or compile layers one by one, is an error: the rest would run uncompiled.
    """
    # torch's default is a name in /tmp that others can take first, and it runs what it finds there.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_on_this_machine() / "torchinductor"))
    # DDP would cut every graph at its buckets, so that they overlap with the backward pass of the one large graph.
    torch._dynamo.config.optimize_ddp = False  # noqa: SLF001 (torch.compile has no argument for it)
    for layer in layers:
        layer.forward = torch.compile(layer.forward, fullgraph=True)


def await_embeddings(wte: nn.Module) -> None:
    """Let TP's embedding return plain tensors, in place.

    It returns tensors that are still being reduced; a compiled layer would take them as such, and its backward pass
    would return gradients of another type, at which torch fails. Any operator waits for the reduction.
    """
    wte.register_forward_hook(awaited)


def awaited(_module: nn.Module, _inputs: object, output: Tensor) -> Tensor:
    """Return the output, complete."""
    return output + 0
