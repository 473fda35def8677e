"""Samples in three formats: make files of random ones, and read files one after the other.

text               .jsonl, one object with "text" per line
megatron_binary    PREFIX.bin and PREFIX.idx, one sequence per sample (jobs.data.megatron_binary)
tar                WebDataset's layout, https://github.com/webdataset/webdataset: the files of a sample follow each
                   other in the shard and share their name up to its first dot
"""

from __future__ import annotations

import io
import json
import random
import tarfile
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import numpy as np

from jobs.data.instruction_records import json_value
from jobs.data.megatron_binary import read_index, write_documents
from jobs.data.sources import reading
from jobs.errors import DataError
from jobs.files import opened
from jobs.settings.storage import DataFormat, DataRead

VOCABULARY = 128_256
"""Llama 3's, so that Megatron's format stores 4 bytes per token."""
TOKEN_BYTES = 4
PREFIX = "samples"
ENDINGS = {DataFormat.text: ".jsonl", DataFormat.tar: ".tar", DataFormat.megatron_binary: ".idx"}


def files_of(kind: DataFormat, path: Path) -> list[Path]:
    """Return the files of a format in a directory; of Megatron's format the index and the tokens of a prefix.

    Raise DataError if there is no such file, or an empty one.
    """
    if kind is DataFormat.megatron_binary:
        prefix = path / PREFIX if path.is_dir() else path
        found = [Path(f"{prefix}{ending}") for ending in (".idx", ".bin")]
        found = found if all(file.is_file() for file in found) else []
    else:
        found = sorted(path.glob(f"*{ENDINGS[kind]}"))
    if not found:
        raise DataError(
            f"storage.data.path={path} has no {ENDINGS[kind]} files. Set it to a directory with some, of "
            "megatron_binary to PREFIX of PREFIX.idx and PREFIX.bin, or to null, which makes them."
        )
    empty = [file for file in found if not file.stat().st_size]
    if empty:
        raise DataError(f"{empty[0]} is empty. Remove it, or copy it again from its source.")
    return found


def make(data: DataRead, directory: Path, numbers: range, files: int) -> None:
    """Write the files with these numbers of `files` into a directory, random samples; Megatron's format is one pair.

    The first files have one sample more where the numbers do not divide.
    """
    for number in numbers:
        count = data.samples // files + (number < data.samples % files)
        draw = random.Random(number)  # noqa: S311 (no secret)
        if data.format is DataFormat.text:
            write_text(directory / f"{number:06d}.jsonl", count, data.sample_bytes, draw)
        elif data.format is DataFormat.tar:
            write_tar(directory / f"{number:06d}.tar", count, data.sample_bytes, draw)
        else:
            tokens, size = np.random.default_rng(number), max(1, data.sample_bytes // TOKEN_BYTES)
            documents = (tokens.integers(VOCABULARY, size=size) for _ in range(count))
            write_documents(directory / PREFIX, documents, VOCABULARY)


def write_text(file: Path, count: int, sample_bytes: int, draw: random.Random) -> None:
    """Write lines of random hexadecimal text."""
    with file.open("w") as content:
        for _ in range(count):
            text = draw.randbytes(-(-sample_bytes // 2)).hex()[:sample_bytes]
            content.write(json.dumps({"text": text}) + "\n")


def write_tar(file: Path, count: int, sample_bytes: int, draw: random.Random) -> None:
    """Write a shard of samples with random content and a class."""
    with tarfile.open(file, "w") as shard:
        for number in range(count):
            parts = {"bin": draw.randbytes(sample_bytes), "cls": str(draw.randrange(1000)).encode()}
            add_sample(shard, f"{number:08d}", parts)


def add_sample(shard: tarfile.TarFile, key: str, parts: dict[str, bytes]) -> None:
    """Add the files of a sample to a shard, KEY.ENDING for each ending."""
    for ending, content in parts.items():
        entry = tarfile.TarInfo(f"{key}.{ending}")
        entry.size = len(content)
        shard.addfile(entry, io.BytesIO(content))


# --- reading -------------------------------------------------------------------------------------------------------


def sizes_of_text(file: Path) -> Iterator[int]:
    """Yield the size of each sample of a file, after it was parsed; raise DataError if it is not JSON."""
    with reading(file), opened(file) as content:
        for number, line in enumerate(content, 1):
            json_value(line.decode(errors="replace"), file, number)
            yield len(line)


def sizes_of_tar(file: Path) -> Iterator[int]:
    """Yield the size of each sample of a shard, all its files together; raise DataError if it is not a tar."""
    for _, parts in samples_of_tar(file):
        yield sum(map(len, parts.values()))


def samples_of_tar(file: Path) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Yield key and files, by ending, of each sample of a shard; raise DataError if it is not a complete tar."""

    def parted(entry: tarfile.TarInfo) -> tuple[str, str]:
        key, _, ending = entry.name.rpartition("/")[2].partition(".")
        return key, ending

    try:
        # r|: as a stream without seeking, which is how loaders read shards.
        with reading(file), opened(file) as content, tarfile.open(fileobj=content, mode="r|") as shard:
            entries = (entry for entry in shard if entry.isfile())
            for key, parts in groupby(entries, key=lambda entry: parted(entry)[0]):
                yield key, {parted(part)[1]: data.read() for part in parts if (data := shard.extractfile(part))}
    except tarfile.TarError as error:
        raise DataError(f"{file} is not a complete tar file: {error}. Copy it again from its source.") from error


def sizes_of_sequences(index_file: Path, bin_file: Path, reader: int, readers: int, seed: int) -> Iterator[int]:
    """Yield the size of each sequence of one of several readers, in random order, copied from the mapped file."""
    index = read_index(index_file, bin_file)
    order = np.random.default_rng(seed).permutation(len(index.lengths))
    opened(bin_file).close()
    content = np.memmap(bin_file, mode="r")
    for sequence in order[reader::readers]:
        start, length = int(index.positions[sequence]), int(index.lengths[sequence]) * index.dtype.itemsize
        yield content[start : start + length].copy().nbytes
