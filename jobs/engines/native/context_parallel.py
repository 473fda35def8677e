"""Context parallelism: each sequence is sharded over the CP group; attention is PyTorch's ring attention (GPUs only).

A causal ring would leave the first ranks idle, since early tokens attend to few others. PyTorch therefore splits a
sequence into 2 x CP pieces and gives rank r the pieces r and 2 x CP - 1 - r (hence the rule on sequence_length).
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from litgpt.model import GPT
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.experimental import context_parallel


def apply_cp(gpt: GPT, mesh: DeviceMesh, tokens: list[Tensor]) -> AbstractContextManager[None]:
    """Return a context that shards tokens (n, seq) and the rotary table (seq, size) along the sequence, in place.

    Inside it they hold seq / CP positions, and scaled_dot_product_attention exchanges keys and values over the ring.
    The rotary table is restored afterwards, the tokens are not: no later pass needs them.
    """
    return context_parallel(
        mesh,
        buffers=[*tokens, gpt.cos, gpt.sin],
        # Tokens are (n, seq), the rotary tables (seq, size).
        buffer_seq_dims=[1] * len(tokens) + [0, 0],
        no_restore_buffers=set(tokens),
    )
