"""Exchange of plain values between ranks, as JSON in tensors: pickles, as torch's object collectives send, run code."""

from __future__ import annotations

import json
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from jobs.files import parse_json

# A rank sends node names, counts and error texts.
LARGEST_BYTES = 2**20


def gather(value: Any, group: dist.ProcessGroup | None = None) -> list[Any]:
    """Return the JSON values of all ranks of a group, in their order; every rank of it calls this."""
    mine = encoded(value, group)
    sizes = [torch.zeros(1, dtype=torch.int64, device=mine.device) for _ in range(dist.get_world_size(group))]
    dist.all_gather(sizes, torch.tensor([len(mine)], dtype=torch.int64, device=mine.device), group)
    lengths = [allowed(int(size)) for size in sizes]
    padded = torch.zeros(max(lengths), dtype=torch.uint8, device=mine.device)
    padded[: len(mine)] = mine
    rows = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(rows, padded, group)
    return [decoded(row[:length]) for row, length in zip(rows, lengths, strict=True)]


def broadcast(value: Any, group: dist.ProcessGroup | None = None) -> Any:
    """Return the JSON value of the first rank of a group; every rank of it calls this."""
    mine = encoded(value, group)
    size = torch.tensor([len(mine)], dtype=torch.int64, device=mine.device)
    dist.broadcast(size, group=group, group_src=0)
    if dist.get_rank(group) > 0:
        mine = torch.empty(allowed(int(size)), dtype=torch.uint8, device=mine.device)
    dist.broadcast(mine, group=group, group_src=0)
    return decoded(mine)


def encoded(value: Any, group: dist.ProcessGroup | None) -> Tensor:
    """Return a value as bytes, on the device that the group's backend sends from."""
    device = torch.device("cuda", torch.cuda.current_device()) if "nccl" in dist.get_backend(group) else "cpu"
    data = json.dumps(value).encode()
    allowed(len(data))
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device)


def decoded(data: Tensor) -> Any:
    """Return the value of bytes that a rank sent."""
    return parse_json(data.cpu().numpy().tobytes())


def allowed(size: int) -> int:
    """Return the size of a message; raise ValueError if no rank of ours sends such a one."""
    if not 0 < size <= LARGEST_BYTES:
        raise ValueError(f"A rank sends a message of {size} bytes; ranks exchange 1 to {LARGEST_BYTES}.")
    return size
