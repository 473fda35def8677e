"""Images of a rank: read, decoded and augmented by the workers of torch's DataLoader.

Augmentation as in training on ImageNet: a crop of 8 to 100 % of the area with an aspect ratio of 3/4 to 4/3, resized,
mirrored half of the time (https://arxiv.org/abs/1409.4842, section 6). Held-out images have the central crop of
https://arxiv.org/abs/1512.03385: 7/8 of the shorter side. Workers send bytes, a quarter of float32.

Order and augmentation of a reader follow from the seed and the number of the image alone. A worker sends its position
with each batch, so that a checkpoint has the position after the batches that were used, not after those made ahead.
"""

from __future__ import annotations

import io
import math
import random
import signal
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from jobs.errors import DataError
from jobs.failures import STOPS
from jobs.images.settings import ImageTraining
from jobs.images.shards import Part, Streamed, held_out, stream

AREAS, RATIOS = (0.08, 1.0), (3 / 4, 4 / 3)
TRIES = 10
"""Crops that are drawn until one lies within the image."""
CENTRAL_SHARE = 7 / 8
"""Side of the central crop divided by the shorter side of the image: 224 of 256 pixels."""
Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Position:
    """The place of a reader in its endless images, between two batches."""

    epoch: int = 0
    turn: int = 0
    """Epoch and turn in it of the part that has the oldest waiting image."""
    first: int = 0
    """Number of the first image of this part."""
    given: int = 0
    """Images that the reader has given."""
    waiting: tuple[int, ...] = ()
    """Numbers of the images that wait, in their order."""

    @property
    def numbers(self) -> list[int]:
        """Return the position as numbers, for a tensor or a file."""
        return [self.epoch, self.turn, self.first, self.given, *self.waiting]

    @classmethod
    def of(cls, numbers: Sequence[int]) -> Position:
        """Return the position of some numbers."""
        epoch, turn, first, given, *waiting = numbers
        return cls(epoch, turn, first, given, tuple(waiting))


class Batch(NamedTuple):
    """A micro-batch: pixels (N, size, size, 3) in bytes, labels (N), and numbers of the reader's position after it."""

    pixels: Tensor
    labels: Tensor
    position: Tensor | None = None


class Images(IterableDataset[Batch | DataError]):
    """The endless micro-batches of a rank; every worker has its own parts. An error comes as a value."""

    def __init__(
        self, settings: ImageTraining, parts: list[Part], *, batch_size: int, rank: int, ranks: int, seed: int
    ) -> None:
        super().__init__()
        self.settings, self.parts, self.batch_size, self.seed = settings, parts, batch_size, seed
        self.rank, self.ranks, self.workers = rank, ranks, max(1, settings.workers)
        self.taken = 0
        """Micro-batches that the rank has used."""
        self.positions = [Position()] * self.workers

    @property
    def order(self) -> list[int]:
        """Return what the order of images depends on, besides the seed; a position has no meaning in another one."""
        return [self.ranks, self.workers, self.settings.shuffle, len(self.parts), self.batch_size]

    def state(self) -> dict[str, Any]:
        """Return the order and this rank's place in it, for a file."""
        positions = [position.numbers for position in self.positions]
        return {"order": self.order, "seed": self.seed, "taken": self.taken, "positions": positions}

    def continue_from(self, state: Mapping[str, Any]) -> None:
        """Continue at the place of a state of this rank and order."""
        self.seed, self.taken = int(state["seed"]), int(state["taken"])
        self.positions = [Position.of(list(map(int, numbers))) for numbers in state["positions"]]

    def used(self, batch: Batch) -> None:
        """Note that a micro-batch was used: the workers take turns."""
        assert batch.position is not None
        self.positions[self.taken % self.workers] = Position.of(batch.position.tolist())
        self.taken += 1

    def __iter__(self) -> Iterator[Batch | DataError]:
        """Yield the micro-batches of this worker; the first one has the turn."""
        worker = get_worker_info()
        number = (self.taken + (worker.id if worker else 0)) % self.workers
        try:
            yield from self.batches(number, self.positions[number])
        except DataError as error:
            # As a value: the loader would put the worker's traceback in front of its text.
            yield error

    def batches(self, number: int, begin: Position) -> Iterator[Batch]:
        """Yield the micro-batches of a worker from a position on."""
        reader, readers = self.rank * self.workers + number, self.ranks * self.workers
        images = stream(self.parts, reader, readers, self.seed, (begin.epoch, begin.turn, begin.first))
        # Read again what waited; the images among them were given before.
        read = begin.given + len(begin.waiting)
        wanted = set(begin.waiting)
        again = {each.number: each for each in islice(images, read - begin.first) if each.number in wanted}
        waiting = [again[each] for each in begin.waiting]
        given, pixels, labels = begin.given, [], []
        for image in images:
            waiting.append(image)
            if len(waiting) < self.settings.shuffle:
                continue
            draw = random.Random(f"{self.seed} reader {reader} image {given}")  # noqa: S311 (no secret)
            place = draw.randrange(len(waiting))
            waiting[place], waiting[-1] = waiting[-1], waiting[place]
            chosen = waiting.pop()
            given += 1
            whole = usable(chosen, self.settings.classes)
            box = random_box(whole.width, whole.height, draw)
            pixels.append(cropped(whole, box, self.settings.size, mirrored=draw.random() < 0.5))
            labels.append(chosen.label)
            if len(labels) == self.batch_size:
                oldest = min(waiting, key=lambda each: each.number, default=image)
                numbers = tuple(each.number for each in waiting)
                position = Position(oldest.epoch, oldest.turn, oldest.first, given, numbers)
                yield Batch(torch.stack(pixels), torch.tensor(labels), torch.tensor(position.numbers))
                pixels, labels = [], []


class HeldOut(IterableDataset[Batch | DataError]):
    """The held-out images of a rank, each once in all ranks and workers, in micro-batches; the last may be smaller."""

    def __init__(self, settings: ImageTraining, parts: list[Part], *, batch_size: int, rank: int, ranks: int) -> None:
        super().__init__()
        self.settings, self.parts, self.batch_size, self.rank, self.ranks = settings, parts, batch_size, rank, ranks

    def __iter__(self) -> Iterator[Batch | DataError]:
        """Yield the micro-batches of this worker."""
        worker = get_worker_info()
        workers, number = (worker.num_workers, worker.id) if worker else (1, 0)
        images = held_out(self.parts, self.rank * workers + number, self.ranks * workers)
        try:
            while some := list(islice(images, self.batch_size)):
                whole = [usable(each, self.settings.classes) for each in some]
                pixels = [cropped(each, central_box(each.width, each.height), self.settings.size) for each in whole]
                yield Batch(torch.stack(pixels), torch.tensor([each.label for each in some]))
        except DataError as error:
            yield error


def usable(image: Streamed, classes: int) -> Image.Image:
    """Return a decoded image whose label the network knows; raise DataError."""
    name = f"{image.file}: {image.name}"
    refuse_unknown_class(image.label, classes, name)
    return decoded(image.jpeg, name)


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


def cropped(image: Image.Image, box: Box, size: int, *, mirrored: bool = False) -> Tensor:
    """Return a crop (left, upper, right, lower side) as bytes (size, size, 3)."""
    pixels = np.asarray(image.resize((size, size), Image.Resampling.BILINEAR, box=box))
    # A copy: the pixels of Pillow cannot be written, which torch wants.
    return torch.from_numpy(np.array(pixels[:, ::-1] if mirrored else pixels, order="C"))


def random_box(width: int, height: int, draw: random.Random) -> Box:
    """Return left, upper, right and lower side of a random crop; a central one where none lies within the image."""
    for _ in range(TRIES):
        area = width * height * draw.uniform(*AREAS)
        ratio = math.exp(draw.uniform(*map(math.log, RATIOS)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, upper = draw.randint(0, width - w), draw.randint(0, height - h)
            return left, upper, left + w, upper + h
    return centred(width, height, min(width, height * RATIOS[1]), min(height, width / RATIOS[0]))


def central_box(width: int, height: int) -> Box:
    """Return the sides of the central crop of a held-out image."""
    side = CENTRAL_SHARE * min(width, height)
    return centred(width, height, side, side)


def centred(width: int, height: int, w: float, h: float) -> Box:
    """Return the sides of a box of w x h in the middle of an image."""
    return (width - w) / 2, (height - h) / 2, (width + w) / 2, (height + h) / 2


def loaded(images: Images | HeldOut, *, pinned: bool) -> Generator[Batch]:
    """Yield the micro-batches that the workers make, in turn; raise the DataError of a worker."""
    settings = images.settings
    loader = DataLoader(
        images,
        batch_size=None,
        num_workers=settings.workers,
        prefetch_factor=settings.prefetch if settings.workers else None,
        worker_init_fn=outlive_requests_to_stop,
        pin_memory=pinned,
    )
    found = iter(loader)
    try:
        for batch in found:
            if isinstance(batch, DataError):
                raise batch
            yield batch
    finally:
        if settings.workers:
            # At its end Python would wait for workers, which ignore its request to end; torch has no public name.
            found._shutdown_workers()  # type: ignore[attr-defined]  # noqa: SLF001


def steps_of(images: Images, count: int, *, pinned: bool) -> Generator[list[Batch]]:
    """Yield for each step its `count` micro-batches, without end, and note that they are used."""
    ready = loaded(images, pinned=pinned)
    try:
        while True:
            batch = list(islice(ready, count))
            for each in batch:
                images.used(each)
            yield batch
    finally:
        ready.close()


def outlive_requests_to_stop(_worker: int) -> None:
    """Let a worker ignore the signals that ask the whole job to stop: its rank ends a step, and then the worker."""
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)
