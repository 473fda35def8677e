"""Sources: the files of the training data, and their text in pieces.

This module knows neither tokens nor JSON (jobs/data/instruction_records.py). Every error is a DataError that names
the file.
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from jobs.data.directory import PARQUET, RECORDS_FILE, chosen, names_of
from jobs.errors import DataError
from jobs.files import opened, read_bytes
from jobs.schema import Data, Source

STDLIB = Path(sysconfig.get_path("stdlib"))
"""The standard library of the running Python."""
STDLIB_TEXT_BYTES = 4_000_000
"""Text used from the standard library: tokenizer training and encoding take a few seconds on one core."""
STDLIB_LEAST_BYTES = 64_000
"""Less text than this indicates an installation without sources (zipped or compiled)."""
STDLIB_SKIPPED = frozenset({"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3"})
"""Directories that are not part of the library itself, or that contain intentionally invalid files."""

BYTE_ORDER_MARK = "\ufeff"
"""Some editors begin a file in UTF-8 with it; it is not part of the text."""
PIECE_BYTES = 1 << 20
"""A longer document is encoded in pieces of about this size, split after a newline, to limit memory."""

MEGATRON = (".idx", ".bin")
"""Endings of the two files of Megatron's binary format."""
IN_A_FILE = f"in JSON or Parquet, or a directory with such a {RECORDS_FILE} or such {PARQUET}, .jsonl or .json files"

EXPECTED = {
    Source.text: 'a UTF-8 text file, JSON lines with "text" (.jsonl, .jsonl.zst), or a directory of either',
    Source.megatron_binary: "PREFIX.bin and PREFIX.idx, with data.path=PREFIX",
    Source.alpaca: f"a list, or lines, of objects with instruction, output and optionally input, {IN_A_FILE}",
    Source.dolly: f"a list, or lines, of objects with instruction, response, context and category, {IN_A_FILE}",
    Source.pubmedqa: f"PubMedQA's object of records by id, or a list, or lines, of them, {IN_A_FILE}",
}


@dataclass(frozen=True)
class Piece:
    """Part of a document that is encoded in one call; most documents are one piece."""

    text: str
    first: bool
    last: bool


def source_files(data: Data) -> list[Path]:
    """Return the files of a source in reading order; none for random.

    Raise DataError if data.path is missing, not used by the source, or empty, or has only splits for tests.
    """
    if data.source not in EXPECTED:
        if data.path is not None:
            raise DataError(
                f"data.path={data.path} is not used by data.source={data.source.name}. Set data.path=null, "
                "or data=text to train on that file."
            )
        return [] if data.source is Source.random else stdlib_files(STDLIB)
    expected = f"data.source={data.source.name} reads {EXPECTED[data.source]}"
    if data.path is None:
        raise DataError(f"data.path is not set. {expected}. Set data.path=PATH.")
    path = Path(data.path)
    with reading(path):
        files = files_at(path, data.source)
        if sum(file.stat().st_size for file in files):
            return files
        found = "is empty" if files else "has no such file" if path.is_dir() else "does not exist"
    raise DataError(f"{path} {found}. {expected}. Set data.path=PATH.")


def files_at(path: Path, source: Source) -> list[Path]:
    """Return the file itself, the files of a directory that this source reads, or the two files of a prefix."""
    if source is Source.megatron_binary:
        prefix = path.with_suffix("") if path.suffix in MEGATRON else path
        files = [Path(f"{prefix}{suffix}") for suffix in MEGATRON]
        return files if all(file.is_file() for file in files) else []
    if path.is_dir():
        return chosen(path, source).read
    return [path] if path.is_file() else []


def file_names(data: Data) -> dict[str, list[str]]:
    """Return the names of the files of a directory that are read and left out; empty for a file, or without files."""
    if data.path is None or data.source in {Source.megatron_binary, Source.random} or not Path(data.path).is_dir():
        return {}
    directory = Path(data.path)
    with reading(directory):
        files = chosen(directory, data.source)
    return {"read": names_of(files.read, directory), "left_out": names_of(files.left_out, directory)}


def stdlib_files(directory: Path) -> list[Path]:
    """Return the library's own .py files in valid UTF-8, by name, up to STDLIB_TEXT_BYTES.

    Raise DataError if they contain less than STDLIB_LEAST_BYTES.
    """
    paths: list[Path] = []
    for parent, directories, names in os.walk(directory):
        directories[:] = [name for name in directories if name not in STDLIB_SKIPPED]
        paths += [Path(parent) / name for name in names if name.endswith(".py")]
    files, size = [], 0
    for path in sorted(paths):
        with reading(path):
            content = read_bytes(path)
        if not is_utf8(content):
            continue
        if size + len(content) > STDLIB_TEXT_BYTES:
            break
        files.append(path)
        size += len(content)
    if size < STDLIB_LEAST_BYTES:
        raise DataError(
            f"The standard library of this Python has {size} bytes of source text in {directory}, and data=stdlib "
            f"and data=docstrings need {STDLIB_LEAST_BYTES}. Set data=text data.path=FILE, or data=random."
        )
    return files


def is_utf8(content: bytes) -> bool:
    """Return True if the bytes are valid UTF-8."""
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def pieces(path: Path, max_line_mb: float = Data.max_line_mb) -> Iterator[Piece]:
    """Yield the text of a file, one document, in pieces; none for an empty file.

    Raise DataError if it cannot be read, is not UTF-8, or has a line beyond data.max_line_mb.
    """
    with reading(path), opened(path) as file:
        offset = 0
        parts = chunks(file, path, max_line_mb)
        content = next(parts, b"")
        while content:
            following = next(parts, b"")
            text = decoded(content, path, offset)
            yield Piece(text if offset else text.removeprefix(BYTE_ORDER_MARK), first=offset == 0, last=not following)
            offset += len(content)
            content = following


def chunks(file: BinaryIO, path: Path, max_line_mb: float) -> Iterator[bytes]:
    """Yield whole lines of about PIECE_BYTES together."""
    lines, size = [], 0
    for line in bounded_lines(file, path, max_line_mb):
        lines.append(line)
        size += len(line)
        if size >= PIECE_BYTES:
            yield b"".join(lines)
            lines, size = [], 0
    if lines:
        yield b"".join(lines)


def bounded_lines(file: BinaryIO, path: Path, max_line_mb: float) -> Iterator[bytes]:
    """Yield the lines of a file; raise DataError for one beyond data.max_line_mb, which is read as a whole."""
    most = round(max_line_mb * 1e6)
    number = 0
    while line := file.readline(most + 1):
        number += 1
        if len(line) > most:
            raise DataError(
                f"{path}: line {number} is longer than {max_line_mb:g} MB (data.max_line_mb). Split it, or set "
                "data.max_line_mb to its size if it is a document: it is read into memory."
            )
        yield line


def decoded(content: bytes, path: Path, offset: int = 0) -> str:
    """Return the bytes as text; raise DataError with the position of the first byte that is not UTF-8."""
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        place = offset + error.start
        raise DataError(
            f"{path} is not UTF-8: byte {place} is 0x{content[error.start]:02x} ({error.reason}). "
            f"Convert it, for example with: iconv -f latin1 -t utf-8 {path.name}"
        ) from error


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raise an OSError of reading this file as a DataError."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{error.filename or path} cannot be read: {error.strerror or error}.") from error
