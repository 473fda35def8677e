"""Images of a rank: read, decoded and augmented by the workers of torch's DataLoader.

Augmentation as in training on ImageNet: a crop of 8 to 100 % of the area with an aspect ratio of 3/4 to 4/3, resized,
mirrored half of the time (https://arxiv.org/abs/1409.4842, section 6). Workers send bytes, a quarter of float32.
"""

from __future__ import annotations

import io
import math
import random
import signal
from collections.abc import Generator, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from jobs.errors import DataError
from jobs.failures import STOPS
from jobs.images.settings import ImageTraining
from jobs.images.shards import Part, stream

AREAS, RATIOS = (0.08, 1.0), (3 / 4, 4 / 3)
TRIES = 10
"""Crops that are drawn until one lies within the image."""
Pixels = npt.NDArray[np.uint8]
Batch = tuple[Tensor, Tensor]
"""Pixels (N, size, size, 3) in bytes and labels (N)."""


class Images(IterableDataset[tuple[Pixels, int] | DataError]):
    """The endless images of a rank; every worker has its own parts. An image that cannot be used is its error."""

    def __init__(self, settings: ImageTraining, parts: list[Part], *, rank: int, ranks: int, seed: int) -> None:
        super().__init__()
        self.settings, self.parts, self.rank, self.ranks, self.seed = settings, parts, rank, ranks, seed

    def __iter__(self) -> Iterator[tuple[Pixels, int] | DataError]:
        """Yield the augmented images of this worker with their labels."""
        worker = get_worker_info()
        workers, number = (1, 0) if worker is None else (worker.num_workers, worker.id)
        reader, readers = self.rank * workers + number, self.ranks * workers
        draw = random.Random(f"{self.seed} reader {reader}")  # noqa: S311 (no secret)
        waiting = []
        try:
            for image in stream(self.parts, reader, readers, self.seed):
                waiting.append(image)
                if len(waiting) >= self.settings.shuffle:
                    place = draw.randrange(len(waiting))
                    waiting[place], waiting[-1] = waiting[-1], waiting[place]
                    file, name, jpeg, label = waiting.pop()
                    refuse_unknown_class(label, self.settings.classes, f"{file}: {name}")
                    yield augmented(decoded(jpeg, f"{file}: {name}"), self.settings.size, draw), label
        except DataError as error:
            # As a value: the loader would put the worker's traceback in front of its text.
            yield error


def refuse_unknown_class(label: int, classes: int, name: str) -> None:
    """Raise DataError for a label that the network has no logit for."""
    if not 0 <= label < classes:
        raise DataError(
            f"{name} has label {label}, and images.classes={classes} allows 0 to {classes - 1}. Set images.classes to "
            "the number of classes of the data."
        )


def decoded(jpeg: bytes, name: str) -> Image.Image:
    """Return an image in RGB; raise DataError where it is no complete JPEG."""
    try:
        return Image.open(io.BytesIO(jpeg), formats=["JPEG"]).convert("RGB")
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(
            f"{name} is no complete JPEG ({str(error).partition(' <')[0]}). Remove it from its shard, or copy the "
            "shard again from its source."
        ) from error


def augmented(image: Image.Image, size: int, draw: random.Random) -> Pixels:
    """Return a random crop (size, size, 3), mirrored half of the time."""
    cropped = image.resize((size, size), Image.Resampling.BILINEAR, box=random_box(image.width, image.height, draw))
    pixels = np.asarray(cropped)
    # A copy: the pixels of Pillow cannot be written, which torch wants.
    return np.array(pixels[:, ::-1] if draw.random() < 0.5 else pixels, order="C")


def random_box(width: int, height: int, draw: random.Random) -> tuple[float, float, float, float]:
    """Return left, upper, right and lower side of a random crop; a central one where none lies within the image."""
    for _ in range(TRIES):
        area = width * height * draw.uniform(*AREAS)
        ratio = math.exp(draw.uniform(*map(math.log, RATIOS)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, upper = draw.randint(0, width - w), draw.randint(0, height - h)
            return left, upper, left + w, upper + h
    widest, highest = min(width, height * RATIOS[1]), min(height, width / RATIOS[0])
    return (width - widest) / 2, (height - highest) / 2, (width + widest) / 2, (height + highest) / 2


def batches(images: Images, batch_size: int, count: int, *, pinned: bool) -> Generator[list[Batch]]:
    """Yield for each step its `count` micro-batches, without end; raise the DataError of a worker."""
    settings = images.settings
    loader = DataLoader(
        images,
        batch_size=batch_size,
        num_workers=settings.workers,
        prefetch_factor=settings.prefetch if settings.workers else None,
        collate_fn=collated,
        worker_init_fn=outlive_requests_to_stop,
        pin_memory=pinned,
    )
    found = iter(loader)
    try:
        while True:
            step = []
            for _ in range(count):
                batch = next(found)
                if isinstance(batch, DataError):
                    raise batch
                step.append(batch)
            yield step
    finally:
        if settings.workers:
            # At its end Python would wait for workers, which ignore its request to end; torch has no public name.
            found._shutdown_workers()  # type: ignore[attr-defined]  # noqa: SLF001


def collated(samples: Sequence[tuple[Pixels, int] | DataError]) -> Batch | DataError:
    """Return pixels and labels as tensors, or the first error."""
    images, labels = [], []
    for sample in samples:
        if isinstance(sample, DataError):
            return sample
        images.append(torch.from_numpy(sample[0]))
        labels.append(sample[1])
    return torch.stack(images), torch.tensor(labels)


def outlive_requests_to_stop(_worker: int) -> None:
    """Let a worker ignore the signals that ask the whole job to stop: its rank ends a step, and then the worker."""
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)
