"""One file per launcher: what it checks, previews, launches, asks the scheduler and cancels.

    launcher       the protocol that all of them implement
    slurm          job arrays, between the stages around training
    pilot          one Slurm job in which the runs take turns
    pbs_pilot      one PBS job in which the runs take turns
    here           the job that the user is in, in which the runs take turns
    local          processes on this machine
    script         job.sbatch in each run directory, for a person to submit
    pbs            a PBS job for each run, between the stages around training
    pbs_script     job.pbs in each run directory, for a person to submit
    dry            shows what the launcher of the cluster would do

A new launcher is NAME.py with a `LAUNCHER`, conf/launcher/NAME.yaml and an entry of `LauncherKind`.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Protocol, TypeVar, cast

from jobs.schema import LauncherKind
from jobs.submit.launchers.launcher import Launcher
from jobs.submit.sweeps.submissions import kind_of


class Launched(Protocol):
    """Anything that has a launcher by name: a submission, the state of a run or of a stage."""

    @property
    def launcher(self) -> str | None:
        """The name of the launcher in the ledger."""


T = TypeVar("T", bound=Launched)


def launcher_of(kind: LauncherKind) -> Launcher:
    """Return the launcher of a kind: `LAUNCHER` of the module that has its name."""
    return cast(Launcher, import_module(f"{__name__}.{kind.name}").LAUNCHER)


def by_launcher(items: Sequence[T]) -> list[tuple[Launcher, list[T]]]:
    """Return the items of each launcher; those that were started by hand have none and are left out."""
    found: dict[LauncherKind, list[T]] = {}
    for item in items:
        if (kind := kind_of(item.launcher)) is not None:
            found.setdefault(kind, []).append(item)
    return [(launcher_of(kind), given) for kind, given in found.items()]
