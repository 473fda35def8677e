"""NVIDIA DALI in place of Pillow: the same images, crops and labels, restarts as exact, and the same words of damage.

On its CPU operators: no GPU decoded here, unless this machine has one.
"""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from PIL import Image

from jobs import versions
from jobs.errors import ConfigError, DataError, SubmitError
from jobs.settings.images import ImageDecoder, ImageTraining
from jobs.submit.launchers import local
from jobs.work.images.decoding import Batch
from jobs.work.images.loader import HeldOut, Images, loaded, steps_of
from jobs.work.images.make import make_images
from jobs.work.images.shards import cut, parts_of, shards_of
from jobs.work.storage.samples import add_sample
from jobs.work.work import work_of
from tests.support.composing import one
from tests.support.real_run import events, losses, make_run, printed, train
from tests.support.required import need_dali

BY_PILLOW = ImageTraining(size=96, workers=2, shuffle=8)
BY_DALI = replace(BY_PILLOW, decoder=ImageDecoder.dali)
NEAR = 1.0
"""Mean difference of an image's pixels, of 0 to 255: rounding and the sides of a crop leave 0.1 to 0.45."""
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need_dali()
    where = tmp_path_factory.mktemp("images")
    make_images(where, count=30, shards=4, mean_kb=20, classes=5, seed=1)
    return where


def images_of(directory: Path, settings: ImageTraining) -> Images:
    return Images(settings, parts_of(shards_of(directory), 4), batch_size=3, rank=1, ranks=2, seed=7)


def seen(images: Images, steps: int) -> list[Batch]:
    with closing(steps_of(images, 2, 12, CPU)) as ready:
        return [batch for step in islice(ready, steps) for batch in step.micro_batches]


def same(found: list[Batch], expected: list[Batch]) -> Iterator[float]:
    """The mean difference of the pixels of each pair of images, whose labels and positions are equal."""
    for one_batch, other in zip(found, expected, strict=True):
        assert torch.equal(one_batch.labels, other.labels)
        if one_batch.position is not None and other.position is not None:
            assert torch.equal(one_batch.position, other.position)
        yield from (one_batch.pixels.float() - other.pixels.float()).abs().mean(dim=(1, 2, 3)).tolist()


@pytest.mark.long
def test_dali_yields_the_images_and_crops_of_pillow_in_the_same_order(directory: Path) -> None:
    found, expected = (seen(images_of(directory, settings), 9) for settings in (BY_DALI, BY_PILLOW))
    assert max(same(found, expected)) < NEAR
    held_out = []
    for settings in (BY_DALI, BY_PILLOW):
        reader = HeldOut(settings, cut(shards_of(directory), 2), batch_size=4, rank=0, ranks=1)
        with closing(loaded(reader, CPU)) as batches:
            held_out.append(list(batches))
    assert sum(len(batch.labels) for batch in held_out[0]) == 30
    assert max(same(*held_out)) < NEAR


@pytest.mark.long
def test_a_restart_continues_exactly_with_either_decoder(directory: Path) -> None:
    whole = seen(images_of(directory, BY_DALI), 6)
    begun = images_of(directory, BY_DALI)
    first = seen(begun, 2)
    continued = [images_of(directory, settings) for settings in (BY_DALI, BY_PILLOW)]
    for images in continued:
        images.continue_from(begun.state(), 0)
    by_dali, by_pillow = (seen(images, 4) for images in continued)
    assert max(same(first + by_dali, whole)) == 0
    assert max(same(by_pillow, by_dali)) < NEAR


def jpeg(**of_file: object) -> bytes:
    content = io.BytesIO()
    Image.radial_gradient("L").convert("RGB").save(content, "JPEG", **of_file)
    return content.getvalue()


def without_scan(file: bytes) -> bytes:
    """A file with a good header and an end, and nothing between them, which DALI itself must find."""
    return file[: file.index(b"\xff\xda")] + b"\xff\xd9"


@pytest.mark.long
@pytest.mark.parametrize(
    "file", [b"", b"\xff\xd8\xff no image", jpeg()[:300], jpeg()[:-200], without_scan(jpeg())],
    ids=["empty", "no image", "cut in its header", "cut at its end", "without a scan"],
)  # fmt: skip
def test_a_damaged_image_has_the_same_words_with_either_decoder(file: bytes, tmp_path: Path) -> None:
    need_dali()
    with tarfile.open(tmp_path / "0.tar", "w") as shard:
        add_sample(shard, "whole", {"jpg": jpeg(), "cls": b"1"})
        add_sample(shard, "damaged", {"jpg": file, "cls": b"1"})
    words = []
    for settings in (BY_DALI, BY_PILLOW):
        images = Images(
            replace(settings, workers=0, shuffle=1), parts_of(shards_of(tmp_path), 1),
            batch_size=2, rank=0, ranks=1, seed=1,
        )  # fmt: skip
        with closing(loaded(images, CPU)) as batches, pytest.raises(DataError) as caught:
            next(batches)
        words.append(str(caught.value))
    assert words[0] == words[1]
    assert re.search(r"0\.tar: damaged is not a complete JPEG \(.+\)\. Remove it from its shard", words[0])


@pytest.mark.long
@pytest.mark.parametrize(
    "file", [jpeg() + b"\0\0", jpeg(exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"),
             jpeg(progressive=True)],
    ids=["bytes behind its end", "turned by its camera", "progressive"],
)  # fmt: skip
def test_unusual_images_are_those_of_pillow_too(file: bytes, tmp_path: Path) -> None:
    need_dali()
    with tarfile.open(tmp_path / "0.tar", "w") as shard:
        add_sample(shard, "a", {"jpg": file, "cls": b"1"})
    batches = []
    for settings in (BY_DALI, BY_PILLOW):
        reader = HeldOut(replace(settings, workers=0), cut(shards_of(tmp_path), 1), batch_size=1, rank=0, ranks=1)
        with closing(loaded(reader, CPU)) as found:
            batches.append(list(found))
    assert max(same(*batches)) < NEAR


@pytest.mark.long
def test_two_ranks_train_with_dali_as_with_pillow_and_the_record_names_it(directory: Path, tmp_path: Path) -> None:
    given = (
        "job=image_train", "images.network=resnet14", "images.size=32", "images.workers=1", "images.shuffle=4",
        "images.classes=5", "job.steps=12", "job.micro_batch_size=4", "job.unmeasured_steps=2", "ranks_per_node=2",
        f"images.path={directory}", f"images.validation_path={directory}", "job.learning_rate=0.001",
    )  # fmt: skip
    runs = {
        decoder: make_run(tmp_path, *given, f"images.decoder={decoder}", f"name={decoder}", small=False)
        for decoder in ("dali", "pillow")
    }
    for run in runs.values():
        assert train(run) == [0, 0], printed(run)
    # Of four images each: from step to step they differ by 0.2.
    apart = [abs(a - b) for a, b in zip(losses(runs["dali"]), losses(runs["pillow"]), strict=True)]
    assert sum(apart) / len(apart) < 0.05
    named = {decoder: str(events(run, "started")[0]["data"]) for decoder, run in runs.items()}
    assert re.search(r"decoded by DALI 2\.\S+ on (processors|the GPU)\.", named["dali"])
    assert re.search(r"decoded by Pillow \S+ on processors\.", named["pillow"])


def test_without_dali_a_run_ends_with_what_to_install() -> None:
    run = one("job=image_train", "images.decoder=dali").run
    # As in a Python without any package of NVIDIA's, where a look for nvidia.dali fails.
    with patch.object(versions, "find_spec", lambda name: None if name == "nvidia" else object()):
        with pytest.raises(ConfigError, match=r"no nvidia\.dali\. Run pip .*'\.\[train,images,dali\]'"):
            work_of(run).entry(run)
        with pytest.raises(SubmitError, match=r"Python has no nvidia\.dali.*'\.\[train,images,dali\]'"):
            local.LAUNCHER.check([run])
