"""Setup of a rank on its machine: device, process group, memory, nodes, transports."""

from __future__ import annotations

import ctypes
import resource
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import Store  # type: ignore[attr-defined]  # torch does not list it

from jobs import metrics as m
from jobs.errors import ConfigError
from jobs.lease import Lease
from jobs.metrics import Metric
from jobs.network import mismatch
from jobs.ranks import Rank, node_name
from jobs.runtime.checkpoints.directory import take_over
from jobs.runtime.exchange import gather
from jobs.runtime.gpus.gpu import is_far, own_index, stay_near
from jobs.runtime.machine import boot_id, cpu_name
from jobs.runtime.startup import Startup
from jobs.runtime.store import met_at
from jobs.runtime.transport import gloo_transports, read_nccl
from jobs.runtime.watchdog import LONGEST_SUSPENSION
from jobs.schema import Network, Run


def own_device(rank: Rank) -> torch.device:
    """Return the GPU of a rank, or the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", own_index(rank.local_rank))


def join(run: Run, lease: Lease, rank: Rank) -> torch.device:
    """Select the device, initialise the process group (gloo on CPUs, nccl on GPUs), and take the run over."""
    device = own_device(rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        stay_near(device)
    else:
        torch.set_num_threads(run.engine.cpu_threads_per_rank)
        keep_freed_memory()
    connect(run, lease, rank, device)
    # Before the checkpoints are listed: from now on no earlier start can complete one.
    take_over(lease, rank)
    return device


def connect(run: Run, lease: Lease, rank: Rank, device: torch.device) -> None:
    """Initialise the process group of all ranks: nccl on GPUs, gloo on CPUs."""
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=store_of_run(run, lease, rank),
        rank=rank.rank,
        world_size=rank.world_size,
        timeout=collective_timeout(run),
        device_id=device if device.type == "cuda" else None,
    )


def store_of_run(run: Run, lease: Lease, rank: Rank) -> Store:
    """Return the store of this start, through which the ranks create their process groups; every rank calls it."""
    return met_at(lease.run.rendezvous(rank.start), rank, collective_timeout(run))


def collective_timeout(run: Run) -> timedelta:
    """Return far more than the watchdog's limit, whose error names the lagging rank.

    Timeouts of collectives go on while Slurm suspends a job, and the watchdog's limit does not.
    """
    return LONGEST_SUSPENSION + timedelta(seconds=2 * run.engine.hang_timeout_s)


def keep_freed_memory() -> None:
    """Make the C library keep freed memory: by default it returns large tensors, and the kernel clears every page.

    PyTorch does the same for GPUs. The numbers are those of glibc's malloc.h; another C library is not changed.
    """
    adjust = getattr(ctypes.CDLL(None), "mallopt", None)
    if adjust is not None:
        trim_threshold, mmap_threshold = -1, -3
        adjust(trim_threshold, 2**31 - 1)
        adjust(mmap_threshold, 2**30)


def synchronize(device: torch.device) -> None:
    """Wait for the device's queued work, so that a clock read afterwards includes it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def on_host(*numbers: Tensor) -> list[float]:
    """Return numbers of the device; inside a step, the only place at which the host waits for it."""
    found: list[float] = torch.stack(numbers).tolist()
    return found


def memory_peaks(device: torch.device) -> dict[Metric, float]:
    """Return the peaks of this rank's memory in bytes."""
    if device.type != "cuda":
        return {m.MEMORY_PEAK: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0}
    return {
        m.MEMORY_PEAK: float(torch.cuda.max_memory_allocated(device)),
        m.MEMORY_RESERVED_PEAK: float(torch.cuda.max_memory_reserved(device)),
    }


def forget_memory_of_startup(device: torch.device) -> None:
    """Begin the peaks of a GPU anew: loading weights may take more than a step."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def nodes_of_run(planned: int, device: torch.device | None = None) -> dict[str, Any]:
    """Return the node names in rank order, their machines, whether nodes are emulated, and ranks far from their GPUs.

    Emulated nodes are on fewer machines than planned.
    """
    here = (node_name(), boot_id(), device is not None and is_far(device))
    # engine=litgpt has no process group for one process.
    places = gather(here) if dist.is_initialized() else [here]
    machines = {boot for _, boot, _ in places}
    return {
        "nodes": list(dict.fromkeys(name for name, *_ in places)),
        "machines": sorted(machines),
        "emulated_nodes": len(machines) < planned,
        "far_from_gpu": [rank for rank, (*_, far) in enumerate(places) if far],
    }


def found_by_ranks(startup: Startup) -> dict[Metric, float]:
    """Return the longest time of imports, and the bytes that all ranks read for them. Every rank calls it."""
    own = [startup.parts[m.STARTUP_IMPORT_TIME], startup.import_read_bytes]
    times_s, read_bytes = zip(*(gather(own) if dist.is_initialized() else [own]), strict=True)
    return {m.SLOWEST_IMPORT_TIME: max(times_s), m.STARTUP_READ_BYTES: sum(read_bytes)}


def transports_of_run(network: Network, nccl_log: Path) -> tuple[list[str], list[str], list[str]]:
    """Return transports of all ranks' collectives, NCCL's devices and version; none for one rank, or without a log.

    Every rank calls it, after a step: NCCL connects ranks when they first need it. `nccl_log` is this rank's own. Raise
    ConfigError on all ranks if one of them found another network than the one asked for.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return [], [], []
    own, devices, versions = read_nccl(nccl_log) if "nccl" in dist.get_backend() else (gloo_transports(), [], [])
    *found, wrong = zip(*gather((own, devices, versions, mismatch(network, own, devices))), strict=True)
    if any(wrong):
        raise ConfigError(next(f"rank {rank}: {text}" for rank, text in enumerate(wrong) if text))
    transports, adapters, libraries = (sorted({each for of_rank in lists for each in of_rank}) for lists in found)
    return transports, adapters, libraries


def largest_of_ranks(own: Sequence[float], device: torch.device) -> list[float]:
    """Return the maximum of each number over all ranks; every rank calls it."""
    numbers = torch.tensor(own, dtype=torch.float64, device=device)
    dist.all_reduce(numbers, dist.ReduceOp.MAX)
    found: list[float] = numbers.tolist()
    return found


def device_name(device: torch.device) -> str:
    """Return the device name of a GPU, or the model name of a CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return cpu_name()
