"""Rules of `network`. Checked at composition, so without torch."""

from __future__ import annotations

import re

from jobs.layout import has_gpus
from jobs.network import VARIABLE, variables
from jobs.plan.rules.rule import Rule
from jobs.schema import Network, Run, Transport

ADAPTER = re.compile(r"[A-Za-z][\w.-]*(:\d+)?", re.ASCII)
# The kernel's limit, less the end of the string; NCCL gives the other characters a meaning.
INTERFACE = re.compile(r"[^\s/,:=^\0]{1,15}")
# The values of keys that ask for nothing, where these are not null.
UNSET = {"network.adapters": "[]", "network.gpu_direct": "false"}
# The dynamic linker reads these when the process starts, which is before a rank sets them.
LINKER = ("LD_PRELOAD", "LD_LIBRARY_PATH")


def names_are_complete(run: Run) -> str | None:
    """Require complete names of adapters, each once, of an interface, and of variables."""
    network, wrong = run.network, []
    given = f"network.adapters=[{','.join(network.adapters)}]"
    if odd := [each for each in network.adapters if not ADAPTER.fullmatch(each)]:
        wrong.append(f"{given}: {odd[0]!r} is not the name of an adapter. Set network.adapters=[mlx5_0,mlx5_1], or [].")
    elif len(set(network.adapters)) < len(network.adapters):
        once = ",".join(dict.fromkeys(network.adapters))
        wrong.append(f"{given} names an adapter twice. Set network.adapters=[{once}].")
    if network.interface is not None and not INTERFACE.fullmatch(network.interface):
        wrong.append(
            f"network.interface={network.interface!r} is not the complete name of one interface. Set "
            "network.interface=eth0, or null; cluster.env.NCCL_SOCKET_IFNAME takes NCCL's patterns."
        )
    for name, value in network.env.items():
        if not VARIABLE.fullmatch(name) or "\0" in value:
            wrong.append(
                f"network.env: {name!r} is not a variable with a value: letters, digits and _. Leave it out; for none, "
                "set network.env={}."
            )
        elif name in LINKER:
            wrong.append(
                f"network.env.{name} is read before a rank sets it. Use network.library or cluster.env.{name}, and "
                "leave it out here; for none, set network.env={}."
            )
    return "\n".join(wrong) or None


def transport_has_a_backend(run: Run) -> str | None:
    """Refuse RDMA, and settings of adapters, for ranks without GPUs, whose collectives are gloo's."""
    if has_gpus(run):
        return None
    network, where = run.network, f"the ranks of cluster={run.cluster.name} have no GPUs, so gloo sends over TCP"
    if network.transport not in {None, Transport.tcp}:
        return f"network.transport={network.transport.name}: {where}. Set network=tcp, or network=default."
    if names := of_adapters(network):
        return f"{names[0]} has no effect: {where}. Set {names[0]}={UNSET.get(names[0], 'null')}."
    return None


def settings_fit_transport(run: Run) -> str | None:
    """Refuse a plugin with TCP, and settings of RoCE with InfiniBand; TCP ignores adapters, so a sweep may set them."""
    network = run.network
    if network.transport is Transport.tcp and network.plugin is not None:
        return (
            f"network.plugin={network.plugin} takes the place of the sockets of network.transport=tcp. Set "
            "network.plugin=null, or network=roce."
        )
    if network.transport is Transport.tcp and network.gpu_direct:
        return (
            "network.gpu_direct=true needs RDMA adapters, and network.transport=tcp uses sockets. Set "
            "network.gpu_direct=false, or network=roce."
        )
    if network.transport is Transport.infiniband and network.gid_index is not None:
        return (
            f"network.gid_index={network.gid_index} has no effect with network.transport=infiniband. Set "
            "network.gid_index=null, or network=roce."
        )
    return None


def variables_agree(run: Run) -> str | None:
    """Refuse variables that contradict each other, and a log of NCCL that hides the transport."""
    own = variables(run.network)
    for section, given in (("network.env", run.network.env), ("cluster.env", run.cluster.env)):
        if clash := [name for name, value in given.items() if own.get(name, value) != value]:
            name = clash[0]
            return (
                f"{section}.{name}={given[name]} contradicts {name}={own[name]}, which other keys of network set. "
                f"Leave it out; for none, set {section}={{}}, or set network=default."
            )
        if "NCCL_DEBUG" in given and (asked := asked_for(run.network)) is not None:
            key, value, nothing = asked
            return (
                f"{section}.NCCL_DEBUG replaces the log from which {key}={value} is checked. Leave it out; for none, "
                f"set {section}={{}}, or set {key}={nothing}."
            )
    return None


def asked_for(network: Network) -> tuple[str, str, str] | None:
    """Return a key that requires a transport, its value, and that which asks for nothing."""
    if network.transport is not None:
        return "network.transport", network.transport.name, "null"
    return ("network.gpu_direct", "true", UNSET["network.gpu_direct"]) if network.gpu_direct else None


def of_adapters(network: Network) -> list[str]:
    """Return the keys that are set and that only RDMA reads."""
    given = {
        "network.adapters": bool(network.adapters),
        "network.gpu_direct": network.gpu_direct,
        "network.gid_index": network.gid_index is not None,
        "network.plugin": network.plugin is not None,
    }
    return [key for key, is_set in given.items() if is_set]


# --- warnings ------------------------------------------------------------------------------------------------


def nothing_is_between_nodes(run: Run) -> str | None:
    """Warn of a transport on one node, where GPUs do not use it."""
    if run.nodes > 1 or not has_gpus(run) or (asked := asked_for(run.network)) is None:
        return None
    key, value, _ = asked
    return f"{key}={value} is between nodes, and nodes=1: it changes nothing, and is not checked."


RULES: tuple[Rule, ...] = (names_are_complete, transport_has_a_backend, settings_fit_transport, variables_agree)
WARNINGS: tuple[Rule, ...] = (nothing_is_between_nodes,)
