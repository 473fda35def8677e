"""Time matrix products on every rank."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from jobs import metrics as m
from jobs.lease import Lease
from jobs.ranks import Rank
from jobs.rundir import append_event
from jobs.runtime.exchange import gather
from jobs.runtime.machine import process_start
from jobs.runtime.process_group import device_name, join, nodes_of_run, synchronize
from jobs.runtime.watchdog import Watchdog
from jobs.schema import Run


def measure(run: Run, lease: Lease, rank: Rank) -> None:
    """Record the rate of the slowest rank; every rank calls it."""
    assert run.matmul is not None
    watchdog = Watchdog(lease, rank, run.engine.hang_timeout_s)
    watchdog.begins("meeting the other ranks")
    device = join(run, lease, rank)
    nodes = nodes_of_run(run.nodes)
    if rank.is_first:
        append_event(
            lease.run, "started", attempt=1, restart=0, from_step=0, ranks=run.ranks, **nodes, device=device.type,
            device_name=device_name(device),
        )  # fmt: skip
    left, right = torch.randn(2, run.matmul.size, run.matmul.size, device=device)
    left @ right
    synchronize(device)
    fence = time.perf_counter()
    for _ in range(run.matmul.repeats):
        watchdog.begins("multiplying")
        left @ right
    synchronize(device)
    rate = 2 * run.matmul.size**3 * run.matmul.repeats / (time.perf_counter() - fence)
    slowest = min(gather(rate))
    if rank.is_first:
        append_event(lease.run, "multiplied", **{m.MATRIX_RATE.name: slowest})
        append_event(lease.run, "finished", attempt=1, step=0, **{m.TOTAL_TIME.name: time.time() - process_start()})
    watchdog.stop()
    dist.destroy_process_group()
