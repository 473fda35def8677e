"""Megatron's binary format: token ids in PREFIX.bin, the index of their sequences and documents in PREFIX.idx.

The index is little-endian (megatron-core 0.15.3, megatron/core/datasets/indexed_dataset.py, class _IndexWriter):

    9 bytes    MMIDIDX, two zeros
    u64        version, 1
    u8         code of the type of the ids
    u64        number of sequences n
    u64        number of documents + 1
    n x i32    ids of each sequence
    n x i64    position of each sequence in PREFIX.bin, in bytes
    i64 each   number of sequences before each document, and n

numpy only, so that data is converted where neither torch nor Megatron is installed.
"""

from __future__ import annotations

import os
import struct
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from jobs.data.sources import reading
from jobs.errors import DataError
from jobs.files import RECORD_FILE_BYTES, opened, read_bytes

HEADER = b"MMIDIDX\x00\x00"
VERSION = 1
COUNTS = struct.Struct("<QBQQ")
"""Version, code of the type, number of sequences, length of the list of documents."""
CODES: dict[int, np.dtype[Any]] = {
    1: np.dtype("<u1"),
    2: np.dtype("<i1"),
    3: np.dtype("<i2"),
    4: np.dtype("<i4"),
    5: np.dtype("<i8"),
    8: np.dtype("<u2"),
}
"""Types of ids by Megatron's code; it also has codes of floats, 6 and 7."""
LEAST_INT32_VOCABULARY = 65_500
"""Megatron stores ids of a smaller vocabulary in 16 bits (DType.optimal_dtype)."""


@dataclass(frozen=True)
class Index:
    """The content of PREFIX.idx."""

    dtype: np.dtype[Any]
    lengths: npt.NDArray[np.int32]
    """Ids of each sequence."""
    positions: npt.NDArray[np.int64]
    """Position of each sequence in PREFIX.bin, in bytes."""
    documents: npt.NDArray[np.int64]
    """Number of sequences before each document, and of all."""


def read_index(index_file: Path, bin_file: Path) -> Index:
    """Read PREFIX.idx; raise DataError if it is not a complete index of PREFIX.bin."""
    fixed = len(HEADER) + COUNTS.size
    with reading(index_file), opened(index_file) as file:
        head, bin_bytes = file.read(fixed), bin_file.stat().st_size
        size_bytes = file.seek(0, os.SEEK_END)
    if len(head) < fixed or not head.startswith(HEADER):
        raise unusable(index_file, "does not begin with MMIDIDX")
    version, code, sequences, documents = COUNTS.unpack_from(head, len(HEADER))
    if version != VERSION:
        raise unusable(index_file, f"has version {version}, and {VERSION} is known")
    if code not in CODES:
        raise unusable(index_file, f"has ids of type {code}, which is no type of integers")
    needed = fixed + 12 * sequences + 8 * documents
    # Before it is read: a file of another size may be larger than the memory.
    if size_bytes != needed:
        raise unusable(index_file, f"has {size_bytes} bytes, and its {sequences} sequences need {needed}")
    with reading(index_file):
        content = read_bytes(index_file, RECORD_FILE_BYTES)
    lengths = np.frombuffer(content, "<i4", sequences, fixed)
    positions = np.frombuffer(content, "<i8", sequences, fixed + 4 * sequences)
    bounds = np.frombuffer(content, "<i8", documents, fixed + 12 * sequences)
    ends = positions + lengths.astype(np.int64) * CODES[code].itemsize
    if sequences and (lengths.min() < 0 or positions.min() < 0 or ends.max() > bin_bytes):
        raise unusable(index_file, f"names sequences outside the {bin_bytes} bytes of {bin_file.name}")
    return Index(CODES[code], lengths, positions, bounds)


def unusable(index_file: Path, why: str) -> DataError:
    """Return the error for an index that cannot be used."""
    return DataError(
        f"{index_file} {why}. data.source=megatron_binary reads what Megatron's preprocess_data.py and "
        "`slurmscale data --megatron` write. Write it again."
    )


def sequences_of(index: Index, bin_file: Path) -> Iterator[npt.NDArray[Any]]:
    """Yield the ids of each sequence in the order of the index, memory-mapped."""
    if not index.lengths.any():
        return
    with reading(bin_file):
        opened(bin_file).close()
        content = np.memmap(bin_file, mode="r")
    for position, length in zip(index.positions.tolist(), index.lengths.tolist(), strict=True):
        yield content[position : position + length * index.dtype.itemsize].view(index.dtype)


def write_documents(prefix: Path, documents: Iterable[npt.NDArray[Any]], vocab_size: int) -> int:
    """Write documents of one sequence each, and return their number; raise DataError if a file exists.

    Both files are written under hidden names. The index is renamed last, so that an interrupted writer leaves none.
    """
    index_file, bin_file = (Path(f"{prefix}{suffix}") for suffix in (".idx", ".bin"))
    if index_file.exists():
        raise DataError(f"{index_file} exists, and is not overwritten. Remove it, or choose another PREFIX.")
    dtype = CODES[8] if vocab_size < LEAST_INT32_VOCABULARY else CODES[4]
    staged = [file.with_name(f".{file.name}.{uuid.uuid4().hex}") for file in (index_file, bin_file)]
    try:
        prefix.parent.mkdir(parents=True, exist_ok=True)
        with staged[1].open("wb") as file:
            lengths = [file.write(ids.astype(dtype).tobytes()) // dtype.itemsize for ids in documents]
        staged[0].write_bytes(index_bytes(lengths, dtype))
        staged[1].rename(bin_file)
        staged[0].rename(index_file)
    except OSError as error:
        raise DataError(
            f"{error.filename or prefix} cannot be written: {error.strerror or error}. Free some space, or choose "
            "another PREFIX."
        ) from error
    finally:
        for file_name in staged:
            file_name.unlink(missing_ok=True)
    return len(lengths)


def index_bytes(lengths: list[int], dtype: np.dtype[Any]) -> bytes:
    """Return the index of documents of one sequence each."""
    (code,) = (code for code, known in CODES.items() if known == dtype)
    sizes = np.array(lengths, dtype="<i4")
    ends = np.cumsum(sizes, dtype="<i8") * dtype.itemsize
    positions = ends - sizes.astype("<i8") * dtype.itemsize
    documents = np.arange(len(lengths) + 1, dtype="<i8")
    counts = COUNTS.pack(VERSION, code, len(lengths), len(documents))
    return b"".join((HEADER, counts, sizes.tobytes(), positions.astype("<i8").tobytes(), documents.tobytes()))
