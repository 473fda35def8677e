"""Which rank this process is, from the environment that its launcher set; no torch.

Knows srun (by hand or through submitit), submitit's local processes and torchrun. Ranks of a local run may be
told to pretend several nodes: `ranks_per_node` of the Run decides where a node ends.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from submitit.slurm.slurm import SlurmJobEnvironment

from jobs.errors import SubmitError

# Below Linux' ephemeral ports (32768), so that an outgoing connection cannot take the port first.
RENDEZVOUS_PORTS = range(10000, 30000)


@dataclass(frozen=True)
class Rank:
    """One process of a run."""

    rank: int
    world_size: int
    local_rank: int
    master_addr: str
    master_port: int

    @property
    def is_first(self) -> bool:
        """Whether this rank speaks for all: writes records and prints."""
        return self.rank == 0


def this_rank(ranks_per_node: int, environment: Mapping[str, str] = os.environ) -> Rank:
    """Read this process's place in the run; raises SubmitError outside any launcher."""
    if "SLURM_PROCID" in environment and "SLURM_STEP_ID" in environment:
        rank, world_size = int(environment["SLURM_PROCID"]), int(environment["SLURM_NTASKS"])
        local_rank = int(environment["SLURM_LOCALID"])
        # Array tasks have job ids of their own, so jobs that share a node meet at different ports.
        port = RENDEZVOUS_PORTS[int(environment["SLURM_JOB_ID"]) % len(RENDEZVOUS_PORTS)]
        # submitit parses the compressed node list without scontrol, which containers lack.
        address = str(SlurmJobEnvironment().hostnames[0])
    elif "SUBMITIT_LOCAL_GLOBALID" in environment:
        rank, world_size = (
            int(environment["SUBMITIT_LOCAL_GLOBALID"]),
            int(environment["SUBMITIT_LOCAL_NTASKS"]),
        )
        local_rank, address, port = rank % ranks_per_node, "127.0.0.1", int(environment["MASTER_PORT"])
    elif "RANK" in environment and "WORLD_SIZE" in environment:
        rank, world_size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
        local_rank = int(environment.get("LOCAL_RANK", rank % ranks_per_node))
        address, port = (
            environment.get("MASTER_ADDR", "127.0.0.1"),
            int(environment.get("MASTER_PORT", "29500")),
        )
    else:
        raise SubmitError(
            "This process was not started as a rank: none of SLURM_PROCID, SUBMITIT_LOCAL_GLOBALID and RANK is set. "
            "Start ranks with `slurmscale submit`, `srun python -m jobs.run RUN_DIR` or torchrun."
        )
    return Rank(rank, world_size, local_rank, address, port)


def slurm_job_id(environment: Mapping[str, str] = os.environ) -> str | None:
    """The id by which squeue and sacct list this job (array tasks as 12_3); None outside Slurm."""
    if "SLURM_ARRAY_JOB_ID" in environment:
        return f"{environment['SLURM_ARRAY_JOB_ID']}_{environment['SLURM_ARRAY_TASK_ID']}"
    return environment.get("SLURM_JOB_ID")


def free_port() -> int:
    """A port of this machine that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
