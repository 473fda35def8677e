"""What Slurm says of a cluster from the login node: each command once, and none that changes anything."""

from __future__ import annotations

import getpass
import re
from dataclasses import dataclass

from jobs.errors import SubmitError
from jobs.submit import slurm_commands

USABLE = {"idle", "mixed", "allocated", "completing", "planned", "reserved"}
ASSOCIATION = ("Account", "Partition", "QOS", "DefaultQOS", "MaxSubmitJobs", "MaxWall", "MaxTRES", "GrpTRES")
QOS = ("Name", "MaxWall", "MaxTRESPerJob", "MaxTRESPerUser", "MaxSubmitJobsPerUser", "GraceTime", "Preempt")


@dataclass(frozen=True)
class Node:
    """One node, as Slurm has it."""

    name: str
    state: str
    """Slurm's word without its marks: idle, mixed, allocated, down, drained, ..."""
    cpus: int
    memory_mib: int
    gpus: int
    reason: str
    """Why it is down or drained; empty where it is not."""

    @property
    def is_usable(self) -> bool:
        """Whether jobs run on it, now or when it is free."""
        return self.state in USABLE


@dataclass(frozen=True)
class Site:
    """A cluster as Slurm describes it to this user."""

    config: dict[str, str]
    """Settings as `scontrol show config` names them."""
    partitions: dict[str, dict[str, str]]
    """Settings of each partition; of the default one also under ''."""
    nodes: dict[str, list[Node]]
    """Nodes of each partition."""
    associations: list[dict[str, str]]
    """What this user may submit as: Account, QOS and limits of each association; those not set are absent."""
    qos: dict[str, dict[str, str]]
    """Limits of each QOS; those not set are absent."""
    accounting_error: str | None
    """Why accounting told nothing; None where it did."""

    @property
    def has_accounting(self) -> bool:
        """Whether jobs are accounted at all."""
        return not re.fullmatch(r"\(null\)|.*/none|", self.config.get("AccountingStorageType", ""))

    def seconds(self, key: str) -> int | None:
        """A setting such as `KillWait = 30 sec`."""
        match = re.match(r"(\d+)", self.config.get(key, ""))
        return int(match[1]) if match else None


def ask_slurm() -> Site:
    """Everything that the doctor wants to know; raises SubmitError where no controller answers."""
    config = slurm_commands.configuration()
    associations: list[dict[str, str]] = []
    qos: dict[str, dict[str, str]] = {}
    error = None
    try:
        mine = ("assoc", f"user={getpass.getuser()}", f"cluster={config.get('ClusterName', '')}")
        associations = accounted(*mine, fields=ASSOCIATION)
        qos = {row.get("Name", ""): row for row in accounted("qos", fields=QOS)}
    except SubmitError as said:
        error = str(said)
    return Site(config, slurm_commands.partitions(), nodes_by_partition(), associations, qos, error)


def nodes_by_partition() -> dict[str, list[Node]]:
    """The nodes of each partition: one sinfo."""
    found: dict[str, list[Node]] = {}
    for line in slurm_commands.ask("sinfo", "-h", "-N", "-o", "%R|%N|%T|%c|%m|%G|%E").splitlines():
        partition, name, state, cpus, memory, gres, reason = line.split("|", 6)
        node = Node(
            name=name,
            state=re.sub(r"[^a-z_]", "", state.lower()),  # idle~ sleeps, down* does not answer
            cpus=number(cpus),
            memory_mib=number(memory),
            gpus=gpus_of(gres),
            reason="" if reason == "none" else reason,
        )
        found.setdefault(partition, []).append(node)
    return found


def number(text: str) -> int:
    """The number that a text begins with; sinfo writes 32+ where it has folded several."""
    match = re.match(r"\d+", text)
    return int(match[0]) if match else 0


def gpus_of(gres: str) -> int:
    """GPUs in a list such as `gpu:a100:4(S:0-1),gpu:v100:2,nvme:1`."""
    return sum(int(count) for count in re.findall(r"(?:^|,)gpu:(?:[^:,()]+:)?(\d+)", gres))


def accounted(*what: str, fields: tuple[str, ...]) -> list[dict[str, str]]:
    """Rows of `sacctmgr show`; a value that is not set is absent."""
    command = ("sacctmgr", "-n", "-P", "show", *what, f"format={','.join(fields)}")
    lines = slurm_commands.ask(*command, timeout_s=slurm_commands.SACCT_TIMEOUT_S).splitlines()
    rows = (dict(zip(fields, line.split("|"), strict=False)) for line in lines)
    return [{key: value for key, value in row.items() if value} for row in rows]


def tres(text: str) -> dict[str, int]:
    """Counts in a list such as `cpu=64,gres/gpu=8,node=2`; amounts with a unit are left out."""
    return {key: int(count) for key, count in re.findall(r"([\w/:]+)=(\d+)(?:,|$)", text)}
