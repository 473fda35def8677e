"""Make shards of random JPEG images with the sizes of ImageNet's: `slurmscale images`, and runs without images.path.

An image has coarse random colours and noise, so that it decodes like a photograph of its size; its label is random.
The numbers of pixels have a log-normal distribution. An image depends on seed and number alone.
"""

from __future__ import annotations

import io
import math
import os
import shutil
import tarfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from jobs.errors import ConfigError, DataError
from jobs.work.images.recordio import write_records
from jobs.work.images.shards import RECORDIO, TAR
from jobs.work.storage.samples import add_sample

QUALITY = 90
NOISE = 40
BYTES_PER_PIXEL = 0.6
"""Measured with this quality and noise, next to the head of a file."""
HEAD_BYTES = 700
SPREAD = 0.5
"""Standard deviation of the logarithm of the number of pixels."""
CELL = 32
"""Pixels between two random colours."""
LEAST_PIXELS = 16 * 16
FORMATS = {"tar": TAR, "recordio": RECORDIO}


def make_images(
    directory: Path, *, count: int, shards: int, mean_kb: float, classes: int, seed: int, kind: str = "tar"
) -> int:
    """Write shards of random images into a new or empty directory; return their bytes.

    Raise ConfigError for numbers that make no shards, DataError where shards exist, or the disk has no room.
    """
    for name, value, least in (("count", count, shards), ("shards", shards, 1), ("classes", classes, 1)):
        if value < least:
            remedy = ", an image for each shard, or fewer --shards" if name == "count" else ""
            raise ConfigError(f"--{name} {value} is too small: give {least} or more{remedy}.")
    if not 1 <= mean_kb < 10_000:
        raise ConfigError(f"--mean-kb {mean_kb:g} is outside 1 to 10,000.")
    if any(found := sorted(file for ending in FORMATS.values() for file in directory.glob(f"*{ending}"))):
        raise DataError(f"{directory} has shards already, such as {found[0].name}. Name another directory.")
    refuse_full(directory, count, mean_kb)
    directory.mkdir(parents=True, exist_ok=True)
    write = partial(
        write_shard, directory, count=count, shards=shards, mean_kb=mean_kb, classes=classes, seed=seed, kind=kind
    )
    with ProcessPoolExecutor(min(shards, len(os.sched_getaffinity(0)))) as processes:
        return sum(processes.map(write, range(shards)))


def refuse_full(directory: Path, count: int, mean_kb: float) -> None:
    """Raise DataError if a directory has no room for these images; a missing directory is its parent."""
    existing = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    # A tar entry has a head and fills blocks of 512 bytes, for image and label.
    needed, free = count * (1000 * mean_kb + 4 * 512), shutil.disk_usage(existing).free
    if needed >= free:
        raise DataError(
            f"{count:,} images of {mean_kb:g} kB need {needed / 1e9:,.1f} GB in {directory}, which has "
            f"{free / 1e9:,.1f} GB free. Make {int(0.9 * free / needed * count):,} or fewer, or name a larger storage."
        )


def write_shard(
    directory: Path, number: int, *, count: int, shards: int, mean_kb: float, classes: int, seed: int, kind: str = "tar"
) -> int:
    """Write one of several shards, complete or not at all; return its bytes. One that exists stays as it is."""
    final = directory / f"{number:06d}{FORMATS[kind]}"
    if not final.exists():
        mine = range(number, count, shards)
        images = random_images(mine, mean_kb=mean_kb, classes=classes, seed=seed)
        writing = directory / f".{final.name}.writing"
        if kind == "recordio":
            write_records(writing, images)
            writing.with_suffix(".idx").rename(final.with_suffix(".idx"))
        else:
            write_tar(writing, zip((f"{each:08d}" for each in mine), images, strict=True))
        writing.rename(final)
    return final.stat().st_size


def write_tar(file: Path, samples: Iterable[tuple[str, tuple[bytes, int]]]) -> None:
    """Write a tar shard in WebDataset's layout."""
    with tarfile.open(file, "w") as shard:
        for key, (jpeg, label) in samples:
            add_sample(shard, key, {"jpg": jpeg, "cls": str(label).encode()})


def random_images(numbers: Iterable[int], *, mean_kb: float, classes: int, seed: int) -> Iterator[tuple[bytes, int]]:
    """Yield JPEG and label of the images with these numbers."""
    mean_pixels = max(1.0, 1000 * mean_kb - HEAD_BYTES) / BYTES_PER_PIXEL
    for number in numbers:
        draw = np.random.default_rng((seed, number))
        # The mean of a log-normal distribution is exp(mu + sigma^2 / 2).
        pixels = max(LEAST_PIXELS, draw.lognormal(math.log(mean_pixels) - SPREAD**2 / 2, SPREAD))
        shape = math.exp(draw.uniform(math.log(3 / 4), math.log(4 / 3)))
        yield (
            random_jpeg(draw, round(math.sqrt(pixels * shape)), round(math.sqrt(pixels / shape))),
            int(draw.integers(classes)),
        )


def random_jpeg(draw: np.random.Generator, width: int, height: int) -> bytes:
    """Return a JPEG of coarse random colours with noise."""
    from PIL import Image

    cells = draw.integers(0, 256, (height // CELL + 2, width // CELL + 2, 3), dtype=np.uint8)
    colours = Image.fromarray(cells).resize((width, height), Image.Resampling.BICUBIC)
    noise = draw.integers(-NOISE, NOISE + 1, (height, width, 1), dtype=np.int16)
    image = Image.fromarray((np.asarray(colours) + noise).clip(0, 255).astype(np.uint8))
    content = io.BytesIO()
    image.save(content, "JPEG", quality=QUALITY)
    return content.getvalue()
