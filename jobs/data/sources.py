"""Sources: which files a run trains on, and their text in pieces.

Tokens are not known here, nor JSON (jobs/data/records.py). Every refusal is a DataError that
names the file.
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from jobs.errors import DataError
from jobs.schema import Data, Source

STDLIB = Path(sysconfig.get_path("stdlib"))
"""The standard library of the Python that runs this."""
STDLIB_TEXT_BYTES = 4_000_000
"""Text taken of the standard library: tokenizer training and encoding stay at a few seconds on one core."""
STDLIB_LEAST_BYTES = 64_000
"""Less than this is an installation without its sources (zipped or compiled), not text to train on."""
STDLIB_SKIPPED = frozenset({"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3"})
"""Directories that are not the library itself, or that hold files broken on purpose."""

PIECE_BYTES = 1 << 20
"""A longer document is encoded in pieces of about this size, cut after a newline, to bound memory."""

RECORDS_FILE = "train.json"
"""What stands for a directory of instruction records, as in LitGPT's JSON data."""

EXPECTED = {
    Source.text: "a UTF-8 text file, or a directory of .txt files",
    Source.alpaca: "a JSON list (or .jsonl) of objects with instruction, output and optionally input, "
    f"or a directory with such a {RECORDS_FILE}",
    Source.pubmedqa: "PubMedQA's JSON object of records by id, or a JSON list (or .jsonl) of them, "
    f"or a directory with such a {RECORDS_FILE}",
}


@dataclass(frozen=True)
class Piece:
    """Part of a document that is encoded at once; most documents are one piece."""

    text: str
    first: bool
    last: bool


def source_files(data: Data) -> list[Path]:
    """The files of a source in the order they are read; none for random.

    Raises DataError when data.path is missing, not wanted, or holds nothing.
    """
    if data.source not in EXPECTED:
        if data.path is not None:
            raise DataError(
                f"data.path={data.path} is not used by data.source={data.source.name}. Type data.path=null, "
                "or data=text to train on that file."
            )
        return [] if data.source is Source.random else stdlib_files(STDLIB)
    expected = f"data.source={data.source.name} reads {EXPECTED[data.source]}"
    if data.path is None:
        raise DataError(f"data.path is not set. {expected}. Type data.path=PATH.")
    path = Path(data.path)
    with reading(path):
        files = files_at(path, data.source)
        if sum(file.stat().st_size for file in files):
            return files
        found = "is empty" if files else "has no such file" if path.is_dir() else "does not exist"
    raise DataError(f"{path} {found}. {expected}. Type data.path=PATH.")


def files_at(path: Path, source: Source) -> list[Path]:
    """The file itself, or the files that this source reads in a directory."""
    if path.is_dir():
        return sorted(path.glob("*.txt" if source is Source.text else RECORDS_FILE))
    return [path] if path.is_file() else []


def stdlib_files(directory: Path) -> list[Path]:
    """The library's own .py files that are clean UTF-8, by name, up to STDLIB_TEXT_BYTES.

    Raises DataError when there is almost none.
    """
    paths: list[Path] = []
    for parent, directories, names in os.walk(directory):
        directories[:] = [name for name in directories if name not in STDLIB_SKIPPED]
        paths += [Path(parent) / name for name in names if name.endswith(".py")]
    files, size = [], 0
    for path in sorted(paths):
        with reading(path):
            content = path.read_bytes()
        if not is_utf8(content):
            continue
        if size + len(content) > STDLIB_TEXT_BYTES:
            break
        files.append(path)
        size += len(content)
    if size < STDLIB_LEAST_BYTES:
        raise DataError(
            f"The standard library of this Python has {size} bytes of source text in {directory}, and data=stdlib "
            f"and data=docstrings need {STDLIB_LEAST_BYTES}. Type data=text data.path=FILE, or data=random."
        )
    return files


def is_utf8(content: bytes) -> bool:
    """Whether the bytes are text in UTF-8."""
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def pieces(path: Path) -> Iterator[Piece]:
    """The text of a file, one document, in pieces; an empty file has none.

    Raises DataError when it cannot be read or is not UTF-8.
    """
    with reading(path), path.open("rb") as file:
        offset = 0
        lines = file.readlines(PIECE_BYTES)
        while lines:
            following = file.readlines(PIECE_BYTES)
            content = b"".join(lines)
            yield Piece(decoded(content, path, offset), first=offset == 0, last=not following)
            offset += len(content)
            lines = following


def decoded(content: bytes, path: Path, offset: int = 0) -> str:
    """The bytes as text; raises DataError with the place of the first one that is not UTF-8."""
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
    """Turn what the system says of a file that cannot be read into a DataError."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{error.filename or path} cannot be read: {error.strerror or error}.") from error
