"""Preparation: tokenize the samples of a `Data` config once, into a directory named by its content.

    CACHE/<digest>/         complete or absent: written under a hidden name, then renamed
    CACHE/.<digest>.lock    prevents ranks of several nodes from repeating the work; the rename alone ensures safety

The digest covers the bytes of every file that determines the tokens, so changed text is never taken from the cache.
The login node prepares before submission; every rank prepares again and finds the directory.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from filelock import FileLock

from jobs.data.dataset import META, SAMPLE_DTYPE, SAMPLES, TOKENS, read_meta, write_tokens
from jobs.data.records import Record, read_rows, records_from
from jobs.data.sources import pieces, reading, source_files
from jobs.data.tokenizer import LEAST_BPE_VOCAB_SIZE, Tokenizer, load_tokenizer, tokenizer_files, train_bpe
from jobs.errors import DataError
from jobs.output import write_file
from jobs.prompt_template import template_of
from jobs.schema import INSTRUCTIONS, Data, Source, TooLong

FORMAT = 1
"""Part of the digest: increase it when the same input results in different samples."""
RANDOM_SAMPLES = 4096
"""Number of random samples where data.max_samples is not set."""
RECORDS_AT_ONCE = 1024
"""Records per encoding call, to limit the memory of lists of Python integers."""
PIECES_AT_ONCE = 8
"""Pieces of text per encoding call, for parallel encoding in limited memory."""
LOCK_WAIT_S = 900
"""Timeout, after which a rank prepares itself: a file system may keep a dead lock, and two writers are safe."""

DESCRIPTIONS = {
    Source.stdlib: "Python standard library",
    Source.text: "Text of {name}",
    Source.docstrings: "Docstrings of the Python standard library",
    Source.alpaca: "Alpaca instructions of {name}",
    Source.dolly: "Dolly instructions of {name}",
    Source.pubmedqa: "PubMedQA questions of {name}",
    Source.random: "Random tokens, whose loss means nothing",
}


@dataclass(frozen=True)
class Recipe:
    """All inputs that determine the samples."""

    data: Data
    sequence_length: int
    vocab_size: int
    seed: int
    files: list[Path]
    tokenizer_files: dict[str, Path]

    def digest(self) -> str:
        """Return the name of the samples: equal only for equal settings and equal bytes of all files."""
        data = self.data
        facts: dict[str, Any] = {
            "format": FORMAT,
            "source": data.source.name,
            "sequence_length": self.sequence_length,
            "max_samples": data.max_samples,
        }
        if data.source is Source.random:
            facts |= {"vocab_size": self.vocab_size, "seed": self.seed}
        else:
            facts |= {
                "name": Path(data.path).name if data.path else None,
                "files": [sha256(path) for path in self.files],
                "tokenizer": {name: sha256(path) for name, path in self.tokenizer_files.items()},
                # LitGPT derives from the directory's name whether a text begins with the bos token.
                "tokenizer_name": sorted({path.parent.name for path in self.tokenizer_files.values()}),
                "bpe_vocab_size": None if self.tokenizer_files else data.bpe_vocab_size,
                "prompt": template_of(data).texts() if data.source in INSTRUCTIONS else None,
                "mask_prompt": data.mask_prompt,
                "too_long": data.too_long.name,
            }
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def prepare(data: Data, *, sequence_length: int, vocab_size: int, seed: int) -> Path:
    """Tokenize once and return the cache directory; later calls of any process return the same directory.

    Raise DataError for text, records or a tokenizer that cannot be used, and for a cache that cannot be written.
    """
    files, tokenizer = inputs(data, vocab_size)
    recipe = Recipe(data, sequence_length, vocab_size, seed, files, tokenizer)
    cache = Path(data.cache_dir)
    digest = recipe.digest()
    target = cache / digest
    with writing(cache):
        if not target.is_dir():
            cache.mkdir(parents=True, exist_ok=True)
            with lock(cache / f".{digest}.lock"):
                if not target.is_dir():
                    make(recipe, target)
    refuse_larger_tokenizer(recipe, read_meta(target)["tokenizer_size"])
    return target


def inputs(data: Data, vocab_size: int) -> tuple[list[Path], dict[str, Path]]:
    """Return the files of the text and the tokenizer without reading them.

    Raise DataError where one is missing, and for a prompt template that the records cannot fill.
    """
    tokenizer: dict[str, Path] = {}
    if data.source in INSTRUCTIONS:
        template_of(data)
    if data.source is not Source.random:
        if data.tokenizer is None:
            refuse_bpe_size(data.bpe_vocab_size, vocab_size)
        else:
            tokenizer = tokenizer_files(Path(data.tokenizer))
    return source_files(data), tokenizer


def refuse_unready(data: Data, vocab_size: int) -> None:
    """Raise DataError before submission for a missing file, or for a cache that cannot be created."""
    inputs(data, vocab_size)
    cache = Path(data.cache_dir)
    with writing(cache):
        cache.mkdir(parents=True, exist_ok=True)


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """Wait for the other ranks up to LOCK_WAIT_S; do not wait without locks, or for a lock of another user."""
    held = FileLock(path)
    with suppress(OSError, NotImplementedError):  # its Timeout is an OSError
        held.acquire(timeout=LOCK_WAIT_S)
    try:
        yield
    finally:
        held.release()


@contextmanager
def writing(cache: Path) -> Iterator[None]:
    """Raise an OSError of the cache as a DataError."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"data.cache_dir={cache} cannot be written: {error.strerror or error}. No incomplete file was left. Set "
            "data.cache_dir=PATH to a directory with free space that all nodes share."
        ) from error


def make(recipe: Recipe, target: Path) -> None:
    """Write the samples under a hidden name and rename them; the first of several writers decides."""
    staging = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        staging.mkdir()
        meta = random_meta(recipe) if recipe.data.source is Source.random else write_samples(recipe, staging)
        write_file(staging / META, json.dumps(meta, indent=1) + "\n")
        if recipe.digest() != target.name:
            raise DataError(f"{recipe.data.path or 'The text'} changed while it was being read. Run the command again.")
        try:
            staging.rename(target)
        except OSError:
            if not target.is_dir():
                raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def random_meta(recipe: Recipe) -> dict[str, Any]:
    """Return the meta.json of random samples, which are generated and not stored."""
    samples = recipe.data.max_samples or RANDOM_SAMPLES
    tokens = samples * recipe.sequence_length
    return {
        "description": f"{DESCRIPTIONS[Source.random]}: {samples:,} samples, {tokens:,} tokens.",
        "tokenizer_size": recipe.vocab_size,
        "tokenizer_files": [],
        "random": {
            "samples": samples,
            "sequence_length": recipe.sequence_length,
            "vocab_size": recipe.vocab_size,
            "seed": recipe.seed,
        },
    }


def write_samples(recipe: Recipe, directory: Path) -> dict[str, Any]:
    """Write tokenizer, tokens and samples, and return meta.json."""
    data = recipe.data
    if data.source not in INSTRUCTIONS:
        texts = (piece.text for path in recipe.files for piece in pieces(path))
        tokenizer, names = tokenizer_for(recipe, texts, directory)
        samples = write_windows(recipe, tokenizer, directory)
    else:
        rows = read_rows(data.source, recipe.files, data.max_samples)
        records = records_from(rows.first, data.source, template_of(data))
        texts = (text for record in records for text in (record.prompt, record.response))
        tokenizer, names = tokenizer_for(recipe, texts, directory)
        samples = write_records(recipe, records, tokenizer, directory)
    np.save(directory / SAMPLES, samples)

    what = DESCRIPTIONS[data.source].format(name=Path(data.path or "").name)
    tokens = int(samples["length"].sum(dtype=np.int64))
    whose = names[0] if data.tokenizer else "byte-level BPE trained on it"
    return {
        "description": f"{what}: {len(samples):,} samples, {tokens:,} tokens ({whose}, {tokenizer.size:,} tokens).",
        "tokenizer_size": tokenizer.size,
        "tokenizer_files": names,
    }


def tokenizer_for(recipe: Recipe, texts: Iterator[str], directory: Path) -> tuple[Tokenizer, list[str]]:
    """Return the configured tokenizer, or one trained on the texts, and the names of its files in the directory."""
    if recipe.tokenizer_files:
        tokenizer = load_tokenizer(recipe.tokenizer_files)
        refuse_larger_tokenizer(recipe, tokenizer.size)
        for name, path in recipe.tokenizer_files.items():
            with reading(path):
                content = path.read_bytes()
            write_file(directory / name, content)
        return tokenizer, list(recipe.tokenizer_files)
    files = train_bpe(texts, recipe.data.bpe_vocab_size, directory)
    return load_tokenizer(files), list(files)


def write_windows(recipe: Recipe, tokenizer: Tokenizer, directory: Path) -> npt.NDArray[np.void]:
    """Split all text into windows of sequence_length + 1 tokens; they overlap by one, so each token is a label once."""
    length, most = recipe.sequence_length, recipe.data.max_samples
    arrays = encoded_pieces(recipe.files, tokenizer)
    tokens = write_tokens(
        directory / TOKENS, arrays, token_dtype(tokenizer.size), None if most is None else most * length + 1
    )
    count = (tokens - 1) // length
    if count < 1:
        raise DataError(
            f"{recipe.data.path or 'The standard library'} has {tokens} tokens, and one sample of job.sequence_length="
            f"{length} needs {length + 1}. Set a smaller job.sequence_length, or give more text."
        )
    samples = np.zeros(count, dtype=SAMPLE_DTYPE)
    samples["start"] = np.arange(count, dtype=np.int64) * length
    samples["length"] = length
    return samples


def encoded_pieces(files: list[Path], tokenizer: Tokenizer) -> Iterator[npt.NDArray[Any]]:
    """Yield the token ids of each piece; a document ends with eos, and begins with bos if the tokenizer adds it."""
    todo = (piece for path in files for piece in pieces(path))
    while batch := list(islice(todo, PIECES_AT_ONCE)):
        for piece, ids in zip(batch, tokenizer.raw_encode([piece.text for piece in batch]), strict=True):
            yield np.array(tokenizer.delimited(ids, bos=None if piece.first else False, eos=piece.last), dtype=np.int64)


def write_records(recipe: Recipe, records: list[Record], tokenizer: Tokenizer, directory: Path) -> npt.NDArray[np.void]:
    """Write each record as prompt and response, as litgpt 0.5.12 (litgpt/data/base.py, class SFTDataset)."""
    data, limit, dtype = recipe.data, recipe.sequence_length, token_dtype(tokenizer.size)
    whole: list[npt.NDArray[Any]] = []
    prompt_sizes: list[int] = []
    for start in range(0, len(records), RECORDS_AT_ONCE):
        batch = records[start : start + RECORDS_AT_ONCE]
        prompts = tokenizer.encode([record.prompt for record in batch])
        responses = tokenizer.encode([record.response for record in batch], bos=False, eos=True)
        prompt_sizes += map(len, prompts)
        whole += (np.array(p + r, dtype=dtype) for p, r in zip(prompts, responses, strict=True))
    if data.too_long is TooLong.refuse:
        refuse_too_long(records, [len(tokens) for tokens in whole], limit)
    cut = [tokens[:limit] for tokens in whole]
    write_tokens(directory / TOKENS, cut, dtype)

    samples = np.zeros(len(cut), dtype=SAMPLE_DTYPE)
    sizes = np.array([len(tokens) for tokens in cut])
    samples["start"] = np.cumsum(sizes) - sizes
    samples["length"] = sizes - 1
    if data.mask_prompt:
        # Target i is token i + 1, so a prompt of n tokens excludes the first n - 1 targets.
        samples["unlabelled"] = np.clip(np.array(prompt_sizes) - 1, 0, samples["length"])
    return samples


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


def refuse_bpe_size(size: int, vocab_size: int) -> None:
    """Raise DataError where a BPE of this size cannot be trained or does not fit the model."""
    if size < LEAST_BPE_VOCAB_SIZE:
        raise DataError(
            f"data.bpe_vocab_size={size} is too small: all bytes and an end-of-text token are {LEAST_BPE_VOCAB_SIZE}. "
            f"Set data.bpe_vocab_size={LEAST_BPE_VOCAB_SIZE} or more."
        )
    if size > vocab_size:
        raise DataError(
            f"data.bpe_vocab_size={size} is larger than model.vocab_size={vocab_size}. Set data.bpe_vocab_size="
            f"{vocab_size} or less, or a larger model.vocab_size."
        )


def refuse_larger_tokenizer(recipe: Recipe, size: int) -> None:
    """Raise DataError where the tokenizer has ids outside the model's embedding."""
    if size > recipe.vocab_size:
        raise DataError(
            f"data.tokenizer={recipe.data.tokenizer} has {size} tokens, more than "
            f"model.vocab_size={recipe.vocab_size}. Set model.vocab_size={size}, give a smaller tokenizer, or set "
            "data.tokenizer=null for a BPE trained on the text."
        )


def sha256(path: Path) -> str:
    """Return the digest of a file's bytes."""
    with reading(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
