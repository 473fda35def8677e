"""PyTorch's ring attention on CPUs, for tests: its own ring and merge, with the CPU's attention kernel inside.

The registry of torch.distributed.tensor.experimental knows CUDA kernels only. These handlers add the CPU's flash
attention and its backward, so that what the engine does around context parallelism is computed and compared for real.

Ranks come from a process that has only imported, and not from the test's as those of other tests: forked from a
worker that had run hundreds of tests, rank 0 was ended twice in CI by the C library for a broken heap. Started by
themselves they never were: 250 such runs, and 70,000 rings alone; valgrind and guard pages around tensors found no
write out of bounds.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.experimental._context_parallel import _attention

from jobs.rundir import RunDir
from jobs.work.train import loop as workload
from tests.support import real_run

ATEN = torch.ops.aten
SEQUENCE_DIM = 2
Handler = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


def forward(_operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[DTensor, ...]:
    """The ring of forward attention: output and logsumexp, cut along the sequence."""
    query, key, value, dropout_p, is_causal = (*args, 0.0, False)[:5]
    parts = _attention._templated_ring_attention(
        query.device_mesh.get_group(),
        SEQUENCE_DIM,
        ATEN._scaled_dot_product_flash_attention_for_cpu,
        query=query.to_local(),
        key=key.to_local(),
        value=value.to_local(),
        is_causal=is_causal,
        dropout_p=dropout_p,
        scale=kwargs.get("scale"),
    )
    return cut(parts, query)


def backward(_operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[DTensor, ...]:
    """The ring of backward attention: gradients of query, key and value, cut along the sequence."""
    grad_out, query, key, value, out, logsumexp, dropout_p, is_causal = args
    parts = _attention._templated_ring_attention_backward(
        query.device_mesh.get_group(),
        SEQUENCE_DIM,
        ATEN._scaled_dot_product_flash_attention_for_cpu_backward.default,
        grad_out=grad_out.to_local(),
        grad_out_name="grad_out",
        query=query.to_local(),
        key=key.to_local(),
        value=value.to_local(),
        out=out.to_local(),
        logsumexp=logsumexp.to_local(),
        is_causal=is_causal,
        dropout_p=dropout_p,
        scale=kwargs.get("scale"),
    )
    return cut(parts, query)


def cut(parts: tuple[torch.Tensor, ...], like: DTensor) -> tuple[DTensor, ...]:
    """Local parts as tensors that are cut along the sequence."""
    return tuple(DTensor.from_local(part, like.device_mesh, [Shard(SEQUENCE_DIM)], run_check=False) for part in parts)


HANDLERS: dict[Any, Handler] = {
    ATEN._scaled_dot_product_flash_attention_for_cpu.default: forward,
    ATEN._scaled_dot_product_flash_attention_for_cpu_backward.default: backward,
}


def train(directory: RunDir) -> list[int | None]:
    """Run all ranks of a run to their end with this ring; returns their exit codes."""
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload([__name__])
    return real_run.train(directory, context=server, of_rank=rank)


def rank(directory: Path, rank: int, world: int, start: str) -> None:
    """One rank, to which the CPU's kernels are known, and which needs no GPU."""
    _attention.custom_ops.update(HANDLERS)
    patch.object(workload, "prepare_gpu").start()
    real_run.rank(directory, rank, world, start)
