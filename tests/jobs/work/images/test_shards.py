"""Shards of images: made, found, divided among readers and read, and the words about damaged ones."""

from __future__ import annotations

import io
import re
import shutil
import tarfile
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
from PIL import Image

from jobs.cli import main
from jobs.errors import DataError
from jobs.work.images.make import random_images
from jobs.work.images.recordio import MAGIC_BYTES, positions, read_images, write_records
from jobs.work.images.shards import parts_of, shards_of, stream
from jobs.work.storage.samples import add_sample
from tests.support.cli import printed_words

MAGIC = MAGIC_BYTES
PAYLOADS = [b"", b"odd", b"1234", MAGIC, b"1234" + MAGIC + b"5678" + MAGIC + MAGIC, b"12" + MAGIC + b"3", MAGIC[:3]]


def made(where: Path, kind: str, *further: str) -> Path:
    assert main(["images", str(where), "--count", "20", "--shards", "4", "--mean-kb", "3", "--classes", "7", "--kind",
                 kind, *further]) == 0  # fmt: skip
    return where


@pytest.fixture(scope="module")
def shards_by_kind(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Shards of both formats, which a test copies before it damages them."""
    where = tmp_path_factory.mktemp("shards")
    return {kind: made(where / kind, kind) for kind in ("tar", "recordio")}


def images(where: Path, readers: int = 4) -> list[tuple[bytes, int]]:
    return [(jpeg, label) for part in parts_of(shards_of(where), readers) for _, jpeg, label in part.images()]


def test_both_formats_hold_the_same_images_whatever_the_shards(tmp_path: Path, shards_by_kind: dict[str, Path]) -> None:
    tar, records = shards_by_kind["tar"], made(tmp_path / "rec", "recordio", "--shards", "2")
    assert sorted(images(tar)) == sorted(images(records)) == sorted(images(records, readers=7))
    assert len(set(images(tar))) == 20
    for jpeg, label in images(tar):
        with Image.open(io.BytesIO(jpeg)) as image:
            assert (image.format, image.mode) == ("JPEG", "RGB")
        assert 0 <= label < 7


def test_the_sizes_of_images_have_the_mean_asked_for() -> None:
    sizes = [len(jpeg) for jpeg, _ in random_images(range(100), mean_kb=20, classes=10, seed=3)]
    assert sum(sizes) / len(sizes) == pytest.approx(20_000, rel=0.15)
    assert max(sizes) > 3 * min(sizes)


def test_records_are_read_as_written_with_and_without_their_index(tmp_path: Path) -> None:
    file = tmp_path / "x.rec"
    write_records(file, [(payload, number) for number, payload in enumerate(PAYLOADS)])
    listed = positions(file)
    assert [(jpeg, label) for _, jpeg, label in read_images(file, listed)] == [
        (payload, number) for number, payload in enumerate(PAYLOADS)
    ]
    # The layout that dmlc-core's writer makes of the first record: magic, length 24, header, empty payload.
    assert file.read_bytes()[:32] == MAGIC + b"\x18\0\0\0" + bytes(24)
    file.with_suffix(".idx").unlink()
    assert positions(file) == listed


def test_each_epoch_gives_every_reader_other_parts_and_every_image_once(shards_by_kind: dict[str, Path]) -> None:
    parts = parts_of(shards_of(shards_by_kind["tar"]), 2)
    # 2 readers x 2 parts x 5 images an epoch.
    epochs = [[each.jpeg for reader in (0, 1) for each in islice(stream(parts, reader, 2, 5), epoch, epoch + 10)]
              for epoch in (0, 10, 20)]  # fmt: skip
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(epochs[2])
    assert len(set(epochs[0])) == 20
    assert epochs[0] != epochs[1]


def cut_short(where: Path) -> None:
    file = next(where.glob("*.rec"))
    file.write_bytes(file.read_bytes()[:-8])


def overwrite(where: Path) -> None:
    file = next(where.glob("*.rec"))
    file.write_bytes(b"JUNK" + file.read_bytes()[4:])


def replace(where: Path, name: str, content: bytes) -> None:
    (where / name).write_bytes(content)


def unlabelled(where: Path) -> None:
    with tarfile.open(where / "000000.tar", "w") as shard:
        add_sample(shard, "a", {"jpg": b"x"})


@pytest.mark.parametrize(
    ("kind", "damage", "words"),
    [
        ("recordio", cut_short, r"00000\d\.rec ends within the record at byte \d+: it is truncated\. Copy it again"),
        ("recordio", overwrite, r"00000\d\.rec has no record at byte 0: RecordIO begins each with 0xced7230a"),
        ("recordio", lambda where: replace(where, "000000.idx", b"0 0\n"), r"000000\.idx has a line other than NUMBER"),
        ("tar", lambda where: replace(where, "000000.tar", b""), r"000000\.tar has no images: it is an empty shard"),
        ("tar", lambda where: tarfile.open(where / "000000.tar", "w").close(), r"000000\.tar has no images: it is an"),
        ("tar", lambda where: replace(where, "000000.tar", b"x" * 600), r"000000\.tar is not a complete tar file"),
        ("tar", unlabelled, r"000000\.tar: sample a has no label \(\.cls\)\. Each needs KEY\.jpg and KEY\.cls"),
        ("tar", lambda where: replace(where, "a.rec", b"x"), r"has \.tar and \.rec files\. Move those of one type"),
        ("tar", lambda where: [each.unlink() for each in where.iterdir()], r"has no \.tar or \.rec files\. Set it to"),
        (
            "tar",
            lambda where: where.rename(where.with_name("b")),
            r"images is not a directory here\. Set images\.path=",
        ),
    ],
)
def test_damaged_shards_are_named_with_what_to_do(
    tmp_path: Path, shards_by_kind: dict[str, Path], kind: str, damage: Callable[[Path], object], words: str
) -> None:
    where = tmp_path / "images"
    shutil.copytree(shards_by_kind[kind], where)
    damage(where)
    with pytest.raises(DataError, match=words):
        images(where)


def test_more_readers_than_shards_are_refused(shards_by_kind: dict[str, Path]) -> None:
    shards = shards_of(shards_by_kind["tar"])
    with pytest.raises(DataError, match=r"has 4 shards, and 5 readers \(ranks x images\.workers\) each need one"):
        parts_of(shards, 5)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--count", "2000000000"], r"need 234,\d{3}\.\d GB in .*, which has [\d.,]+ GB free\. Make [\d,]+ or fewer"),
        (["--count", "3"], "--count 3 is too small: give 16 or more"),
        (["--count", "30", "--mean-kb", "0"], "--mean-kb 0 is outside 1 to 10,000"),
    ],
)
def test_images_that_cannot_be_made_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert main(["images", str(tmp_path / "images"), *arguments]) == 2
    assert re.search(words, printed_words(capsys))
    assert not (tmp_path / "images").exists()


def test_existing_shards_are_not_overwritten(
    shards_by_kind: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["images", str(shards_by_kind["tar"]), "--count", "20"]) == 2
    assert "has shards already, such as 000000.tar. Name another directory." in printed_words(capsys)
