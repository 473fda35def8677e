"""Documents: the text of a file in pieces, one document a file or one a line of JSON."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import zstandard

from jobs.data.directory import JSON_LINES
from jobs.data.records import fields_of, json_value
from jobs.data.sources import Piece, decoded, pieces, reading
from jobs.errors import DataError


def document_pieces(path: Path) -> Iterator[Piece]:
    """Yield the documents of a file in pieces; raise DataError where it cannot be used."""
    yield from pieces_of_lines(path) if path.name.endswith(JSON_LINES) else pieces(path)


def pieces_of_lines(path: Path) -> Iterator[Piece]:
    """Yield the "text" of each line of JSON, as the Pile has it; a line without characters in it is no document."""
    with reading(path), path.open("rb") as file:
        zstd = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
        content = io.BufferedReader(zstd) if path.suffix == ".zst" else file
        try:
            for number, line in enumerate(content, 1):
                where = f"{path}: line {number}"
                if line.strip():
                    text = fields_of(json_value(decoded(line, path), path, number), where).text("text")
                    if text:
                        yield Piece(text, first=True, last=True)
        except zstandard.ZstdError as error:
            raise DataError(f"{path} is not zstandard: {error}. Copy it again from its source.") from error
