"""What a rank does with the machine it finds itself on: device, process group, memory, nodes, transports, signals."""

from __future__ import annotations

import ctypes
import resource
import signal
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist

from jobs.causes import STOPS
from jobs.ranks import Rank, node_name
from jobs.runtime.transport import gloo_transports, read_nccl_transports
from jobs.schema import Run


def process_start() -> float:
    """When this process began, in seconds since the epoch."""
    # psutil's own sum rests on a time of boot in whole seconds, and is early by up to one.
    since_boot_s = psutil.Process().create_time() - psutil.boot_time()
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + since_boot_s


def own_device(rank: Rank) -> torch.device:
    """The GPU that a rank computes on, or the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    # A launcher may show each rank all GPUs of the node, or only its own.
    return torch.device("cuda", rank.local_rank if torch.cuda.device_count() > rank.local_rank else 0)


def join(run: Run, rank: Rank) -> torch.device:
    """Choose the device, meet the other ranks; gloo on CPUs, nccl on GPUs."""
    device = own_device(rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(run.engine.cpu_threads_per_rank)
        keep_freed_memory()
    # Twice the watchdog's time, which knows more than a collective that gives up.
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=f"tcp://{rank.master_addr}:{rank.master_port}",
        rank=rank.rank,
        world_size=rank.world_size,
        timeout=timedelta(seconds=2 * run.engine.hang_timeout_s),
        device_id=device if device.type == "cuda" else None,
    )
    return device


def keep_freed_memory() -> None:
    """Let the C library reuse what is freed: it hands large tensors back, and the kernel clears every page anew.

    As PyTorch does for GPUs; numbers of glibc's malloc.h. Another C library stays as it is.
    """
    adjust = getattr(ctypes.CDLL(None), "mallopt", None)
    if adjust is not None:
        trim_threshold, mmap_threshold = -1, -3
        adjust(trim_threshold, 2**31 - 1)
        adjust(mmap_threshold, 2**30)


def synchronize(device: torch.device) -> None:
    """Wait for the device's queued work, so that a clock read after it means something."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def memory_peak_bytes(device: torch.device) -> float:
    """MEMORY_PEAK of this rank."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


def nodes_of_run(planned: int) -> dict[str, Any]:
    """Names of the nodes in rank order, and whether they are emulated: fewer machines booted than nodes planned."""
    here = (node_name(), Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    places = [here]
    if dist.is_initialized():  # LitGPT makes no process group for one process
        places *= dist.get_world_size()
        dist.all_gather_object(places, here)
    machines = {boot for _, boot in places}
    return {
        "nodes": list(dict.fromkeys(name for name, _ in places)),
        "emulated_nodes": len(machines) < planned,
    }


def transports_of_run(nccl_log: Path) -> list[str]:
    """Return the transports of all ranks' collectives; none for a single rank, or if NCCL logged none.

    Every rank calls it, after a step: NCCL connects ranks when they first need it. `nccl_log` is this rank's own.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return []
    own = read_nccl_transports(nccl_log) if "nccl" in dist.get_backend() else gloo_transports()
    ranks = [own] * dist.get_world_size()
    dist.all_gather_object(ranks, own)
    return sorted({transport for transports in ranks for transport in transports})


def largest_of_ranks(own: Sequence[float], device: torch.device) -> list[float]:
    """The largest of each of these numbers over all ranks; every rank calls it."""
    numbers = torch.tensor(own, dtype=torch.float64, device=device)
    dist.all_reduce(numbers, dist.ReduceOp.MAX)
    found: list[float] = numbers.tolist()
    return found


def device_name(device: torch.device) -> str:
    """What the GPU calls itself; for a CPU its model name."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "CPU"


class StopRequest:
    """Set by SIGTERM or SIGUSR2: Slurm's cancellation, preemption and the warning before the time limit."""

    def __init__(self) -> None:
        self.signal = 0
        """The signal that came, 0 before one has; the largest over all ranks is what they act on together."""
        for number in STOPS:
            signal.signal(number, self.ask)

    def ask(self, number: int, _frame: object) -> None:
        """Remember the signal; the loop acts on it at the next step boundary, all ranks together."""
        self.signal = max(self.signal, number)
