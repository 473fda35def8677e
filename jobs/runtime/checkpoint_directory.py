"""Checkpoint directories of all engines: complete or absent, the newest kept, an unreadable one set aside."""

from __future__ import annotations

import errno
import shutil
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from jobs.errors import CheckpointError, SupersededError
from jobs.lease import Lease
from jobs.ranks import Rank
from jobs.rundir import RunDir, append_event
from jobs.runtime.exchange import broadcast
from jobs.runtime.store import refuse_strangers

# Directories of checkpoints and exports that were being written or removed when their start ended, below the run's.
UNFINISHED = ("checkpoints/.*.writing", "checkpoints/.*.removed", ".export.*writing", ".export.*removed")


@dataclass(frozen=True)
class Saved:
    """The result of saving a checkpoint."""

    step: int
    write_time_s: float = 0.0
    size_bytes: int = 0
    error: str | None = None
    """The error of a failed write; None after a success."""


def complete(directory: Path) -> list[Path]:
    """Return the complete checkpoints, oldest first."""
    return sorted(directory.glob("step-*"))


def size_bytes(path: Path) -> int:
    """Return the size of a checkpoint on disk."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def save_archive(value: Any, path: Path) -> None:
    """Write torch's archive of a value; with a path instead of a file, torch.save hides why a write failed."""
    with path.open("wb") as file:
        torch.save(value, file)


def met_by_ranks(error: BaseException) -> str:
    """Return the messages of an error of reading or writing; of a CheckpointException without the ranks' tracebacks."""
    met = [cause[0] for cause in error.failures.values()] if isinstance(error, CheckpointException) else [error]
    return "; ".join(sorted({"".join(traceback.format_exception_only(each)).strip() for each in met}))


def take_over(lease: Lease, rank: Rank) -> None:
    """Take the lease of the run for all ranks, which have met, and remove what earlier owners were still writing.

    None of them can complete a checkpoint or export after that: its directory is gone, and a new one needs the lease.
    Every rank calls it. Raise RendezvousError if a stranger is among the ranks.
    """
    refuse_strangers(lease.run.rendezvous(rank.start), rank)
    number = lease.take() if rank.is_first else 0
    if dist.is_initialized():  # engine=litgpt has no process group for one process
        number = broadcast(number)
    lease.number = number
    for pattern in UNFINISHED if rank.is_first else ():
        for left_over in lease.run.path.glob(pattern):
            remove(left_over)


@contextmanager
def written_aside(final: Path, lease: Lease, group: dist.ProcessGroup | None = None) -> Iterator[Path]:
    """Yield a hidden directory that all ranks of the group write into, and rename it when all have finished.

    An error of writing must be raised on every rank; the directory is then removed. Raise CheckpointError on every
    rank where the directory cannot be created or renamed, or another start has taken the run over.
    """
    writing = final.with_name(f".{final.name}.{lease.number:06d}.writing")

    def begin() -> None:
        if lease.is_lost():
            raise lease.loss()
        final.parent.mkdir(exist_ok=True)
        writing.mkdir()

    def end() -> None:
        if lease.is_lost():
            raise lease.loss()
        try:
            # Before anything is removed: this fails if another start has taken the run over since the look above.
            writing.rename(final)
        except OSError as error:
            if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                raise
            remove(final)
            writing.rename(final)

    first_alone(begin, group)
    try:
        yield writing
    except BaseException:
        if dist.get_rank() == 0:
            shutil.rmtree(writing, ignore_errors=True)
        raise
    dist.barrier(group)
    first_alone(end, group)


def first_alone(action: Callable[[], None], group: dist.ProcessGroup | None) -> None:
    """Run an action on rank 0 while the others wait; raise its error as a CheckpointError on every rank."""
    failure = None
    if dist.get_rank() == 0:
        try:
            action()
        except OSError as error:
            failure = f"{error.filename}: {error.strerror}"
        except SupersededError as error:
            failure = str(error)
    failure = broadcast(failure, group)
    if failure is not None:
        raise CheckpointError(failure)


def keep_newest(directory: Path, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints, on one rank."""
    for old in complete(directory)[:-keep]:
        remove(old)


def remove(checkpoint: Path) -> None:
    """Remove a directory; rename it first, so that a partly removed one is not taken for complete."""
    name = checkpoint.name.removeprefix(".").removesuffix(".removed")
    hidden = checkpoint.with_name(f".{name}.removed")
    with suppress(FileNotFoundError):  # another start has removed it
        checkpoint.rename(hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def newest_readable(run: RunDir, load: Callable[[Path], int]) -> int:
    """Load a run's newest readable checkpoint and return its step, on every rank; 0 without a checkpoint.

    An unreadable one is recorded and renamed to `.step-00000020.unreadable`. Raise CheckpointError where no checkpoint
    is readable: the user decides whether to start over.
    """
    # Rank 0's list: on a network file system another node may see an older list.
    names = broadcast([path.name for path in complete(run.checkpoints)])
    for name in reversed(names):
        path = run.checkpoints / name
        try:
            return load(path)
        except CheckpointError as error:
            if name == names[0]:
                raise CheckpointError(
                    f"{error} No older checkpoint is readable; remove {run.checkpoints} to start over."
                ) from error
            if dist.get_rank() == 0:
                path.rename(path.with_name(f".{name}.unreadable"))
                append_event(run, "checkpoint_unreadable", checkpoint=name, error=str(error))
    return 0
