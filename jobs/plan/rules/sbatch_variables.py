"""Options of sbatch that this shell sets as variables, such as SBATCH_ACCOUNT=proj, which sbatch prefers to a script.

They set the keys that are not set; one that contradicts a key is refused. sbatch itself never gets them.
"""

from __future__ import annotations

import os
from operator import attrgetter

from omegaconf import DictConfig, OmegaConf

from jobs.plan.time_limit import limit_min
from jobs.schema import LauncherKind, Run

KEYS = {
    "SBATCH_ACCOUNT": "cluster.account",
    "SBATCH_CONSTRAINT": "cluster.constraint",
    "SBATCH_PARTITION": "cluster.partition",
    "SBATCH_QOS": "cluster.qos",
    "SBATCH_RESERVATION": "cluster.sbatch.reservation",
    "SBATCH_TIMELIMIT": "wall_time_min",
}


def given() -> dict[str, str]:
    """Return the variables of this shell that have a key."""
    return {name: os.environ[name] for name in KEYS if os.environ.get(name)}


def fill(config: DictConfig) -> None:
    """Set the keys that are not set from this shell, if the runs go to Slurm."""
    kind: LauncherKind = config.launcher.kind
    # A preview shows what the cluster's own launcher would send.
    if (config.cluster.launcher if kind.is_preview else kind).needs_slurm:
        for name, value in given().items():
            if OmegaConf.select(config, KEYS[name]) is None:
                OmegaConf.update(config, KEYS[name], value)


def agree_with_keys(run: Run) -> str | None:
    """Require that the variables of this shell contradict no key."""
    for name, value in given().items() if run.starter.needs_slurm else ():
        own = limit_min(value) if name == "SBATCH_TIMELIMIT" else value
        if own != setting(run, KEYS[name]):
            return (
                f"{name}={value} of this shell contradicts {KEYS[name]}={setting(run, KEYS[name])}. "
                f"Run `unset {name}`, or set {KEYS[name]}={own}."
            )
    return None


def setting(run: Run, key: str) -> object:
    """Return the value of a key of this module."""
    section, _, name = key.rpartition(".")
    return run.cluster.sbatch.get(name) if section == "cluster.sbatch" else attrgetter(key)(run)


def notes(runs: list[Run]) -> list[str]:
    """Return a line for each variable that sets a key, and one that names those without a key."""
    if not any(run.starter.needs_slurm for run in runs):
        return []
    used = [f"{name}={value} of this shell is used as {KEYS[name]}" for name, value in given().items()]
    others = sorted(name for name in os.environ if name.startswith("SBATCH_") and name not in KEYS)
    return used + ([f"not used: {', '.join(others)} of this shell; cluster.sbatch sets options"] if others else [])
