"""Shards of JPEG images: found by their file type, divided among readers, and read."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from jobs.errors import DataError
from jobs.work.images import recordio
from jobs.work.storage.samples import samples_of_tar

TAR, RECORDIO = ".tar", ".rec"
JPEG, LABEL = ("jpg", "jpeg"), "cls"


@dataclass(frozen=True)
class Part:
    """A piece of the data set that one reader reads from front to back."""

    file: Path
    positions: tuple[int, ...] = ()
    """First bytes of its records in a RecordIO file; a tar shard is read as a whole."""

    def images(self) -> Iterator[tuple[str, bytes, int]]:
        """Yield name, JPEG and label of each image; raise DataError for a file without one, or a damaged one."""
        if self.positions:
            yield from recordio.read_images(self.file, self.positions)
            return
        empty = True
        for key, sample in samples_of_tar(self.file):
            jpeg = next((sample[ending] for ending in JPEG if ending in sample), None)
            if jpeg is None or LABEL not in sample:
                absent = "image (.jpg)" if jpeg is None else "label (.cls)"
                raise DataError(f"{self.file}: sample {key} has no {absent}. Each needs KEY.jpg and KEY.cls.")
            try:
                label = int(sample[LABEL])
            except ValueError as error:
                raise DataError(
                    f"{self.file}: the label of sample {key} is not a whole number. Write one, 0 or more, into "
                    f"{key}.cls."
                ) from error
            yield key, jpeg, label
            empty = False
        if empty:
            raise without_images(self.file)


def without_images(file: Path) -> DataError:
    """Return the error of a shard without an image."""
    return DataError(f"{file} has no images: it is an empty shard. Remove it, or copy it again from its source.")


def shards_of(path: Path, key: str = "images.path") -> list[Path]:
    """Return the shards of a directory, of one type; raise DataError if there are none, or an empty one."""
    if not path.is_dir():
        raise DataError(f"{key}={path} is not a directory here. Set {key}=DIRECTORY, which all nodes see.")
    found = {ending: sorted(path.glob(f"*{ending}")) for ending in (TAR, RECORDIO)}
    if not any(found.values()):
        raise DataError(
            f"{key}={path} has no {TAR} or {RECORDIO} files. Set it to a directory with some, make some by "
            f"`slurmscale images DIRECTORY`, or set {key}=null."
        )
    if all(found.values()):
        raise DataError(f"{key}={path} has {TAR} and {RECORDIO} files. Move those of one type elsewhere.")
    shards = found[TAR] or found[RECORDIO]
    for file in shards:
        if not file.stat().st_size:
            raise without_images(file)
    return shards


def cut(shards: list[Path], readers: int) -> list[Part]:
    """Return the shards as parts: tar shards as they are, RecordIO files in pieces where they are too few."""
    if shards[0].suffix == TAR:
        return [Part(file) for file in shards]
    parts = []
    for file in shards:
        positions = recordio.positions(file)
        if not positions:
            raise without_images(file)
        # Enough pieces that each reader has one, and not more: within a piece reading is sequential.
        pieces = min(len(positions), -(-readers // len(shards)))
        bounds = [len(positions) * piece // pieces for piece in range(pieces + 1)]
        parts += [Part(file, tuple(positions[a:b])) for a, b in pairwise(bounds)]
    return parts


def parts_of(shards: list[Path], readers: int) -> list[Part]:
    """Return at least as many parts as readers; raise DataError if there are fewer."""
    parts = cut(shards, readers)
    if len(parts) < readers:
        raise DataError(
            f"{shards[0].parent} has {len(parts)} shards, and {readers} readers (ranks x images.workers) each need "
            "one. Set fewer images.workers or ranks, or cut the data into more shards."
        )
    return parts


@dataclass(frozen=True)
class Streamed:
    """An image of a reader's stream."""

    number: int
    """Images of the stream before it."""
    epoch: int
    turn: int
    """Parts of the reader in this epoch before its part."""
    first: int
    """Number of the first image of its part."""
    file: Path
    name: str
    jpeg: bytes
    label: int


def stream(
    parts: list[Part], reader: int, readers: int, seed: int, begin: tuple[int, int, int] = (0, 0, 0)
) -> Iterator[Streamed]:
    """Yield the images of a reader without end: in each epoch it has other parts, drawn from the seed.

    Begin with the part of an epoch and turn, whose first image has a number. Where readers do not divide the parts,
    some begin their next epoch earlier.
    """
    epoch, turn, number = begin
    while True:
        order = random.Random(f"{seed} {epoch}").sample(parts, len(parts))  # noqa: S311 (no secret)
        for part in order[reader::readers][turn:]:
            first = number
            for name, jpeg, label in part.images():
                yield Streamed(number, epoch, turn, first, part.file, name, jpeg, label)
                number += 1
            turn += 1
        epoch, turn = epoch + 1, 0


def held_out(parts: list[Part], reader: int, readers: int) -> Iterator[Streamed]:
    """Yield the images of a reader's parts, each once; with fewer parts than readers, some readers have no images."""
    number = 0
    for turn, part in enumerate(parts[reader::readers]):
        first = number
        for name, jpeg, label in part.images():
            yield Streamed(number, 0, turn, first, part.file, name, jpeg, label)
            number += 1
