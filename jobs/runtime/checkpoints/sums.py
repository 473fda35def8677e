"""Checksums of the files of a checkpoint: a byte that changed on its disk is found before it is trained on.

The rank that writes a file computes its CRC-32 from the bytes on their way to the file, and the first rank writes the
sums of all of them to checksums.json. Before loading, each file is read by the rank that wrote it, or that has its
number modulo the ranks: in the same layout this rank loads it next, from memory. Checkpoints without sums are loaded
without this check.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import compress
from pathlib import Path
from typing import IO, Any

import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystem

from jobs.errors import CheckpointError
from jobs.files import exists, opened, read_object
from jobs.runtime.exchange import gather

SUMS = "checksums.json"
CHUNK_BYTES = 1 << 22


class Summed:
    """A file opened for writing, and the CRC-32 of what was written to it."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.sum = 0

    def write(self, data: Any) -> int:
        """Write bytes after those before."""
        self.sum = zlib.crc32(data, self.sum)
        return self.file.write(data)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the file."""
        return getattr(self.file, name)


class SummedFiles(FileSystem):
    """The file system of torch's distributed checkpoints; `sums` contains the CRC-32 of each file written, by name."""

    def __init__(self) -> None:
        self.sums: dict[str, int] = {}

    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[Any]:
        """Open a file."""
        with super().create_stream(path, mode) as file:
            stream = Summed(file) if mode == "wb" else file  # type: ignore[arg-type]  # torch names its base only
            yield stream
        if isinstance(stream, Summed):
            self.sums[Path(path).name] = stream.sum

    def rename(self, path: Any, new_path: Any) -> None:
        """Rename a file."""
        super().rename(path, new_path)
        self.sums[Path(new_path).name] = self.sums.pop(Path(path).name)


def refuse_changed(checkpoint: Path, known: Collection[str] = ()) -> None:
    """Raise CheckpointError on every rank if a file is not what was written; every rank calls it.

    Files in `known` are not looked at: this rank reads checked copies of them. A checkpoint of an earlier version has
    no sums: it passes, and rank 0 prints a line about it.
    """
    if dist.get_rank() == 0 and not exists(checkpoint / SUMS):
        print(f"{checkpoint} has no {SUMS}: an earlier version wrote it, and it is loaded without a check.", flush=True)
    try:
        found = list(changed(checkpoint, dist.get_rank(), dist.get_world_size(), known))
        error = f"{', '.join(found)} changed after it was written" if found else None
    except (OSError, ValueError, TypeError, AttributeError, KeyError) as failure:
        error = f"{SUMS}: {type(failure).__name__}: {failure}"
    if met := sorted({each for each in gather(error) if each is not None}):
        raise CheckpointError(f"Checkpoint {checkpoint} cannot be read: {'; '.join(met)}.")


def sums_of_ranks(checkpoint: Path) -> list[dict[str, int]]:
    """Return the sums of the files that each rank wrote, by name."""
    found: list[dict[str, int]] = read_object(checkpoint / SUMS)["crc32"]
    return found


def changed(checkpoint: Path, rank: int, ranks: int, known: Collection[str]) -> Iterator[str]:
    """Yield the files that this rank looks at and that are missing, or not what was written."""
    if not exists(checkpoint / SUMS):
        return
    files = {file.relative_to(checkpoint).as_posix() for file in checkpoint.rglob("*")}
    expected = {
        name: value
        for sums in sums_of_ranks(checkpoint)[rank::ranks]
        for name, value in sums.items()
        if name not in known
    }

    def is_changed(name: str) -> bool:
        # A name from elsewhere could lead out of the checkpoint.
        return name not in files or sum_of(checkpoint / name) != expected[name]

    # The only rank of an evaluation reads the files of all ranks that trained. Reads and sums run outside of the GIL.
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        yield from compress(expected, pool.map(is_changed, expected))


def sum_of(path: Path) -> int:
    """Return the CRC-32 of a file."""
    found = 0
    with opened(path) as file:
        while chunk := file.read(CHUNK_BYTES):
            found = zlib.crc32(chunk, found)
    return found
