"""What pairs of nodes reach in an all-reduce: over nccl between GPUs, over gloo between CPUs; runs on the nodes.

Imported where torch is known to be: the rest of the doctor does without.
"""

from __future__ import annotations

import os
import re
import socket
import time
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import torch
import torch.distributed as dist

from jobs.doctor.outliers import rounds

# Large enough that latency does not count, small enough for any node's memory.
BYTES = {"cuda": 256 * 2**20, "cpu": 32 * 2**20}
WARM_UPS = 2
REPEATS = 5
TIMEOUT = timedelta(seconds=60)


def measure(names: list[str], rank: int, port: int, directory: Path) -> dict[str, Any]:
    """This node's GB/s with each other one, every pair of all nodes measured once, and by which transport."""
    cuda = torch.cuda.is_available()
    log = directory / f"nccl-{rank}.log"
    if cuda:
        os.environ |= {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,GRAPH", "NCCL_DEBUG_FILE": str(log)}
    # CPUs keep the rounds together, whatever the pairs use.
    meeting = f"tcp://{names[0]}:{port}"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=len(names), timeout=TIMEOUT)
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
    return {
        "backend": "nccl" if cuda else "gloo",
        "gb_per_s": speeds,
        "transports": nccl_transports(log.read_text(errors="replace")) if cuda and log.exists() else gloo_transport(),
    }


def gb_per_s(pair: tuple[int, int], device: torch.device) -> float:
    """Bus bandwidth of an all-reduce of two, which for two is bytes by time."""
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
    """Wait for the device's queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def gloo_transport() -> list[str]:
    """TCP, and the interface that gloo takes: the one told, or that of the host's own name."""
    told = os.environ.get("GLOO_SOCKET_IFNAME")
    if told:
        return [f"TCP over {told}"]
    try:
        address = socket.gethostbyname(socket.gethostname())
    except OSError:
        return ["TCP over loopback, since the host's own name does not resolve"]
    for name, addresses in psutil.net_if_addrs().items():
        if address in {entry.address for entry in addresses}:
            return [f"TCP over {name}"]
    return [f"TCP over {'lo' if address.startswith('127.') else address}"]


def nccl_transports(log: str) -> list[str]:
    """The networks that NCCL says it uses, and the ways that its channels take: NET/IB/0/GDRDMA, NET/Socket/0, ..."""
    networks = re.findall(r"NCCL INFO (NET/\w+) : Using (\[0\]\S+)", log)
    ways = re.findall(r"\bvia ((?:NET|P2P|SHM)\S*)", log)
    return sorted({" ".join(found) for found in networks} | set(ways))
