"""The network that a run asks for: NCCL's variables, and a comparison with the network that was found; no torch.

Sources of names and values: NCCL's user guide, section Environment Variables; RCCL reads the same names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from jobs.schema import Network, Transport

VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)
"""The name of an environment variable."""
SOCKETS = "NET/Socket"
"""NCCL's name of TCP sockets."""
GLOO = "TCP over "
"""gloo's transport, before the name of the interface."""
GPU_DIRECT = "/GDRDMA"
"""The end of NCCL's name of a transport whose adapter reads and writes the memory of GPUs itself."""
GPU_DIRECT_ADVICE = (
    "The memory of GPUs is copied through the host's: load nvidia_peermem, or a kernel and driver with DMA-BUF, on "
    "every node, and see NCCL_NET_GDR_LEVEL."
)
LINKS = {"RoCE": Transport.roce, "IB": Transport.infiniband}
"""The link of an adapter, as NCCL logs it after its port."""
REMEDIES = {
    Transport.tcp: "Look for a plugin (NCCL_NET_PLUGIN) that takes the place of sockets",
    Transport.roce: "Check the adapters (ibv_devinfo: state and link layer), network.gid_index, and libibverbs in a "
    "container",
    Transport.infiniband: "Check the adapters (ibv_devinfo: state and link layer), and libibverbs in a container",
}


def variables(network: Network) -> dict[str, str]:
    """Return the environment variables that a network sets for its ranks."""
    found = dict(network.env)
    if network.transport is not None:
        found["NCCL_IB_DISABLE"] = "1" if network.transport is Transport.tcp else "0"
    if network.transport is Transport.tcp:
        # A plugin would ignore NCCL_IB_DISABLE.
        found["NCCL_NET"] = "Socket"
    if network.adapters:
        # Without = NCCL takes beginnings of names: mlx5_1 is also mlx5_10.
        found["NCCL_IB_HCA"] = f"={','.join(network.adapters)}"
    if network.interface is not None:
        found |= {"NCCL_SOCKET_IFNAME": f"={network.interface}", "GLOO_SOCKET_IFNAME": network.interface}
    if network.gid_index is not None:
        found["NCCL_IB_GID_INDEX"] = str(network.gid_index)
    if network.plugin is not None:
        found["NCCL_NET_PLUGIN"] = network.plugin
    return found


def mismatch(network: Network, transports: Sequence[str], devices: Sequence[str]) -> str | None:
    """Describe how the network that a rank found differs from the requested one; None if it does not.

    `transports` are those of its collectives, `devices` the adapters or interfaces that NCCL found. Only transports
    between nodes are compared, so a rank that has none agrees with every network.
    """
    between_nodes = [each for each in transports if each.startswith(("NET/", "COLLNET/", GLOO))]
    if not between_nodes:
        return None
    return (
        other_transport(network, between_nodes, devices)
        or without_gpu_direct(network, between_nodes)
        or other_adapters(network, devices)
        or other_interface(network, between_nodes, devices)
    )


def other_transport(network: Network, transports: Sequence[str], devices: Sequence[str]) -> str | None:
    """Return how the transports differ from the one asked for."""
    asked = network.transport
    if asked is None:
        return None
    found = ", ".join([*transports, *(f"on {device}" for device in devices)])
    # A plugin logs its devices in a format of its own.
    links = {LINKS[link] for device in devices if (link := device.rpartition("/")[2]) in LINKS}
    is_tcp = [transport.startswith((SOCKETS, GLOO)) for transport in transports]
    if all(is_tcp) if asked is Transport.tcp else not any(is_tcp) and links <= {asked}:
        return None
    return (
        f"network.transport={asked.name} was asked for, and collectives between nodes use {found}. {REMEDIES[asked]}; "
        "or set network=default to run with what there is."
    )


def without_gpu_direct(network: Network, transports: Sequence[str]) -> str | None:
    """Return what sends without GPUDirect where it was asked for."""
    others = [each for each in transports if not each.endswith(GPU_DIRECT)]
    if not network.gpu_direct or not others:
        return None
    return (
        f"network.gpu_direct=true was asked for, and collectives between nodes use {', '.join(others)}. "
        f"{GPU_DIRECT_ADVICE} Or set network.gpu_direct=false to run with what there is."
    )


def copies_through_host(transports: Sequence[str]) -> bool:
    """Return whether RDMA adapters of GPUs sent through the host's memory."""
    return any(each.startswith("NET/IB") and not each.endswith(GPU_DIRECT) for each in transports)


def other_adapters(network: Network, devices: Sequence[str]) -> str | None:
    """Return how the adapters differ from those asked for."""
    ports = [device.rpartition("/")[0] for device in devices if device.rpartition("/")[2] in LINKS]
    # An adapter without a port stands for all its ports.
    matched = {each: [port for port in ports if each in {port, port.rpartition(":")[0]}] for each in network.adapters}
    missing = [each for each, own in matched.items() if not own]
    further = sorted(set(ports).difference(*matched.values())) if matched else []
    if not ports or not (missing or further):
        return None
    parts = [
        *([f"without {', '.join(missing)}"] if missing else []),
        *([f"with {', '.join(further)} as well"] if further else []),
    ]
    return (
        f"network.adapters=[{','.join(network.adapters)}] was asked for, and NCCL uses {', '.join(sorted(ports))}: "
        f"{' and '.join(parts)}. Set network.adapters to names that every node has (ibv_devinfo -l), or to []."
    )


def other_interface(network: Network, transports: Sequence[str], devices: Sequence[str]) -> str | None:
    """Return how the interfaces of sockets differ from the one asked for."""
    asked = network.interface
    found = [each.removeprefix(GLOO) for each in transports if each.startswith(GLOO)]
    if any(transport.startswith(SOCKETS) for transport in transports):
        found += devices
    other = sorted({each for each in found if each != asked})
    if asked is None or not other:
        return None
    return (
        f"network.interface={asked} was asked for, and sockets use {', '.join(other)}. Set network.interface to an "
        "interface of every node (ip -brief address), or to null."
    )
