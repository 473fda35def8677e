"""The images of a run as the data of the training loop: read or made, divided among the ranks, and held-out ones."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from functools import partial
from pathlib import Path

import PIL
import torch

from jobs.engines.trainer import Data
from jobs.errors import DataError
from jobs.layout import accumulation
from jobs.output import own_directory
from jobs.ranks import Rank
from jobs.rundir import RunDir
from jobs.runtime.exchange import gather
from jobs.runtime.process_group import own_device
from jobs.runtime.startup import Startup
from jobs.runtime.watchdog import Watchdog
from jobs.schema import Run
from jobs.settings.images import ImageDecoder
from jobs.work.images.loader import HeldOut, Images, StepImages, steps_of
from jobs.work.images.make import refuse_full, write_shard
from jobs.work.images.shards import Part, cut, parts_of, shards_of


class Jpegs(Data):
    """The images of one rank, and the held-out ones. Every rank makes one at the same time."""

    def __init__(self, run: Run, rank: Rank, directory: RunDir, startup: Startup) -> None:
        assert run.images is not None
        assert run.job.steps is not None
        self.run, self.steps, self.device, self.made = run, run.job.steps, own_device(rank), directory.images
        parts = parts_of_run(run, directory, rank, startup.watchdog)
        self.images = Images(
            run.images, parts, batch_size=run.job.micro_batch_size, rank=rank.rank, ranks=run.ranks, seed=run.job.seed
        )
        self.held_out = held_out_of_run(run, rank)

    def description(self) -> str:
        """Return what the run reads and decodes it with; after a restart also if it goes on with other images."""
        images = self.run.images
        assert images is not None
        source = images.path or f"{images.count:,} random images"
        shards = len({part.file for part in self.images.parts})
        text = f"JPEG images in {shards:,} shards: {source}; decoded by {decoder(self.run, self.device)}."
        if self.images.other_order:
            text += (
                " After this restart other images than without it: ranks, shards, images.workers, images.shuffle or "
                "job.micro_batch_size are not those of the checkpoint."
            )
        return text

    def batches(self, done: int, device: torch.device) -> AbstractContextManager[Iterator[StepImages]]:  # noqa: ARG002
        """Return the batches after those of the checkpoint; at its end the workers of the rank end."""
        return closing(steps_of(self.images, accumulation(self.run), self.run.global_batch_size, device))

    def clear(self) -> None:
        """Remove the images that the run made: a run that stopped continues with them, one that finished needs none."""
        shutil.rmtree(self.made, ignore_errors=True)


def decoder(run: Run, device: torch.device) -> str:
    """Return the name of what decodes the images of a rank."""
    assert run.images is not None
    if run.images.decoder is ImageDecoder.pillow:
        return f"Pillow {PIL.__version__} on processors"
    from jobs.work.images import dali

    return dali.name(device)


def held_out_of_run(run: Run, rank: Rank) -> HeldOut | None:
    """Return the held-out images of a rank; None without images.validation_path. Every rank calls it."""
    images = run.images
    assert images is not None
    if images.validation_path is None:
        return None
    where, parts = Path(images.validation_path), []
    readers = run.ranks * max(1, images.workers)
    refuse_together(lambda: parts.extend(cut(shards_of(where, "images.validation_path"), readers)))
    refuse_different(parts, where)
    return HeldOut(images, parts, batch_size=run.job.micro_batch_size, rank=rank.rank, ranks=run.ranks)


def refuse_different(parts: list[Part], where: Path) -> None:
    """Raise DataError on every rank where the ranks see different numbers of parts in a directory."""
    counts = gather(len(parts))
    if len(set(counts)) > 1:
        raise DataError(f"The ranks see {min(counts)} to {max(counts)} shards in {where}. Set a path that all share.")


def parts_of_run(run: Run, directory: RunDir, rank: Rank, watchdog: Watchdog) -> list[Part]:
    """Return the parts of the images, at least one a reader; make the images first where the run has no path.

    Every rank calls it, and raises the DataError of any rank.
    """
    images = run.images
    assert images is not None
    where = Path(images.path) if images.path else directory.images
    if images.path is None:
        own_directory(where)
        refuse_together(partial(refuse_full, where, images.count, images.mean_kb))
        for number in range(rank.rank, images.shards, run.ranks):
            watchdog.begins(f"making shard {number} of the images", 1000 * images.mean_kb * images.count)
            write_shard(
                where, number, count=images.count, shards=images.shards, mean_kb=images.mean_kb,
                classes=images.classes, seed=run.job.seed,
            )  # fmt: skip
        # On a network file system a node may see the shards of another one later than that one.
        gather(None)
    parts: list[Part] = []
    refuse_together(lambda: parts.extend(parts_of(shards_of(where), run.ranks * max(1, images.workers))))
    refuse_different(parts, where)
    return parts


def refuse_together(action: Callable[[], None]) -> None:
    """Run an action and raise the first DataError of any rank on every rank, so that none waits for another."""
    refusal = None
    try:
        action()
    except DataError as error:
        refusal = str(error)
    found = [each for each in gather(refusal) if each is not None]
    if found:
        raise DataError(found[0])
