"""The transports of collectives, from NCCL's own log or gloo's rules; no torch.

Used by the doctor (pairs of nodes), by training (recorded once a run) and by the parser of NCCL's logs.
"""

from __future__ import annotations

import ctypes
import os
import re
import socket
from collections.abc import MutableMapping, Sequence
from pathlib import Path

from jobs.errors import ConfigError
from jobs.files import read_text
from jobs.network import GLOO, variables
from jobs.schema import Network

SOCKETS_ADVICE = (
    "TCP sockets: if nodes have InfiniBand, NCCL did not find it (check NCCL_IB_HCA, and libibverbs in a container)."
)
# Only whole words match: concurrent writers truncate the lines of a shared log anywhere.
CHANNEL = re.compile(
    r" via (?:(?:NET|COLLNET)/[\w -]{1,40}/\d+(?:\(\d+\))?(?:/GDRDMA)?"
    r"|P2P/(?:CUMEM|MNNVL|IPC|direct pointer|indirect)|SHM(?=/)|direct shared memory)"
)
DEVICE = re.compile(r"/\d+(?:\(\d+\))?(?=/GDRDMA$|$)")
NETWORK = re.compile(r"NCCL INFO (NET/\w+) : Using (\[0\]\S+)")
DEVICES = re.compile(r"(Bootstrap|NET/IB|NET/Socket) ?: Using (.*)")
PORT = re.compile(r"\[\d+\](\S+:\d+/(?:IB|RoCE))\b")
VERSION = re.compile(r"\b([NR]CCL) version {0,9}:? {0,9}(\d+\.\d[\w.+-]{0,40})")
# An interface followed by its address.
INTERFACE = re.compile(r"(?:^| |\])([\w.@-]{1,40}):\S+<\d+>")


def nccl_environment(log: Path) -> dict[str, str]:
    """Return the variables that make NCCL log its connections to this file; set them before NCCL starts."""
    # NCCL expands %h and %p in the file name; %% is a literal %.
    return {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET", "NCCL_DEBUG_FILE": str(log).replace("%", "%%")}


def listen_to_nccl(log: Path, environment: MutableMapping[str, str] = os.environ) -> None:
    """Make NCCL log the connections of this process to a file, unless the user configured its log."""
    # Left by an attempt that did not reach its first step.
    log.unlink(missing_ok=True)
    if "NCCL_DEBUG" not in environment:
        environment.update(nccl_environment(log))


def read_nccl(log: Path) -> tuple[list[str], list[str], list[str]]:
    """Return the transports, devices and version that NCCL has logged, and remove its log; empty if it logged none."""
    try:
        text = read_text(log)
        log.unlink()
    except OSError:
        # The file is missing or cannot be read, which must not end the training.
        return [], [], []
    return nccl_transports(text), nccl_devices(text), nccl_versions(text)


def nccl_devices(log: str) -> list[str]:
    """Return the adapters or interfaces of NCCL's network: `mlx5_0:1/RoCE`, `eth0`."""
    lists = (devices_of(line)[1] for line in log.splitlines() if " NCCL INFO NET/" in line)
    return sorted({device for devices in lists for device in devices})


def nccl_versions(log: str) -> list[str]:
    """Return the names and versions of the libraries that wrote a log: `NCCL 2.26.2+cuda12.4`, `RCCL 2.18.3+hip6.0`."""
    return sorted({f"{name} {version}" for name, version in VERSION.findall(log)})


def devices_of(line: str) -> tuple[str | None, list[str]]:
    """Return the network of a line that lists devices, and the devices; None if it lists none."""
    found = DEVICES.search(line)
    if found is None:
        return None, []
    return found[1], (PORT if found[1] == "NET/IB" else INTERFACE).findall(found[2])


def nccl_networks(log: str) -> list[str]:
    """Return the networks that NCCL found, each with its first device: `NET/IB [0]mlx5_0:1/IB`."""
    return sorted({" ".join(found) for found in NETWORK.findall(log)})


def nccl_transports(log: str) -> list[str]:
    """Return the transports of NCCL's channels, without device: `NET/IB/GDRDMA`, `NET/Socket`, `P2P/CUMEM`, `SHM`."""
    return sorted({transport_of(channel) for channel in CHANNEL.finditer(log)})


def transport_of(channel: re.Match[str]) -> str:
    """Return the transport of a channel; older versions write `direct shared memory` for SHM."""
    over = channel[0].removeprefix(" via ")
    return "SHM" if over == "direct shared memory" else DEVICE.sub("", over)


def use_network(network: Network, environment: MutableMapping[str, str] = os.environ) -> None:
    """Set the variables of a network and load its library; call it before torch is loaded.

    Raise ConfigError for an interface that this node does not have, and a library that cannot be loaded.
    """
    if network.interface is not None and network.interface not in (own := interfaces()):
        raise ConfigError(
            f"network.interface={network.interface}: {socket.gethostname()} has no such interface that is up and has "
            f"an address. It has {', '.join(own)}. Set network.interface to one that every node has, or to null."
        )
    environment.update(variables(network))
    if network.library is not None:
        try:
            # torch then finds a library of this name loaded, and loads no other.
            ctypes.CDLL(network.library, mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise ConfigError(
                f"network.library={network.library} cannot be loaded on {socket.gethostname()}: {error}. Set "
                "network.library to the path of a library on every node, or to null."
            ) from error


def send_gloo_as_nccl(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let gloo use the interface of this node that NCCL_SOCKET_IFNAME selects, unless it has one of its own.

    A node without such an interface keeps gloo's choice: that of the host name's address.
    """
    asked = environment.get("NCCL_SOCKET_IFNAME")
    if asked and not environment.get("GLOO_SOCKET_IFNAME"):
        found = selected(asked, interfaces())
        if found is not None:
            environment["GLOO_SOCKET_IFNAME"] = found


def selected(asked: str, names: Sequence[str]) -> str | None:
    """Return the first interface that NCCL_SOCKET_IFNAME selects: beginnings of names; `=` names, `^` all but those.

    gloo takes whole names only.
    """
    kind = asked[0] if asked[0] in "=^" else ""
    # A port may follow a name.
    given = [entry.partition(":")[0] for entry in asked.removeprefix(kind).removeprefix("=").split(",") if entry]
    if kind == "^":
        return next((name for name in names if name != "lo" and not name.startswith(tuple(given))), None)
    fits = given.__contains__ if kind == "=" else lambda name: name.startswith(tuple(given))
    return next(filter(fits, names), None)


def interfaces() -> list[str]:
    """Return the network interfaces of this node that are up and have an address."""
    import psutil  # noqa: PLC0415 (reports import this module without needing psutil)

    up = {name for name, status in psutil.net_if_stats().items() if status.isup}
    internet = {socket.AF_INET, socket.AF_INET6}
    return [
        name
        for name, addresses in psutil.net_if_addrs().items()
        if name in up and internet & {entry.family for entry in addresses}
    ]


def gloo_transports() -> list[str]:
    """Return TCP with gloo's interface: GLOO_SOCKET_IFNAME if set, else that of the host name's address."""
    import psutil  # noqa: PLC0415 (reports import this module without needing psutil)

    interface = os.environ.get("GLOO_SOCKET_IFNAME")
    if interface:
        return [f"{GLOO}{interface}"]
    try:
        address = socket.gethostbyname(socket.gethostname())
    except OSError:
        return [f"{GLOO}loopback, because the host name does not resolve"]
    for name, addresses in psutil.net_if_addrs().items():
        if address in {entry.address for entry in addresses}:
            return [f"{GLOO}{name}"]
    return [f"{GLOO}{'lo' if address.startswith('127.') else address}"]
