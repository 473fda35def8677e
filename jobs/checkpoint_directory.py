"""Checkpoint directories, whoever writes into them: complete or absent, the newest ones kept."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch.distributed as dist


def complete(directory: Path) -> list[Path]:
    """The complete checkpoints, oldest first."""
    return sorted(directory.glob("step-*"))


def size_bytes(path: Path) -> int:
    """Bytes of a checkpoint on disk."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


@contextmanager
def written_aside(final: Path) -> Iterator[Path]:
    """A hidden directory for all ranks to write into, which gets its name when all of them have finished."""
    writing = final.with_name(f".{final.name}.writing")
    if dist.get_rank() == 0:
        final.parent.mkdir(exist_ok=True)
        for torn in final.parent.glob(".*.writing"):
            shutil.rmtree(torn)
        writing.mkdir()
    dist.barrier()
    yield writing
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(final, ignore_errors=True)
        writing.rename(final)
    dist.barrier()


def keep_newest(directory: Path, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints."""
    if dist.get_rank() == 0:
        for old in complete(directory)[:-keep]:
            shutil.rmtree(old)
