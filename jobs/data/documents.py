"""Documents: the text of a file in pieces: one document per file, or per line of JSON."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import zstandard

from jobs.data.directory import JSON_LINES
from jobs.data.instruction_records import fields_of, json_value
from jobs.data.sources import BYTE_ORDER_MARK, Piece, bounded_lines, decoded, pieces, reading
from jobs.errors import DataError
from jobs.files import opened
from jobs.schema import Data

FREE_BYTES = 256 << 20
"""Text that a compressed file may always expand to."""


def document_pieces(path: Path, data: Data) -> Iterator[Piece]:
    """Yield the documents of a file in pieces; raise DataError if it cannot be used."""
    yield from pieces_of_lines(path, data) if path.name.endswith(JSON_LINES) else pieces(path, data.max_line_mb)


def pieces_of_lines(path: Path, data: Data) -> Iterator[Piece]:
    """Yield the "text" of each line of JSON, as the Pile has it; a line without characters in it is not a document.

    Raise DataError for a compressed file that expands beyond data.max_expansion.
    """
    with reading(path), opened(path) as file:
        zstd = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
        content: BinaryIO = io.BufferedReader(zstd) if path.suffix == ".zst" else file
        most = max(FREE_BYTES, data.max_expansion * path.stat().st_size)
        expanded = 0
        try:
            for number, line in enumerate(bounded_lines(content, path, data.max_line_mb), 1):
                where = f"{path}: line {number}"
                expanded += len(line)
                if path.suffix == ".zst" and expanded > most:
                    raise DataError(
                        f"{path} expands to more than {data.max_expansion} times its size (data.max_expansion), and "
                        f"to {most / 1e6:,.0f} MB at line {number}. Set a larger data.max_expansion if it is text."
                    )
                if line.strip():
                    content_of_line = decoded(line, path).removeprefix(BYTE_ORDER_MARK)
                    text = fields_of(json_value(content_of_line, path, number), where).text("text")
                    if text:
                        yield Piece(text, first=True, last=True)
        except zstandard.ZstdError as error:
            raise DataError(f"{path} is not zstandard: {error}. Copy it again from its source.") from error
