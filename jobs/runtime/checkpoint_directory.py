"""Checkpoint directories, whoever writes into them: complete or absent, the newest ones kept, a bad one put aside."""

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
    """What became of a checkpoint."""

    step: int
    write_time_s: float = 0.0
    size_bytes: int = 0
    error: str | None = None
    """Why it could not be written."""


def complete(directory: Path) -> list[Path]:
    """The complete checkpoints, oldest first."""
    return sorted(directory.glob("step-*"))


def size_bytes(path: Path) -> int:
    """Bytes of a checkpoint on disk."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def save_archive(value: Any, path: Path) -> None:
    """Write torch's archive of a value; given a path, torch.save would not say why a write failed."""
    with path.open("wb") as file:
        torch.save(value, file)


def met_by_ranks(error: BaseException) -> str:
    """What went wrong in reading or writing; of torch's CheckpointException without the traceback of each rank."""
    met = [cause[0] for cause in error.failures.values()] if isinstance(error, CheckpointException) else [error]
    return "; ".join(sorted({"".join(traceback.format_exception_only(each)).strip() for each in met}))


@contextmanager
def written_aside(final: Path, group: dist.ProcessGroup | None = None) -> Iterator[Path]:
    """A hidden directory for all ranks of the group to write into, which gets its name when all have finished.

    Where the writing raises, it has to raise on every rank; the directory is then removed. Raises CheckpointError, on
    every rank, when the directory cannot be made or named.
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
    """Let rank 0 do something while the others wait; an OSError becomes a CheckpointError on every rank."""
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
    """Remove all but the newest `keep` checkpoints; one rank calls it."""
    for old in complete(directory)[:-keep]:
        remove(old)


def remove(checkpoint: Path) -> None:
    """Remove a checkpoint; one that is half removed must not look complete."""
    hidden = checkpoint.with_name(f".{checkpoint.name}.removed")
    checkpoint.rename(hidden)
    shutil.rmtree(hidden)


def newest_readable(run: RunDir, load: Callable[[Path], int]) -> int:
    """Load a run's newest checkpoint that can be read, and return its step; 0 without any. Every rank calls it.

    One that cannot be read is recorded and put aside, as `.step-00000020.unreadable`. Raises CheckpointError when none
    of several can be: starting over is for a person to decide.
    """
    # Rank 0's list: a network file system may show the other nodes an older one.
    names = [[path.name for path in complete(run.checkpoints)]]
    dist.broadcast_object_list(names)
    for name in reversed(names[0]):
        path = run.checkpoints / name
        try:
            return load(path)
        except CheckpointError as error:
            if name == names[0][0]:
                raise CheckpointError(
                    f"{error} No older one can be read; remove {run.checkpoints} to start over."
                ) from error
            if dist.get_rank() == 0:
                path.rename(path.with_name(f".{name}.unreadable"))
                append_event(run, "checkpoint_unreadable", checkpoint=name, error=str(error))
    return 0
