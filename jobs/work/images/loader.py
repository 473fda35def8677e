"""Images of a rank: read and chosen by the workers of torch's DataLoader, and decoded by them or by DALI.

Order and augmentation of a reader follow from the seed and the number of the image alone. A worker sends its position
with each batch, so that a checkpoint has the position after the batches that were used, not after those made ahead.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from jobs.data.batches import Work
from jobs.errors import DataError
from jobs.failure_causes import STOPS
from jobs.settings.images import ImageDecoder, ImageTraining
from jobs.work.images.decoding import Batch, Crop, Encoded, batch_of, central_box, random_box, usable
from jobs.work.images.shards import Part, held_out, stream


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


class Images(IterableDataset[Batch | Encoded | DataError]):
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
        self.other_order = False
        """The images after a checkpoint are not those that an uninterrupted run would have seen."""

    @property
    def order(self) -> list[int]:
        """Return what the order of images depends on, besides the seed; a position has no meaning in another one."""
        return [self.ranks, self.workers, self.settings.shuffle, len(self.parts), self.batch_size]

    def state(self) -> dict[str, Any]:
        """Return the order and this rank's place in it, for a file."""
        positions = [position.numbers for position in self.positions]
        return {"order": self.order, "seed": self.seed, "taken": self.taken, "positions": positions}

    def continue_from(self, state: Mapping[str, Any], step: int) -> None:
        """Continue with the images after those of a checkpoint; of another order, or without one, with other images."""
        self.other_order = state.get("order") != self.order
        if self.other_order:
            # With the first seed the run would see the images of its start again.
            self.seed += step
            return
        self.seed, self.taken = int(state["seed"]), int(state["taken"])
        self.positions = [Position.of(list(map(int, numbers))) for numbers in state["positions"]]

    def used(self, batch: Batch) -> None:
        """Note that a micro-batch was used: the workers take turns."""
        assert batch.position is not None
        self.positions[self.taken % self.workers] = Position.of(batch.position.tolist())
        self.taken += 1

    def __iter__(self) -> Iterator[Batch | Encoded | DataError]:
        """Yield the micro-batches of this worker; the first one has the turn."""
        worker = get_worker_info()
        number = (self.taken + (worker.id if worker else 0)) % self.workers
        try:
            yield from self.batches(number, self.positions[number])
        except DataError as error:
            # As a value: the loader would put the worker's traceback in front of its text.
            yield error

    def batches(self, number: int, begin: Position) -> Iterator[Batch | Encoded]:
        """Yield the micro-batches of a worker from a position on."""
        reader, readers = self.rank * self.workers + number, self.ranks * self.workers
        images = stream(self.parts, reader, readers, self.seed, (begin.epoch, begin.turn, begin.first))
        # Read again what waited; the images among them were given before.
        read = begin.given + len(begin.waiting)
        wanted = set(begin.waiting)
        again = {each.number: each for each in islice(images, read - begin.first) if each.number in wanted}
        waiting = [again[each] for each in begin.waiting]
        given = begin.given
        crops: list[Crop] = []
        for image in images:
            waiting.append(image)
            if len(waiting) < self.settings.shuffle:
                continue
            # Drawn from its number, not from a stream of draws: a restart needs no replay to draw the same.
            draw = random.Random(f"{self.seed} reader {reader} image {given}")  # noqa: S311 (no secret)
            place = draw.randrange(len(waiting))
            waiting[place], waiting[-1] = waiting[-1], waiting[place]
            chosen = waiting.pop()
            given += 1
            header = usable(chosen, self.settings.classes)
            crops.append(Crop(chosen, header, random_box(*header.size, draw), mirrored=draw.random() < 0.5))
            if len(crops) == self.batch_size:
                oldest = min(waiting, key=lambda each: each.number, default=image)
                numbers = tuple(each.number for each in waiting)
                position = Position(oldest.epoch, oldest.turn, oldest.first, given, numbers)
                yield batch_of(crops, self.settings, torch.tensor(position.numbers))
                crops = []


class HeldOut(IterableDataset[Batch | Encoded | DataError]):
    """The held-out images of a rank, each once in all ranks and workers, in micro-batches; the last may be smaller."""

    def __init__(self, settings: ImageTraining, parts: list[Part], *, batch_size: int, rank: int, ranks: int) -> None:
        super().__init__()
        self.settings, self.parts, self.batch_size, self.rank, self.ranks = settings, parts, batch_size, rank, ranks

    def __iter__(self) -> Iterator[Batch | Encoded | DataError]:
        """Yield the micro-batches of this worker."""
        worker = get_worker_info()
        workers, number = (worker.num_workers, worker.id) if worker else (1, 0)
        images = held_out(self.parts, self.rank * workers + number, self.ranks * workers)
        try:
            while some := list(islice(images, self.batch_size)):
                headers = [usable(each, self.settings.classes) for each in some]
                crops = [Crop(*each, central_box(*each[1].size)) for each in zip(some, headers, strict=True)]
                yield batch_of(crops, self.settings)
        except DataError as error:
            yield error


def loaded(images: Images | HeldOut, device: torch.device) -> Generator[Batch]:
    """Yield the micro-batches that the workers make, in turn; raise the DataError of a worker."""
    settings, by_dali = images.settings, images.settings.decoder is ImageDecoder.dali
    loader = DataLoader(
        images,
        batch_size=None,
        num_workers=settings.workers,
        # torch refuses a prefetch factor without workers.
        prefetch_factor=settings.prefetch if settings.workers else None,
        worker_init_fn=outlive_requests_to_stop,
        pin_memory=device.type == "cuda" and not by_dali,
    )
    found = iter(loader)

    def batches() -> Iterator[Any]:
        for batch in found:
            if isinstance(batch, DataError):
                raise batch
            yield batch

    try:
        if by_dali:
            from jobs.work.images.dali import decode

            yield from decode(batches(), settings, images.batch_size, device)
        else:
            yield from batches()
    finally:
        if settings.workers:
            # At its end Python would wait for workers, which ignore its request to end; torch has no public name.
            found._shutdown_workers()  # type: ignore[attr-defined]  # noqa: SLF001


@dataclass(frozen=True, kw_only=True)
class StepImages(Work):
    """The micro-batches of a rank in one optimizer step, and the size of the whole global batch."""

    micro_batches: list[Batch]


def steps_of(images: Images, count: int, samples: int, device: torch.device) -> Generator[StepImages]:
    """Yield the `count` micro-batches of each step, without end, and note that they are used."""
    ready = loaded(images, device)
    try:
        while True:
            batch = StepImages(samples=samples, micro_batches=list(islice(ready, count)))
            for each in batch.micro_batches:
                images.used(each)
            yield batch
    finally:
        ready.close()


def outlive_requests_to_stop(_worker: int) -> None:
    """Let a worker ignore the signals that ask the whole job to stop: its rank ends a step, and then the worker."""
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)
