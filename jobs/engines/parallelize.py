"""The one place where a model is cut over ranks, technique after technique in their order."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from jobs.engines.data_parallel import replicate, shard
from jobs.engines.model import checkpoint_values, empty_model, fill, random_values
from jobs.layout import AXES, Layout
from jobs.schema import Run, Strategy


def device_mesh(layout: Layout, device: torch.device) -> DeviceMesh:
    """The rank grid as torch's device mesh, axes named as in jobs.layout."""
    return init_device_mesh(device.type, layout.shape, mesh_dim_names=AXES)


def parallel_model(run: Run, mesh: DeviceMesh, device: torch.device) -> nn.Module:
    """The run's model on this rank, with its weights: forward(tokens (mbs, seq)) -> logits (mbs, seq, vocab)."""
    gpt = empty_model(run.model, run.job.sequence_length)
    if run.parallelism.strategy is Strategy.fsdp:
        shard(gpt, run, mesh)
    start = run.job.init_from
    fill(
        gpt,
        device,
        checkpoint_values(Path(start), device) if start else random_values(gpt, run.job.seed, device),
    )
    return replicate(gpt, mesh) if run.parallelism.strategy is Strategy.ddp else gpt
