"""The environment that Slurm's commands and new jobs get from this shell.

Left out are the variables by which Slurm, torchrun, MPI and submitit describe a process to itself, and the options and
formats that Slurm's commands read: a job that inherits them has the ranks, memory or options of another one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

# Where Slurm is configured, and which of several clusters all commands ask.
KEPT = {"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS"}
SLURM = re.compile(r"(SLURMD?|SBATCH|SRUN|SALLOC|SQUEUE|SACCT|SACCTMGR|SINFO|SCONTROL|SCANCEL)_")
RANK_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK", "MASTER_ADDR",
              "MASTER_PORT", "SLURMSCALE_START", "SLURMSCALE_RESTART_COUNT", "SLURMSCALE_JOB_ID",
              "SLURMSCALE_STAGED", "SLURMSCALE_STAGING_S")  # fmt: skip
RANK_PREFIXES = ("TORCHELASTIC_", "OMPI_COMM_WORLD_", "PMI_", "PMIX_", "SUBMITIT_")
# Variables of a shell inside another job: options of sbatch, requests that srun reads (without them a step gets what
# its own job has), the array of that job.
JOB_PREFIXES = ("SBATCH_", "SLURM_MEM_", "SLURM_CPU_BIND", "SLURM_GPUS", "SLURM_ARRAY_")


def clean_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment for a command of Slurm, or for ranks on this machine."""
    return {name: value for name, value in environment.items() if name in KEPT or not is_foreign(name)}


def is_foreign(name: str) -> bool:
    """Return True for a variable that describes another job or rank, or is an option of a command of Slurm."""
    return bool(SLURM.match(name)) or name in RANK_NAMES or name.startswith(RANK_PREFIXES)


def unset_line() -> str:
    """Return the shell line that does the same in a batch script, which a person may submit from any shell."""
    matching = [f'"${{!{prefix}@}}"' for prefix in (*RANK_PREFIXES, *JOB_PREFIXES)]
    return " ".join(["unset", *RANK_NAMES, *matching])
