"""Checkpoint directories of all engines: complete or absent, the newest kept, an unreadable one set aside."""

from __future__ import annotations

import shutil
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from jobs.errors import CheckpointError
from jobs.rundir import RunDir, append_event


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


@contextmanager
def written_aside(final: Path, group: dist.ProcessGroup | None = None) -> Iterator[Path]:
    """Yield a hidden directory that all ranks of the group write into, and rename it when all have finished.

    An error of writing must be raised on every rank; the directory is then removed. Raise CheckpointError on every
    rank where the directory cannot be created or renamed.
    """
    writing = final.with_name(f".{final.name}.writing")

    def begin() -> None:
        final.parent.mkdir(exist_ok=True)
        for left_over in (*final.parent.glob(".*.writing"), *final.parent.glob(".*.removed")):
            shutil.rmtree(left_over)
        writing.mkdir()

    def end() -> None:
        if final.exists():
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
    """Run an action on rank 0 while the others wait; raise its OSError as a CheckpointError on every rank."""
    failure: list[str | None] = [None]
    if dist.get_rank() == 0:
        try:
            action()
        except OSError as error:
            failure = [f"{error.filename}: {error.strerror}"]
    dist.broadcast_object_list(failure, src=0, group=group)
    if failure[0] is not None:
        raise CheckpointError(failure[0])


def keep_newest(directory: Path, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints, on one rank."""
    for old in complete(directory)[:-keep]:
        remove(old)


def remove(checkpoint: Path) -> None:
    """Remove a checkpoint; rename it first, so that a partly removed one is not taken for complete."""
    hidden = checkpoint.with_name(f".{checkpoint.name}.removed")
    checkpoint.rename(hidden)
    shutil.rmtree(hidden)


def newest_readable(run: RunDir, load: Callable[[Path], int]) -> int:
    """Load a run's newest readable checkpoint and return its step, on every rank; 0 without a checkpoint.

    An unreadable one is recorded and renamed to `.step-00000020.unreadable`. Raise CheckpointError where no checkpoint
    is readable: the user decides whether to start over.
    """
    # Rank 0's list: on a network file system another node may see an older list.
    names = [[path.name for path in complete(run.checkpoints)]]
    dist.broadcast_object_list(names)
    for name in reversed(names[0]):
        path = run.checkpoints / name
        try:
            return load(path)
        except CheckpointError as error:
            if name == names[0][0]:
                raise CheckpointError(
                    f"{error} No older checkpoint is readable; remove {run.checkpoints} to start over."
                ) from error
            if dist.get_rank() == 0:
                path.rename(path.with_name(f".{name}.unreadable"))
                append_event(run, "checkpoint_unreadable", checkpoint=name, error=str(error))
    return 0
