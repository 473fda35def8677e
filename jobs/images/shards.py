"""Shards of JPEG images: found by their file type, divided among readers, and read."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from jobs.errors import DataError
from jobs.images import recordio
from jobs.storage.samples import samples_of_tar

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
                    f"{self.file}: the label of sample {key} is no whole number. Write one, 0 or more, into {key}.cls."
                ) from error
            yield key, jpeg, label
            empty = False
        if empty:
            raise without_images(self.file)


def without_images(file: Path) -> DataError:
    """Return the error of a shard without an image."""
    return DataError(f"{file} has no images: it is an empty shard. Remove it, or copy it again from its source.")


def shards_of(path: Path) -> list[Path]:
    """Return the shards of a directory, of one type; raise DataError where there are none, or an empty one."""
    if not path.is_dir():
        raise DataError(f"images.path={path} is no directory here. Set images.path=DIRECTORY, which all nodes see.")
    found = {ending: sorted(path.glob(f"*{ending}")) for ending in (TAR, RECORDIO)}
    if not any(found.values()):
        raise DataError(
            f"images.path={path} has no {TAR} or {RECORDIO} files. Set it to a directory with some, make some by "
            "`slurmscale images DIRECTORY`, or set images.path=null."
        )
    if all(found.values()):
        raise DataError(f"images.path={path} has {TAR} and {RECORDIO} files. Move those of one type elsewhere.")
    shards = found[TAR] or found[RECORDIO]
    for file in shards:
        if not file.stat().st_size:
            raise without_images(file)
    return shards


def parts_of(shards: list[Path], readers: int) -> list[Part]:
    """Return at least as many parts as readers: tar shards as they are, RecordIO files cut where they are too few.

    Raise DataError where there are fewer.
    """
    if shards[0].suffix == TAR:
        parts = [Part(file) for file in shards]
    else:
        parts = []
        for file in shards:
            positions = recordio.positions(file)
            if not positions:
                raise without_images(file)
            pieces = min(len(positions), -(-readers // len(shards)))
            bounds = [len(positions) * piece // pieces for piece in range(pieces + 1)]
            parts += [Part(file, tuple(positions[a:b])) for a, b in pairwise(bounds)]
    if len(parts) < readers:
        raise DataError(
            f"{shards[0].parent} has {len(parts)} shards, and {readers} readers (ranks x images.workers) each need "
            "one. Set fewer images.workers or ranks, or cut the data into more shards."
        )
    return parts


def stream(parts: list[Part], reader: int, readers: int, seed: int) -> Iterator[tuple[Path, str, bytes, int]]:
    """Yield the images of a reader without end: in each epoch it has other parts, drawn from the seed.

    Where readers do not divide the parts, some begin their next epoch earlier.
    """
    epoch = 0
    while True:
        order = random.Random(f"{seed} {epoch}").sample(parts, len(parts))  # noqa: S311 (no secret)
        for part in order[reader::readers]:
            for name, jpeg, label in part.images():
                yield part.file, name, jpeg, label
        epoch += 1
