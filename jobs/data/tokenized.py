"""Tokens of text and of instruction records, as samples on disk."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from jobs.data.dataset import DOCUMENTS, SAMPLE_DTYPE, TOKENS, write_tokens
from jobs.data.documents import document_pieces
from jobs.data.instruction_records import Record
from jobs.data.megatron_binary import read_index, sequences_of
from jobs.data.recipe import Recipe
from jobs.data.sources import Piece
from jobs.data.tokenizer import Tokenizer
from jobs.errors import DataError
from jobs.schema import Data, TooLong

RECORDS_AT_ONCE = 1024
"""Records per encoding call, to limit the memory of lists of Python integers."""
PIECES_AT_ONCE = 8
"""Pieces of text per encoding call, for parallel encoding in limited memory."""


@dataclass(frozen=True)
class Tokenized:
    """The samples of a data set in the order of its files; their tokens are written."""

    samples: npt.NDArray[np.void]
    """SAMPLE_DTYPE."""
    sizes: npt.NDArray[np.int64]
    """Tokens of each sample before it was cut; of a window of text, its inputs."""
    read: int
    """Samples that the files have."""
    litgpt_unended: int = 0
    """Responses that LitGPT itself would leave without an end token."""


class Part(NamedTuple):
    """Token ids of a document, or of a piece of it."""

    begins: bool
    """They are the first of the document."""
    ids: npt.NDArray[Any]


def write_windows(recipe: Recipe, parts: Iterable[Part], dtype: npt.DTypeLike, directory: Path) -> Tokenized:
    """Split all tokens into windows of sequence_length + 1; they overlap by one, so each token is a label once."""
    length, most = recipe.sequence_length, recipe.data.max_samples
    documents = array("q")

    def ids() -> Iterator[npt.NDArray[Any]]:
        written = 0
        for part in parts:
            if part.begins:
                documents.append(written)
            written += len(part.ids)
            yield part.ids

    tokens = write_tokens(directory / TOKENS, ids(), dtype, None if most is None else most * length + 1)
    begins = np.frombuffer(documents, dtype=np.int64)
    np.save(directory / DOCUMENTS, begins[begins < tokens])
    count = (tokens - 1) // length
    if count < 1:
        raise DataError(
            f"{recipe.data.path or 'The standard library'} has {tokens} tokens, and one sample of job.sequence_length="
            f"{length} needs {length + 1}. Set a smaller job.sequence_length, or give more text."
        )
    samples = np.zeros(count, dtype=SAMPLE_DTYPE)
    samples["start"] = np.arange(count, dtype=np.int64) * length
    samples["length"] = length
    return Tokenized(samples, samples["length"].astype(np.int64), count)


def write_sequences(recipe: Recipe, directory: Path) -> tuple[Tokenized, int]:
    """Write the ids of Megatron's files as windows, across sequences, and return them with the largest id + 1.

    Raise DataError for a negative id.
    """
    index_file, bin_file = recipe.files
    index = read_index(index_file, bin_file)
    firsts = set(index.documents.tolist())
    parts = (Part(i in firsts, ids) for i, ids in enumerate(sequences_of(index, bin_file)))
    tokenized = write_windows(recipe, parts, index.dtype, directory)
    tokens = np.load(directory / TOKENS, mmap_mode="r")
    if tokens.min() < 0:
        raise DataError(f"{bin_file} has a negative token id. Set data.path=PREFIX to files of token ids.")
    return tokenized, int(tokens.max()) + 1


def encoded_documents(files: list[Path], tokenizer: Tokenizer, data: Data) -> Iterator[npt.NDArray[Any]]:
    """Yield the token ids of each document."""
    parts: list[npt.NDArray[Any]] = []
    for piece, ids in encoded(files, tokenizer, data):
        parts.append(ids)
        if piece.last:
            yield np.concatenate(parts)
            parts = []


def encoded_pieces(files: list[Path], tokenizer: Tokenizer, data: Data) -> Iterator[Part]:
    """Yield the token ids of each piece."""
    return (Part(piece.first, ids) for piece, ids in encoded(files, tokenizer, data))


def encoded(files: list[Path], tokenizer: Tokenizer, data: Data) -> Iterator[tuple[Piece, npt.NDArray[Any]]]:
    """Yield each piece with its ids; a document has one end token, and one begin token if the tokenizer adds it."""
    todo = (piece for path in files for piece in document_pieces(path, data))
    while batch := list(islice(todo, PIECES_AT_ONCE)):
        for piece, raw in zip(batch, tokenizer.raw_encode([piece.text for piece in batch]), strict=True):
            ids = raw
            if piece.first:
                ids = tokenizer.delimited(raw, bos=None, eos=piece.last)
            elif piece.last:
                ids = tokenizer.ended(raw)
            yield piece, np.array(ids, dtype=np.int64)


def write_records(recipe: Recipe, records: list[Record], read: int, tokenizer: Tokenizer, directory: Path) -> Tokenized:
    """Write each record as prompt and response, as litgpt 0.5.12 (litgpt/data/base.py, class SFTDataset).

    Every response ends with one end token.
    """
    data, limit, dtype = recipe.data, recipe.sequence_length, token_dtype(tokenizer.size)
    whole: list[npt.NDArray[Any]] = []
    prompt_sizes: list[int] = []
    unended = 0
    for start in range(0, len(records), RECORDS_AT_ONCE):
        batch = records[start : start + RECORDS_AT_ONCE]
        prompts = tokenizer.encode([record.prompt for record in batch])
        raw = tokenizer.raw_encode([record.response for record in batch])
        responses = [tokenizer.delimited(ids, bos=False, eos=True) for ids in raw]
        unended += tokenizer.litgpt_unended(raw)
        prompt_sizes += map(len, prompts)
        whole += (np.array(p + r, dtype=dtype) for p, r in zip(prompts, responses, strict=True))
    sizes = np.array([len(tokens) for tokens in whole], dtype=np.int64)
    if data.too_long is TooLong.refuse:
        refuse_too_long(records, sizes.tolist(), limit)
    cut = [tokens[:limit] for tokens in whole]
    write_tokens(directory / TOKENS, cut, dtype)

    samples = np.zeros(len(cut), dtype=SAMPLE_DTYPE)
    kept = np.minimum(sizes, limit)
    samples["start"] = np.cumsum(kept) - kept
    samples["length"] = kept - 1
    if data.mask_prompt:
        # Target i is token i + 1, so a prompt of n tokens excludes the first n - 1 targets.
        samples["unlabelled"] = np.clip(np.array(prompt_sizes) - 1, 0, samples["length"])
    return Tokenized(samples, sizes, read, unended)


def token_dtype(size: int) -> npt.DTypeLike:
    """Return the smallest unsigned integer type for ids below `size`."""
    return np.min_scalar_type(size - 1)


def refuse_too_long(records: list[Record], lengths: list[int], limit: int) -> None:
    """Raise DataError for the first record with more tokens than the limit, with the number of further ones."""
    too_long = [i for i, length in enumerate(lengths) if length > limit]
    if too_long:
        first, longest = too_long[0], max(lengths)
        others = f"; {len(too_long) - 1} more are too long, the longest with {longest}" if len(too_long) > 1 else ""
        raise DataError(
            f"{records[first].where} has {lengths[first]} tokens with its prompt, and job.sequence_length is {limit}"
            f"{others}. Set job.sequence_length={longest} to keep all complete, or data.too_long=truncate to truncate "
            "them as LitGPT does."
        )
