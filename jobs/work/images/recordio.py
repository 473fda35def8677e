"""MXNet's RecordIO with images: read and written as im2rec does.

A file is a sequence of records: magic and length (two little-endian uint32), the payload, zeros up to a multiple of 4.
The upper 3 bits of the length are the kind of part that follows: a payload that contains the magic at a multiple of
4 is cut there, and the magic is left out. An image's payload is a header (flag, label, id, second id), with flag > 0
that number of float32 labels, and the JPEG. FILE.idx has one line per record: its number and its first byte.
Formats: https://github.com/dmlc/dmlc-core/blob/main/include/dmlc/recordio.h (and src/recordio.cc),
https://github.com/apache/mxnet/blob/master/python/mxnet/recordio.py (IRHeader).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from jobs.data.sources import reading
from jobs.errors import DataError
from jobs.files import RECORD_FILE_BYTES, opened, read_text

MAGIC = 0xCED7230A
MAGIC_BYTES = struct.pack("<I", MAGIC)
RECORD = struct.Struct("<II")
LENGTH_BITS = 29
MOST_BYTES = 2**LENGTH_BITS - 1
WHOLE, FIRST, MIDDLE, LAST = range(4)
HEADER = struct.Struct("<IfQQ")
"""Flag, label, id, second id."""
REMEDY = "Copy it again from its source, or make it again."


def write_records(file: Path, images: Iterable[tuple[bytes, int]]) -> None:
    """Write JPEGs with their labels to FILE.rec, and the positions of the records to FILE.idx."""
    with file.open("wb") as content, file.with_suffix(".idx").open("w") as index:
        for number, (jpeg, label) in enumerate(images):
            index.write(f"{number}\t{content.tell()}\n")
            write_record(content, HEADER.pack(0, float(label), number, 0) + jpeg)


def write_record(content: BinaryIO, payload: bytes) -> None:
    """Write one record; raise DataError if it is larger than the format allows."""
    if len(payload) > MOST_BYTES:
        raise DataError(f"{content.name}: a record of {len(payload):,} bytes is larger than RecordIO's {MOST_BYTES:,}.")
    parts = cut(payload)
    for number, part in enumerate(parts):
        kind = WHOLE if len(parts) == 1 else FIRST if number == 0 else LAST if number == len(parts) - 1 else MIDDLE
        content.write(RECORD.pack(MAGIC, kind << LENGTH_BITS | len(part)))
        content.write(part + bytes(-len(part) % 4))


def cut(payload: bytes) -> list[bytes]:
    """Return a payload in parts, cut at each magic that begins at a multiple of 4."""
    parts, start, found = [], 0, payload.find(MAGIC_BYTES)
    while found >= 0:
        if found % 4 == 0:
            parts.append(payload[start:found])
            start = found + 4
        found = payload.find(MAGIC_BYTES, max(found + 1, start))
    return [*parts, payload[start:]]


def read_images(file: Path, positions: Iterable[int]) -> Iterator[tuple[str, bytes, int]]:
    """Yield name, JPEG and label of the records at these positions; raise DataError if one is not whole."""
    with reading(file), opened(file) as content:
        for position in positions:
            content.seek(position)
            payload = read_record(content, file)
            if len(payload) < HEADER.size:
                raise DataError(f"{file}: the record at byte {position} is shorter than an image's header. {REMEDY}")
            flag, label, number, _ = HEADER.unpack_from(payload)
            start = HEADER.size + 4 * flag
            if flag:
                if len(payload) < start:
                    raise DataError(f"{file}: the record at byte {position} has less than its {flag} labels. {REMEDY}")
                (label,) = struct.unpack_from("<f", payload, HEADER.size)
            yield f"record {number}", payload[start:], int(label)


def read_record(content: BinaryIO, file: Path) -> bytes:
    """Return the payload of the record that begins here."""
    parts: list[bytes] = []
    while True:
        position, (kind, length) = content.tell(), read_head(content, file)
        padded = length + -length % 4
        part = content.read(padded)
        if len(part) < padded:
            raise truncated(file, position)
        parts.append(part[:length])
        if kind in {WHOLE, LAST}:
            return MAGIC_BYTES.join(parts)


def read_head(content: BinaryIO, file: Path) -> tuple[int, int]:
    """Return kind and length of the part that begins here."""
    position, head = content.tell(), content.read(RECORD.size)
    if len(head) < RECORD.size:
        raise truncated(file, position)
    magic, length = RECORD.unpack(head)
    if magic != MAGIC:
        raise DataError(f"{file} has no record at byte {position}: RecordIO begins each with {MAGIC:#x}. {REMEDY}")
    return length >> LENGTH_BITS, length & MOST_BYTES


def truncated(file: Path, position: int) -> DataError:
    """Return the error of a file that ends too early."""
    return DataError(f"{file} ends within the record at byte {position}: it is truncated. {REMEDY}")


def positions(file: Path) -> list[int]:
    """Return the first byte of each record: from FILE.idx, without one from the heads of the records."""
    index = file.with_suffix(".idx")
    if index.is_file():
        with reading(index):
            lines = read_text(index, RECORD_FILE_BYTES).splitlines()
        try:
            return [int(line.split("\t")[1]) for line in lines]
        except (ValueError, IndexError) as error:
            raise DataError(
                f"{index} has a line other than NUMBER, a tab, BYTE. Remove it, or make it again."
            ) from error
    found, size = [], file.stat().st_size
    with reading(file), opened(file) as content:
        while (position := content.tell()) < size:
            kind, length = read_head(content, file)
            content.seek(length + -length % 4, 1)
            found += [position] if kind in {WHOLE, FIRST} else []
    return found
