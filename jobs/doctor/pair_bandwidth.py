"""Measure the all-reduce bandwidth of pairs of nodes: nccl between GPUs, gloo between CPUs. Runs on the nodes.

Needs torch, unlike the rest of the doctor.
"""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from jobs.doctor.outliers import rounds
from jobs.files import read_text
from jobs.ranks import Rank
from jobs.runtime.store import met_at, refuse_strangers
from jobs.runtime.transport import (
    gloo_transports,
    nccl_environment,
    nccl_networks,
    nccl_transports,
    send_gloo_as_nccl,
)

# Large enough that latency is negligible, small enough for the memory of any node.
BYTES = {"cuda": 256 * 2**20, "cpu": 32 * 2**20}
WARM_UPS = 2
REPEATS = 5
TIMEOUT = timedelta(seconds=60)


def measure(names: list[str], place: Rank, directory: Path) -> dict[str, Any]:
    """Return the GB/s of this node with each other node, and the transports; every pair is measured once."""
    rank = place.rank
    cuda = torch.cuda.is_available()
    log = directory / f"nccl-{rank}.log"
    if cuda:
        os.environ |= nccl_environment(log)
    send_gloo_as_nccl()
    # A gloo group synchronizes the rounds, whatever backend the pairs use.
    meeting = directory / "pairs-rendezvous.json"
    store = met_at(meeting, place, TIMEOUT)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=len(names), timeout=TIMEOUT)
    refuse_strangers(meeting, place)
    device = torch.device("cuda", 0) if cuda else torch.device("cpu")
    speeds: dict[str, float] = {}
    for pairs in rounds(len(names)):
        dist.barrier()
        for pair in pairs:
            if rank in pair:
                (other,) = set(pair) - {rank}
                speeds[names[other]] = gb_per_s(pair, device)
    dist.barrier()
    dist.destroy_process_group()
    printed = read_text(log) if log.exists() else ""
    return {
        "backend": "nccl" if cuda else "gloo",
        "gb_per_s": speeds,
        "transports": [*nccl_networks(printed), *nccl_transports(printed)] if cuda else gloo_transports(),
    }


def gb_per_s(pair: tuple[int, int], device: torch.device) -> float:
    """Return the bus bandwidth of an all-reduce in GB/s.

    Bus bandwidth is bytes / time x 2 (n - 1) / n (nccl-tests, PERFORMANCE.md); for n = 2 the factor is 1.
    """
    group = dist.new_group(
        list(pair), timeout=TIMEOUT, backend="nccl" if device.type == "cuda" else "gloo", use_local_synchronization=True
    )
    bytes_ = BYTES[device.type]
    numbers = torch.zeros(bytes_ // 4, device=device)
    took = []
    for _ in range(WARM_UPS + REPEATS):
        dist.barrier(group)
        synchronize(device)
        started = time.perf_counter()
        dist.all_reduce(numbers, group=group)
        synchronize(device)
        took.append(time.perf_counter() - started)
    dist.destroy_process_group(group)
    return bytes_ / median(took[WARM_UPS:]) / 1e9


def synchronize(device: torch.device) -> None:
    """Wait for the queued work of the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
