"""The rank of this process, from the environment of its launcher; no torch.

The launchers are srun (by hand or in a batch script), submitit's local processes and torchrun. A local run may emulate
several nodes: `ranks_per_node` of the Run defines a node.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from jobs.errors import SubmitError

# The id that the local queue and PBS scripts give to each start of a run; Slurm and torchrun have their own.
START = "SLURMSCALE_START"
# The counterpart of SLURM_RESTART_COUNT where the local queue, a pilot or PBS starts a run again.
LOCAL_RESTART_COUNT = "SLURMSCALE_RESTART_COUNT"
# The id of a job of launcher=pbs, as the ledger has it.
PBS_JOB = "SLURMSCALE_JOB_ID"
TORCHRUN_ID = "TORCHELASTIC_RUN_ID"


@dataclass(frozen=True)
class Rank:
    """One process of a run."""

    rank: int
    world_size: int
    local_rank: int
    master_addr: str
    """The name or address by which the other ranks reach rank 0."""
    start: str
    """The id of this start of the run, equal on its ranks and different from every other start; part of a file name."""

    @property
    def is_first(self) -> bool:
        """Return True if this rank writes the records and prints."""
        return self.rank == 0


def this_rank(ranks_per_node: int, environment: Mapping[str, str] = os.environ) -> Rank:
    """Return the rank of this process; raise SubmitError outside any launcher."""
    # In this order: a local run or torchrun inside a Slurm job inherits its variables.
    if "SUBMITIT_LOCAL_GLOBALID" in environment:
        rank, world_size = int(environment["SUBMITIT_LOCAL_GLOBALID"]), int(environment["SUBMITIT_LOCAL_NTASKS"])
        local_rank, address, start = rank % ranks_per_node, "127.0.0.1", environment[START]
    elif {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= environment.keys() and {START, TORCHRUN_ID} & environment.keys():
        rank, world_size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
        local_rank = int(environment.get("LOCAL_RANK", rank % ranks_per_node))
        address = environment["MASTER_ADDR"]
        # Without --rdzv-id, torchrun calls every start "none"; a port of its own differs then.
        torchrun = (environment.get(name, "0") for name in (TORCHRUN_ID, "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"))
        start = environment.get(START, "-".join(torchrun))
    elif "SLURM_PROCID" in environment and "SLURM_STEP_ID" in environment:
        rank, world_size = int(environment["SLURM_PROCID"]), int(environment["SLURM_NTASKS"])
        local_rank = int(environment["SLURM_LOCALID"])
        # Array tasks have their own job ids; a job that Slurm starts again counts its steps from 0 again.
        again = environment.get("SLURM_RESTART_COUNT", "0")
        start = f"{environment['SLURM_JOB_ID']}.{environment['SLURM_STEP_ID']}-{again}"
        address = hosts(environment["SLURM_STEP_NODELIST"])[0]
    else:
        raise SubmitError(
            "This process was not started as a rank: srun, submitit and torchrun each set variables that are missing "
            "here. Start ranks with `slurmscale submit`, `srun python -m jobs.run RUN_DIR` or torchrun; elsewhere set "
            f"RANK, WORLD_SIZE, MASTER_ADDR and {START}, a word that all ranks of one start share and no other has."
        )
    return Rank(rank, world_size, local_rank, address, re.sub(r"[^\w.-]", "_", start))


def torchrun_environment(rank: Rank, ranks_per_node: int) -> dict[str, str]:
    """Return torchrun's environment variables for a rank of any launcher; Lightning and NeMo read them."""
    return {
        "RANK": str(rank.rank),
        "WORLD_SIZE": str(rank.world_size),
        "LOCAL_RANK": str(rank.local_rank),
        "GROUP_RANK": str(rank.rank // ranks_per_node),
        "MASTER_ADDR": rank.master_addr,
    }


def hosts(node_list: str) -> list[str]:
    """Return the nodes of Slurm's compressed list, such as node[01-04,07], without scontrol: containers lack Slurm."""
    from submitit.slurm.slurm import _parse_node_list

    return [str(node) for node in _parse_node_list(node_list)]


def scheduled_job_id(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the job id that squeue and sacct (12_3 for an array task) or qstat list; None outside a job."""
    if "SLURM_ARRAY_JOB_ID" in environment:
        return f"{environment['SLURM_ARRAY_JOB_ID']}_{environment['SLURM_ARRAY_TASK_ID']}"
    return environment.get(PBS_JOB, environment.get("SLURM_JOB_ID"))


def restart_count(environment: Mapping[str, str] = os.environ) -> int:
    """Return how often Slurm, PBS, the local queue or a pilot has started this run again."""
    # A local queue may run inside a Slurm job that was itself started again.
    return int(environment.get(LOCAL_RESTART_COUNT, environment.get("SLURM_RESTART_COUNT", "0")))


def started_after_boot_s(pid: int | str) -> float:
    """Return when a process started, in seconds since the boot of its machine: no change of a clock changes it.

    Raise OSError if there is no such process.
    """
    # Field 22 of proc(5), counted after the name, which may contain blanks and brackets: clock ticks.
    ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    return ticks / os.sysconf("SC_CLK_TCK")


def node_name(environment: Mapping[str, str] = os.environ) -> str:
    """Return the scheduler's name of this node; outside a scheduler the host name."""
    return environment.get("SLURMD_NODENAME") or socket.gethostname()
