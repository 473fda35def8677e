"""The own time of each rank in a step, which identifies a straggler: in a collective all ranks wait equally long.

A rank's own time is getting its batch, and the forward passes of its transformer layers. These are timed after FSDP has
gathered the weights and outside pipeline transfers, and DDP has no collective there, so they include no wait for
another rank. Megatron's detector times the same
(https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/README_STRAGGLER.md). Only ranks of a tensor or context
group synchronise inside every layer; the shortest time of the group counts for each, because its last rank does not
wait.

Not detected: a rank that is slow only in its backward pass, embedding, head, update or network, and which rank of a
tensor or context group has the slow layers. A rank is compared with the ranks of the same layers; in a pipeline without
replicas there are none.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import nn

from jobs import metrics as m
from jobs.layout import Layout
from jobs.parallelism import INNER_AXES, PP
from jobs.ranks import node_name
from jobs.runtime.exchange import gather

Ready = TypeVar("Ready")
"""The batch of a step."""
EVERY_STEPS = 10
# The most that a window lists: 1,000 ranks must not write 1,000 numbers every few steps.
SLOWEST_RANKS = 16
SLOWEST_NODES = 8


class Pace:
    """The own times of this rank over a window of steps, and the summary of all ranks at its end."""

    def __init__(self, layers: Sequence[nn.Module], layout: Layout, device: torch.device, *, every: int | None) -> None:
        self.layout = layout
        self.device = device
        # Without replicas there is no rank with the same layers to compare with.
        self.every = (EVERY_STEPS if every is None else every) if layout.world_size > layout.degree(PP) else 0
        self.clock = LayerClock(layers if self.every else [], device)
        self.batch_time_s = 0.0
        self.own: list[tuple[float, float]] = []
        self.nodes = gather(node_name()) if self.every else []

    def batch(self, ready: Iterator[Ready]) -> Ready:
        """Return the rank's batch of the next step, and time it."""
        asked = time.perf_counter()
        batch = next(ready)
        self.batch_time_s = time.perf_counter() - asked
        return batch

    def step(self, *, measured: bool) -> dict[str, Any] | None:
        """Add a step that has ended; return the summary at the end of a window, else None.

        All ranks call it after every step with the device synchronised. It costs one all-gather of two numbers per
        window, outside the step time.
        """
        layers_time_s = self.clock.read()
        if not self.every or not measured:
            return None
        self.own.append((self.batch_time_s, layers_time_s))
        if len(self.own) < self.every:
            return None
        mine = torch.tensor([statistics.median(part) for part in zip(*self.own, strict=True)], dtype=torch.float64)
        self.own = []
        parts = torch.empty(2 * self.layout.world_size, dtype=torch.float64, device=self.device)
        dist.all_gather_into_tensor(parts, mine.to(self.device))
        return {"steps": self.every, **summary(parts.cpu().numpy().reshape(-1, 2), self.layout, self.nodes)}


class LayerClock:
    """Times the forward passes of layers on the device, without synchronising it."""

    def __init__(self, layers: Sequence[nn.Module], device: torch.device) -> None:
        self.on_gpu = device.type == "cuda"
        self.events: list[torch.cuda.Event] = []
        self.times_s: list[float] = []
        for layer in layers:
            # Inside FSDP's hooks: after the weights were gathered, before they are freed.
            layer.register_forward_pre_hook(self.mark)
            layer.register_forward_hook(self.mark, prepend=True)

    def mark(self, *_: object) -> None:
        """Record the time at which a layer begins or ends."""
        if self.on_gpu:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self.events.append(event)
        else:
            self.times_s.append(time.perf_counter())

    def read(self) -> float:
        """Return the seconds of the layers since the last call; the device must be synchronised."""
        if self.on_gpu:
            passes = zip(self.events[::2], self.events[1::2], strict=True)
            seconds = math.fsum(begin.elapsed_time(end) for begin, end in passes) / 1000
        else:
            seconds = sum(self.times_s[1::2]) - sum(self.times_s[::2])
        self.events, self.times_s = [], []
        return seconds


def summary(parts: NDArray[np.float64], layout: Layout, nodes: Sequence[str]) -> dict[str, Any]:
    """Return the fields of a `pace` event: fastest rank, median, slowest ranks and nodes by own time over others'.

    `parts` (ranks, 2): time of the batch and of the layers. A node is as slow as the least slow of its ranks, so that
    one slow rank does not make a slow node.
    """
    batch_s, layers_s = parts.T
    # The inner axes are the fastest of the grid, the pipeline is the slowest.
    cut = layout.product(INNER_AXES)
    own_s = batch_s + layers_s.reshape(-1, cut).min(axis=1).repeat(cut)
    others_s = np.concatenate([medians_of_others(ranks_s) for ranks_s in own_s.reshape(layout.degree(PP), -1)])
    slowness = own_s / others_s

    def entry(rank: int) -> dict[str, Any]:
        return {
            "rank": rank,
            "node": nodes[rank],
            m.OWN_TIME.name: own_s[rank].item(),
            m.BATCH_TIME.name: batch_s[rank].item(),
            m.OTHERS_OWN_TIME.name: others_s[rank].item(),
        }

    nodes_ranks = [range(first, first + layout.ranks_per_node) for first in range(0, len(own_s), layout.ranks_per_node)]
    least_slow = [min(ranks, key=lambda rank: slowness[rank]) for ranks in nodes_ranks]
    worst_nodes = sorted(zip(least_slow, nodes_ranks, strict=True), key=lambda node: -slowness[node[0]])
    return {
        "ranks": layout.world_size,
        "fastest": entry(int(own_s.argmin())),
        f"median_{m.OWN_TIME.name}": float(np.median(own_s)),
        "slowest_ranks": [entry(rank) for rank in (-slowness).argsort(kind="stable")[:SLOWEST_RANKS].tolist()],
        "slowest_nodes": [
            {"first_rank": ranks[0], "last_rank": ranks[-1], **entry(rank)}
            for rank, ranks in worst_nodes[:SLOWEST_NODES]
            if 1 < layout.ranks_per_node < layout.world_size
        ],
    }


def medians_of_others(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return for each of at least two values the median of the other values."""
    order = values.argsort(kind="stable")
    place = order.argsort(kind="stable")
    ordered, others = values[order], len(values) - 1
    # The middle of the others is one place later where the value itself is at or before it.
    low, high = (ordered[middle + (middle >= place)] for middle in ((others - 1) // 2, others // 2))
    return np.asarray((low + high) / 2)
