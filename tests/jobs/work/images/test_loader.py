"""The order of images: the same after a restart, whatever the workers had made ahead; and each held-out image once."""

from __future__ import annotations

import json
from contextlib import closing
from itertools import islice
from pathlib import Path

import pytest
import torch

from jobs.settings.images import ImageTraining
from jobs.work.images.decoding import Batch, central_box
from jobs.work.images.loader import HeldOut, Images, loaded, steps_of
from jobs.work.images.make import make_images
from jobs.work.images.shards import cut, parts_of, shards_of

COUNT = 30
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Shards of both formats, of different sizes: 30 images do not divide by 4."""
    where = tmp_path_factory.mktemp("images")
    for kind in ("tar", "recordio"):
        make_images(where / kind, count=COUNT, shards=4, mean_kb=2, classes=1000, seed=1, kind=kind)
    return {kind: where / kind for kind in ("tar", "recordio")}


def images_of(directory: Path, settings: ImageTraining) -> Images:
    """Images of the second of two ranks."""
    parts = parts_of(shards_of(directory), 2 * max(1, settings.workers))
    return Images(settings, parts, batch_size=3, rank=1, ranks=2, seed=7)


def seen(images: Images, steps: int) -> list[tuple[int, bytes]]:
    """Labels and pixels, which no two images or crops share, of some steps of two micro-batches."""
    with closing(steps_of(images, 2, 12, CPU)) as ready:
        batches = [batch for step in islice(ready, steps) for batch in step.micro_batches]
    return [each for batch in batches for each in contents(batch)]


def contents(batch: Batch) -> list[tuple[int, bytes]]:
    return [(int(label), pixels.numpy().tobytes()) for pixels, label in zip(batch.pixels, batch.labels, strict=True)]


@pytest.mark.parametrize(("kind", "workers", "shuffle"), [("tar", 0, 4), ("tar", 2, 8), ("tar", 1, 1),
                                                          ("recordio", 2, 40)])  # fmt: skip
@pytest.mark.slow
def test_a_restart_continues_with_the_images_that_would_have_followed(
    directories: dict[str, Path], kind: str, workers: int, shuffle: int
) -> None:
    """Two of four restarts fall into another epoch; a step has an odd part of the workers' turns."""
    settings = ImageTraining(size=32, workers=workers, shuffle=shuffle, prefetch=3)
    whole = seen(images_of(directories[kind], settings), 9)
    assert len(set(whole)) > COUNT
    parts, state = [], None
    for steps in (1, 2, 3, 3):
        images = images_of(directories[kind], settings)
        if state is not None:
            images.continue_from(json.loads(state), 0)
        parts += seen(images, steps)
        state = json.dumps(images.state())
    assert parts == whole


@pytest.mark.parametrize("kind", ["tar", "recordio"])
@pytest.mark.slow
def test_each_held_out_image_is_seen_once_by_all_ranks_together(directories: dict[str, Path], kind: str) -> None:
    settings = ImageTraining(size=32, workers=2)
    parts = cut(shards_of(directories[kind]), 6)
    assert len(parts) == (4 if kind == "tar" else 8)
    found = []
    for rank in range(3):
        held_out = HeldOut(settings, parts, batch_size=4, rank=rank, ranks=3)
        with closing(loaded(held_out, CPU)) as batches:
            found += [each for batch in batches for each in contents(batch)]
    assert len(found) == len(set(found)) == COUNT


def test_the_central_crop_is_seven_eighths_of_the_shorter_side() -> None:
    assert central_box(320, 256) == (48, 16, 272, 240)
