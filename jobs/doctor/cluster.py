"""Describe a cluster from the login node: each command of Slurm is called once, and none changes anything."""

from __future__ import annotations

import getpass
import re
from dataclasses import dataclass

from jobs.errors import SubmitError
from jobs.submit.slurm import call as slurm_call
from jobs.submit.slurm import commands as slurm_commands

# blocked (since 24.05): idle, in a block of nodes that another job has for itself.
USABLE = {"idle", "mixed", "allocated", "blocked", "completing", "planned", "reserved"}
ASSOCIATION = ("Account", "Partition", "QOS", "DefaultQOS", "MaxSubmitJobs", "MaxWall", "MaxTRES", "GrpTRES")
QOS = ("Name", "MaxWall", "MaxTRESPerJob", "MaxTRESPerUser", "MaxSubmitJobsPerUser", "GraceTime", "Preempt")


@dataclass(frozen=True)
class Node:
    """A node, as Slurm describes it."""

    name: str
    state: str
    """State without Slurm's suffixes: idle, mixed, allocated, down, drained, ..."""
    cpus: int
    memory_mib: int
    gpus: int
    reason: str
    """Reason for being down or drained; empty if it is neither."""

    @property
    def is_usable(self) -> bool:
        """True if jobs run on it, now or when it is free."""
        return self.state in USABLE


@dataclass(frozen=True)
class Site:
    """A cluster as Slurm describes it to this user."""

    config: dict[str, str]
    """Settings as `scontrol show config` names them."""
    partitions: dict[str, dict[str, str]]
    """Settings of each partition; the default one also under ''."""
    nodes: dict[str, list[Node]]
    """Nodes of each partition."""
    associations: list[dict[str, str]]
    """Associations of this user: Account, QOS and limits; values that are not set are absent."""
    qos: dict[str, dict[str, str]]
    """Limits of each QOS; values that are not set are absent."""
    accounting_error: str | None
    """Reason that accounting did not answer; None if it did."""

    @property
    def has_accounting(self) -> bool:
        """True if Slurm accounts jobs."""
        return not re.fullmatch(r"\(null\)|.*/none|", self.config.get("AccountingStorageType", ""))

    def seconds(self, key: str) -> int | None:
        """Return a setting such as `KillWait = 30 sec` in seconds; None if it has no number."""
        match = re.match(r"(\d+)", self.config.get(key, ""))
        return int(match[1]) if match else None


def ask_slurm() -> Site:
    """Return the description of the cluster; raises SubmitError if no controller answers."""
    config = slurm_commands.configuration()
    associations: list[dict[str, str]] = []
    qos: dict[str, dict[str, str]] = {}
    error = None
    try:
        mine = ("assoc", f"user={getpass.getuser()}", f"cluster={config.get('ClusterName', '')}")
        associations = accounted(*mine, fields=ASSOCIATION)
        qos = {row.get("Name", ""): row for row in accounted("qos", fields=QOS)}
    except SubmitError as refused:
        error = str(refused)
    return Site(config, slurm_commands.partitions(), nodes_by_partition(), associations, qos, error)


def nodes_by_partition() -> dict[str, list[Node]]:
    """Return the nodes of each partition: one sinfo."""
    found: dict[str, list[Node]] = {}
    for line in slurm_call.ask("sinfo", "-a", "-h", "-N", "-o", "%R|%N|%T|%c|%m|%G|%E").splitlines():
        partition, name, state, cpus, memory, gres, reason = line.split("|", 6)
        node = Node(
            name=name,
            state=re.sub(r"[^a-z_]", "", state.lower()),  # idle~ is powered down, down* does not answer
            cpus=number(cpus),
            memory_mib=number(memory),
            gpus=gpus_of(gres),
            reason="" if reason == "none" else reason,
        )
        found.setdefault(partition, []).append(node)
    return found


def number(text: str) -> int:
    """Return the leading number of a text; sinfo prints 32+ for several values."""
    match = re.match(r"\d+", text)
    return int(match[0]) if match else 0


def gpus_of(gres: str) -> int:
    """Count the GPUs in a list such as `gpu:a100:4(S:0-1),gpu:v100:2,nvme:1`."""
    return sum(int(count) for count in re.findall(r"(?:^|,)gpu:(?:[^:,()]+:)?(\d+)", gres))


def accounted(*what: str, fields: tuple[str, ...]) -> list[dict[str, str]]:
    """Return the rows of `sacctmgr show`; values that are not set are absent."""
    command = ("sacctmgr", "-n", "-P", "show", *what, f"format={','.join(fields)}")
    lines = slurm_call.ask(*command, timeout_s=slurm_call.SACCT_TIMEOUT_S).splitlines()
    rows = (dict(zip(fields, line.split("|"), strict=False)) for line in lines)
    return [{key: value for key, value in row.items() if value} for row in rows]


def tres(text: str) -> dict[str, int]:
    """Parse counts such as `cpu=64,gres/gpu=8,node=2`; amounts with a unit are left out."""
    return {key: int(count) for key, count in re.findall(r"([\w/:]+)=(\d+)(?:,|$)", text)}
