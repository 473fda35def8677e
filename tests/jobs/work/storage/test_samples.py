"""Samples that are made in each format are read back whole, and files that are no such samples get their words."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from jobs.errors import DataError
from jobs.settings.storage import DataFormat, DataRead
from jobs.work.storage.samples import files_of, make, sizes_of_sequences, sizes_of_tar, sizes_of_text


def made(where: Path, kind: DataFormat, files: int) -> list[Path]:
    data = DataRead(format=kind, files=files, samples=25, sample_bytes=1000, workers=0, batch_size=4)
    make(data, where, range(files), files)
    return files_of(kind, where)


def test_tar_shards_hold_each_sample_once_with_its_label(tmp_path: Path) -> None:
    files = made(tmp_path, DataFormat.tar, 4)
    sizes = [list(sizes_of_tar(file)) for file in files]
    assert [len(each) for each in sizes] == [7, 6, 6, 6]
    # A label has one to three digits.
    assert all(1001 <= size <= 1003 for each in sizes for size in each)
    with tarfile.open(files[0]) as shard:
        assert shard.getnames()[:2] == ["00000000.bin", "00000000.cls"]


def test_text_has_a_sample_a_line(tmp_path: Path) -> None:
    sizes = [size for file in made(tmp_path, DataFormat.text, 2) for size in sizes_of_text(file)]
    assert sizes == [len('{"text": ""}\n') + 1000] * 25


@pytest.mark.parametrize("readers", [1, 3])
def test_readers_of_megatrons_format_share_all_sequences(tmp_path: Path, readers: int) -> None:
    index_file, bin_file = made(tmp_path, DataFormat.megatron_binary, 1)
    sizes = [list(sizes_of_sequences(index_file, bin_file, each, readers, seed=1)) for each in range(readers)]
    assert sum(map(len, sizes)) == 25
    assert {size for each in sizes for size in each} == {1000}


def test_files_that_are_no_samples_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no \.tar files.*to null, which makes them"):
        files_of(DataFormat.tar, tmp_path)
    (tmp_path / "a.tar").touch()
    with pytest.raises(DataError, match=r"a\.tar is empty\. Remove it, or copy it again"):
        files_of(DataFormat.tar, tmp_path)
    shard = tmp_path / "cut.tar"
    data = DataRead(format=DataFormat.tar, files=1, samples=3, sample_bytes=5000, workers=0, batch_size=1)
    make(data, tmp_path, range(1), 1)
    shard.write_bytes((tmp_path / "000000.tar").read_bytes()[:9000])
    with pytest.raises(DataError, match=r"cut\.tar is not a complete tar file"):
        list(sizes_of_tar(shard))
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n{"text"\n')
    with pytest.raises(DataError, match=r"a\.jsonl"):
        list(sizes_of_text(tmp_path / "a.jsonl"))
