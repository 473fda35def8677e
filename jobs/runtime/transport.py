"""The transports of collectives, from NCCL's own log or gloo's rules; no torch.

Used by the doctor (pairs of nodes), by training (recorded once a run) and by the parser of NCCL's logs.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import MutableMapping
from pathlib import Path

# NCCL's name of the transport that it falls back to without another network.
SOCKETS = "NET/Socket"
SOCKETS_ADVICE = (
    "TCP sockets: where nodes have InfiniBand, NCCL did not find it (NCCL_IB_HCA; libibverbs in a container)."
)
# Whole words only: in a log written by many processes at once, lines may be torn anywhere.
CHANNEL = re.compile(
    r" via (?:(?:NET|COLLNET)/[\w -]{1,40}/\d+(?:\(\d+\))?(?:/GDRDMA)?"
    r"|P2P/(?:CUMEM|MNNVL|IPC|direct pointer|indirect)|SHM(?=/)|direct shared memory)"
)
DEVICE = re.compile(r"/\d+(?:\(\d+\))?(?=/GDRDMA$|$)")
NETWORK = re.compile(r"NCCL INFO (NET/\w+) : Using (\[0\]\S+)")


def nccl_environment(log: Path) -> dict[str, str]:
    """Return the variables with which NCCL logs its connections to a file; set them before NCCL starts."""
    # NCCL expands %h and %p in file names, and %% to a %.
    return {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET", "NCCL_DEBUG_FILE": str(log).replace("%", "%%")}


def listen_to_nccl(log: Path, environment: MutableMapping[str, str] = os.environ) -> None:
    """Set NCCL to log the connections of this process to a file, unless NCCL_DEBUG is set already."""
    # It may be left from an attempt that ended before its first step.
    log.unlink(missing_ok=True)
    if "NCCL_DEBUG" not in environment:
        environment.update(nccl_environment(log))


def read_nccl_transports(log: Path) -> list[str]:
    """Return the transports that NCCL has logged, and remove its log; none if it logged nothing."""
    try:
        text = log.read_text(errors="replace")
        log.unlink()
    except OSError:
        # A missing file or a disk fault does not end training.
        return []
    return nccl_transports(text)


def nccl_networks(log: str) -> list[str]:
    """Return the networks that NCCL found, each with its first device: `NET/IB [0]mlx5_0:1/IB`."""
    return sorted({" ".join(found) for found in NETWORK.findall(log)})


def nccl_transports(log: str) -> list[str]:
    """Return the transports of NCCL's channels, without device: `NET/IB/GDRDMA`, `NET/Socket`, `P2P/CUMEM`, `SHM`."""
    return sorted({transport_of(channel) for channel in CHANNEL.finditer(log)})


def transport_of(channel: re.Match[str]) -> str:
    """Return the transport of a channel; older versions of NCCL spell shared memory out."""
    over = channel[0].removeprefix(" via ")
    return "SHM" if over == "direct shared memory" else DEVICE.sub("", over)


def gloo_transports() -> list[str]:
    """Return TCP with gloo's interface: GLOO_SOCKET_IFNAME, else that of the host's own name."""
    import psutil  # noqa: PLC0415 - imported late: a report uses this module without interfaces

    interface = os.environ.get("GLOO_SOCKET_IFNAME")
    if interface:
        return [f"TCP over {interface}"]
    try:
        address = socket.gethostbyname(socket.gethostname())
    except OSError:
        return ["TCP over loopback, since the host's own name does not resolve"]
    for name, addresses in psutil.net_if_addrs().items():
        if address in {entry.address for entry in addresses}:
            return [f"TCP over {name}"]
    return [f"TCP over {'lo' if address.startswith('127.') else address}"]
