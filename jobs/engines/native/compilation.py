"""Compile layers with torch.compile."""

from __future__ import annotations

import warnings
from itertools import permutations

import torch
import torch._inductor.config
import torch.distributed as dist
from litgpt.model import Block
from torch import Tensor, nn
from torch.distributed._symmetric_memory import enable_symm_mem_for_group

from jobs.layout import layout_of, sequence_parallel
from jobs.parallelism import TP
from jobs.schema import Run


def compile_layers(layers: list[Block]) -> None:
    """Compile each layer in place, whole or not at all; equal layers share one graph.

    Compile the forward method and not the module: FSDP's hooks stay outside the graph, and parameters keep their
    names. Whatever would break the graph, or compile layers one by one, is an error: the rest would run uncompiled.
    """
    # DDP would cut every graph at its buckets, so that they overlap with the backward pass of the one large graph.
    torch._dynamo.config.optimize_ddp = False  # noqa: SLF001 (torch.compile has no argument for it)
    for layer in layers:
        layer.forward = torch.compile(layer.forward, fullgraph=True)


def overlaps_tp(run: Run, device: torch.device) -> bool:
    """Return whether compiled products overlap with TP's collectives.

    The ranks of a TP group write into each other's memory, so they are NVIDIA GPUs of one node with such links.
    Without sequence parallelism there is nothing to cut: an all-reduce needs the whole product.
    """
    return (
        run.engine.compile
        and run.engine.overlap_communication
        and run.parallelism.tensor > 1
        and sequence_parallel(run)
        and device.type == "cuda"
        and torch.version.hip is None
        and not layout_of(run).crosses_nodes(TP)
        and torch.cuda.device_count() >= run.parallelism.tensor
        and all(torch.cuda.can_device_access_peer(*pair) for pair in permutations(range(torch.cuda.device_count()), 2))
    )


def overlap_tp(group: dist.ProcessGroup) -> None:
    """Let products be cut into pieces, each computed while the next one is gathered, or the last one is reduced."""
    torch._inductor.config._micro_pipeline_tp = True  # noqa: SLF001 (torchtitan sets it too: torch has no public name)
    with warnings.catch_warnings():
        # Called unnecessary by torch 2.11 to 2.13, whose compiler leaves groups alone for which it was not called.
        warnings.simplefilter("ignore", FutureWarning)
        enable_symm_mem_for_group(group.group_name)


def await_embeddings(wte: nn.Module) -> None:
    """Let TP's embedding return plain tensors, in place.

    It returns tensors that are still being reduced; a compiled layer would take them as such, and its backward pass
    would return gradients of another type, at which torch fails. Any operator waits for the reduction.
    """
    wte.register_forward_hook(awaited)


def awaited(_module: nn.Module, _inputs: object, output: Tensor) -> Tensor:
    """Return the output, complete."""
    return output + 0
