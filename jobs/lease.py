"""The owner of a run directory: of all starts of a run, only the latest one writes into it.

A start takes the lease by creating the next file of RUN/owners/ exclusively. That is atomic on NFS and Lustre too,
where a lock of one node may be unknown to the others. The number of the file is the fencing token: the owner is the
start with the highest one. Every writer looks for a higher number first, and a superseded start ends after its step.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

from jobs.errors import SupersededError
from jobs.files import read_object
from jobs.output import own_directory
from jobs.ranks import node_name, restart_count, scheduled_job_id
from jobs.rundir import RunDir, now


@dataclass(frozen=True)
class Owner:
    """A start that took the lease of a run."""

    number: int
    job_id: str | None
    """None for ranks that a person started outside a scheduler."""
    restart: int | None
    name: str
    """The start as text."""


class Lease:
    """The right of this start to write into a run directory; rank 0 takes it when the ranks have met.

    Until then the number is that of the owner before: a start that has not taken the lease loses against any that does.
    """

    def __init__(self, run: RunDir) -> None:
        self.run = run
        self.number = highest_number(run)

    def take(self) -> int:
        """Become the owner of the run; return the number."""
        job_id = owning_job_id()
        name = f"process {os.getpid()} on {node_name()}" if job_id is None else f"job {job_id}"
        record = {"name": name, "job_id": job_id, "restart": restart_count(), "host": node_name(), "time": now()}
        own_directory(self.run.owners)
        while True:
            self.number = max(self.number, highest_number(self.run)) + 1
            try:
                with (self.run.owners / f"{self.number:06d}.json").open("x") as file:
                    json.dump(record, file)
            except FileExistsError:
                continue
            return self.number

    def is_lost(self) -> bool:
        """Return True if a later start owns the run."""
        return highest_number(self.run) > self.number

    def loss(self) -> SupersededError:
        """Return the error that names the start which owns the run now."""
        return SupersededError(f"{owners(self.run)[-1].name} has taken over this run; this job stops")


def owning_job_id() -> str | None:
    """Return the job that this rank belongs to, of Slurm or of the local queue; None if there is none."""
    # A local run inside a Slurm job inherits its variables.
    return os.environ.get("SUBMITIT_LOCAL_JOB_ID") or scheduled_job_id()


def highest_number(run: RunDir) -> int:
    """Return the number of the run's owner; 0 without one."""
    # Listing opens the directory, for which NFS asks the server; a single file may be missing in a stale cache.
    try:
        names = os.listdir(run.owners)  # noqa: PTH208 (pathlib is several times slower, and every step looks)
    except OSError:
        # No start yet, or a file system that does not answer for a moment: the next look may find more.
        return 0
    return max((int(name[:-5]) for name in names if name.endswith(".json") and name[:-5].isdecimal()), default=0)


def owners(run: RunDir) -> list[Owner]:
    """Return the owners of a run, the latest last."""
    found = []
    for path in run.owners.glob("*.json"):
        if not path.stem.isdecimal():
            continue
        try:
            record = read_object(path)
        except (OSError, ValueError):
            record = {}  # being written, or on a full disk
        name = str(record.get("name", "another start"))
        found.append(Owner(int(path.stem), record.get("job_id"), record.get("restart"), name))
    return sorted(found, key=lambda owner: owner.number)


def successor(run: RunDir, job_id: str, restart: int) -> Owner | None:
    """Return the owner that took the run over from a start of a job; None if it still owns the run, or never did."""
    found = owners(run)
    own = [owner.number for owner in found if (owner.job_id, owner.restart) == (job_id, restart)]
    return found[-1] if own and own[-1] < found[-1].number else None
