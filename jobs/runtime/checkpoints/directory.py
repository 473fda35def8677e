"""Checkpoint directories of all engines: complete or absent, the newest kept, an unreadable one set aside."""

from __future__ import annotations

import errno
import json
import shutil
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException

from jobs.errors import CheckpointError, SuiteError
from jobs.lease import Lease
from jobs.output import write_file
from jobs.ranks import Rank
from jobs.rundir import RunDir, append_event
from jobs.runtime import storage_io
from jobs.runtime.checkpoints.copies import Copies
from jobs.runtime.checkpoints.sums import SUMS, Summed, refuse_changed
from jobs.runtime.divergence import are_finite
from jobs.runtime.exchange import broadcast, gather
from jobs.runtime.store import refuse_strangers
from jobs.runtime.watchdog import LONGEST_SUSPENSION, within_s
from jobs.schema import Run

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
    copy_errors: Mapping[str, list[str]] = field(default_factory=dict)
    """New errors of copies of earlier ones, each with the nodes that met it (copies)."""


def complete(directory: Path) -> list[Path]:
    """Return the complete checkpoints, oldest first."""
    return sorted(directory.glob("step-*"))


def size_bytes(path: Path) -> int:
    """Return the size of the files in a directory and below it."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def save_archive(value: Any, path: Path) -> int:
    """Write torch's archive of a value and return its CRC-32.

    With a path instead of a file, torch.save hides why a write failed.
    """
    with path.open("wb") as file:
        summed = Summed(file)
        torch.save(value, summed)
    return summed.sum


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

    An error of writing must be raised on every rank, as `together` does; the directory is then removed. Raise
    CheckpointError on every rank where the directory cannot be created or renamed, or another start has taken the run
    over.
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

    first = dist.get_rank() == 0
    with storage_io.saving_checkpoint():
        together(begin if first else None, group)
        try:
            yield writing
            dist.barrier(group)
            together(end if first else None, group)
        except BaseException:
            # Also of a start that has lost the run: the other may have cleaned up just before this began to write.
            if first:
                shutil.rmtree(writing, ignore_errors=True)
            raise


def together(action: Callable[[], None] | None, group: dist.ProcessGroup | None) -> None:
    """Run this rank's action, if it has one, and wait for those of all ranks of the group.

    Raise the errors of writing of any rank as a CheckpointError on every rank: none waits for one that has failed.
    """
    failure = None
    try:
        if action is not None:
            action()
    except OSError as error:
        # A write to an open file names none.
        failure = f"{error.filename}: {error.strerror}" if error.filename else f"{type(error).__name__}: {error}"
    except SuiteError as error:
        failure = str(error)
    failures = sorted({each for each in gather(failure, group) if each is not None})
    if failures:
        raise CheckpointError("; ".join(failures))


def write_sums(checkpoint: Path, own: Mapping[str, int], group: dist.ProcessGroup | None = None) -> None:
    """Write the sums of all ranks' files (checkpoint_sums), given by their path below the checkpoint.

    Every rank of the group calls it, and raises CheckpointError if the first one cannot write them.
    """
    text = json.dumps({"crc32": gather(dict(own), group)})
    together(partial(write_file, checkpoint / SUMS, text) if dist.get_rank() == 0 else None, group)


def group_of_files(run: Run, bytes_at_once: float) -> dist.ProcessGroup:
    """Return a group in which ranks wait while others write this number of bytes; it connects every rank with all.

    A group of its own: the default one is used by training, its backend (NCCL) has no CPU tensors, and its timeout is
    that of a step.
    """
    longest_s = within_s(run.engine.hang_timeout_s, bytes_at_once)
    timeout = LONGEST_SUSPENSION + timedelta(seconds=2 * longest_s)
    group: dist.ProcessGroup = dist.new_group(backend="gloo", timeout=timeout)
    return group


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


def newest_readable(
    run: RunDir,
    load: Callable[[Path], int],
    weights: Callable[[], Iterable[Tensor]],
    copies: Copies | None = None,
) -> int:
    """Load a run's newest readable checkpoint and return its step, on every rank; 0 without a checkpoint.

    `weights` returns this rank's weights after `load`, which reads `copies` where nodes have some. A checkpoint that is
    unreadable, or with a weight that is not finite, is recorded and renamed to `.step-00000020.unreadable`. Raise
    CheckpointError if no checkpoint is readable: the user decides whether to start over.
    """
    # Rank 0's list: on a network file system another node may see an older list.
    names = broadcast([path.name for path in complete(run.checkpoints)])
    for name in reversed(names):
        path = run.checkpoints / name
        try:
            return loaded(path, load, weights, copies)
        except CheckpointError as error:
            if name == names[0]:
                raise CheckpointError(
                    f"{error} No older checkpoint is readable; remove {run.checkpoints} to start over."
                ) from error
            if dist.get_rank() == 0:
                path.rename(path.with_name(f".{name}.unreadable"))
                append_event(run, "checkpoint_unreadable", checkpoint=name, error=str(error))
    return 0


def loaded(
    path: Path,
    load: Callable[[Path], int],
    weights: Callable[[], Iterable[Tensor]],
    copies: Copies | None = None,
) -> int:
    """Load a checkpoint and return its step; raise CheckpointError on every rank if it cannot be continued from."""
    if copies is not None and copies.found(path):
        try:
            return checked(path, load, weights, copies.whole)
        except CheckpointError as error:
            # Copies may vanish while they are read, and never decide about the checkpoint.
            copies.leave(error)
    return checked(path, load, weights)


def checked(
    path: Path, load: Callable[[Path], int], weights: Callable[[], Iterable[Tensor]], known: Collection[str] = ()
) -> int:
    """Check the files of a checkpoint besides those in `known`, load it, and check its weights; return its step."""
    refuse_changed(path, known)
    step = load(path)
    if not all(gather(are_finite(weights()))):
        raise CheckpointError(f"Checkpoint {path} contains a weight that is not finite.")
    return step
