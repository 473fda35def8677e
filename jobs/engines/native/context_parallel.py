"""Context parallelism: each sequence cut over the CP group, attention by PyTorch's ring over it (GPUs only)."""

from __future__ import annotations

from contextlib import AbstractContextManager

from litgpt.model import GPT
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.experimental import context_parallel


def apply_cp(gpt: GPT, mesh: DeviceMesh, tokens: list[Tensor]) -> AbstractContextManager[None]:
    """A context in which tokens (n, seq) and the rotary table hold this rank's part of every sequence."""
    return context_parallel(
        mesh,
        buffers=[*tokens, gpt.cos, gpt.sin],
        buffer_seq_dims=[1] * len(tokens) + [0, 0],
        no_restore_buffers=set(tokens),
    )
