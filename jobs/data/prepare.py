"""Preparation: tokenize the samples of a `Data` config once, into a directory named by its content.

    CACHE/<digest>/         complete or absent: written under a hidden name, then renamed
    CACHE/.<digest>.lock    prevents ranks of several nodes from repeating the work; the rename alone ensures safety

The digest covers the bytes of every file that determines the tokens, so changed text is never taken from the cache.
The login node prepares before submission; every rank prepares again and finds the directory.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from filelock import FileLock

from jobs.data.account import Account, account_of
from jobs.data.dataset import META, SAMPLES, read_meta
from jobs.data.directory import listed
from jobs.data.documents import document_pieces
from jobs.data.examples import with_examples
from jobs.data.instruction_records import read_rows, records_from
from jobs.data.recipe import Recipe, sha256
from jobs.data.sources import file_names, reading, source_files
from jobs.data.split import held_out_of, split_order
from jobs.data.tokenized import (
    Tokenized,
    encoded_pieces,
    token_dtype,
    write_records,
    write_sequences,
    write_windows,
)
from jobs.data.tokenizer import (
    CONFIG,
    LEAST_BPE_VOCAB_SIZE,
    Tokenizer,
    completed_config,
    load_tokenizer,
    tokenizer_files,
    train_bpe,
)
from jobs.errors import DataError
from jobs.files import RECORD_FILE_BYTES, read_bytes
from jobs.output import write_file
from jobs.prompt_template import template_of
from jobs.schema import INSTRUCTIONS, Data, Source, default_cache_dir

RANDOM_SAMPLES = 4096
"""Number of random samples where data.max_samples is not set."""
PRIVATE = 0o700
"""Mode of the directories of the default cache."""
LOCK_WAIT_S = 900
"""Timeout, after which a rank prepares itself: a file system may keep a dead lock, and two writers are safe."""

DESCRIPTIONS = {
    Source.stdlib: "Python standard library",
    Source.text: "Text of {name}",
    Source.docstrings: "Docstrings of the Python standard library",
    Source.alpaca: "Alpaca instructions of {name}",
    Source.dolly: "Dolly instructions of {name}",
    Source.pubmedqa: "PubMedQA questions of {name}",
    Source.megatron_binary: "Megatron's binary format in {name}",
    Source.random: "Random tokens, whose loss means nothing",
}


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
            make_cache(cache)
            with lock(cache / f".{digest}.lock"):
                if not target.is_dir():
                    make(recipe, target)
    refuse_larger_tokenizer(recipe, read_meta(target)["tokenizer_size"])
    return target


def inputs(data: Data, vocab_size: int) -> tuple[list[Path], dict[str, Path]]:
    """Return the files of the text and the tokenizer without reading them.

    Raise DataError if one is missing, and for a prompt template that the records cannot fill.
    """
    tokenizer: dict[str, Path] = {}
    if data.source in INSTRUCTIONS:
        template_of(data)
    if data.tokenizer is not None and data.source is not Source.random:
        tokenizer = tokenizer_files(Path(data.tokenizer))
    elif data.source not in WRITERS:
        refuse_bpe_size(data.bpe_vocab_size, vocab_size)
    return source_files(data), tokenizer


def refuse_unready(data: Data, vocab_size: int) -> None:
    """Raise DataError before submission for a missing file, or for a cache that cannot be created."""
    inputs(data, vocab_size)
    cache = Path(data.cache_dir)
    with writing(cache):
        make_cache(cache)


def is_private(cache: Path) -> bool:
    """Return True for the default cache of this user, which nobody else reads or writes, whatever the umask."""
    return cache == Path(default_cache_dir()).expanduser().absolute()


def make_cache(cache: Path) -> None:
    """Make the directory of a cache and those above it."""
    if not is_private(cache):
        cache.mkdir(parents=True, exist_ok=True)
        return
    for path in (*reversed(cache.parents), cache):
        if not path.is_dir():
            path.mkdir(mode=PRIVATE, exist_ok=True)
    # Those of earlier versions had the mode of the umask.
    for path in (cache.parent, cache):
        if path.stat().st_uid == os.getuid() and path.stat().st_mode & 0o022:
            path.chmod(PRIVATE)


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
        meta = WRITERS.get(recipe.data.source, write_samples)(recipe, staging)
        meta["sha256"] = {path.name: sha256(path) for path in sorted(staging.iterdir())}
        write_file(staging / META, json.dumps(meta, indent=1) + "\n")
        if recipe.digest() != target.name:
            raise DataError(f"{recipe.data.path or 'The text'} changed while it was being read. Run the command again.")
        if is_private(target.parent):
            for path in (staging, *staging.iterdir()):
                path.chmod(PRIVATE if path is staging else 0o600)
        try:
            staging.rename(target)
        except OSError:
            if not target.is_dir():
                raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def random_meta(recipe: Recipe, _directory: Path) -> dict[str, Any]:
    """Return the meta.json of random samples, which are generated and not stored."""
    samples = recipe.data.max_samples or RANDOM_SAMPLES
    tokens = samples * recipe.sequence_length
    return {
        "description": f"{DESCRIPTIONS[Source.random]}: {samples:,} samples, {tokens:,} tokens.",
        "account": account(recipe, np.full(samples, recipe.sequence_length), samples),
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
        texts = (piece.text for path in recipe.files for piece in document_pieces(path, data))
        tokenizer, names = tokenizer_for(recipe, texts, directory)
        parts = encoded_pieces(recipe.files, tokenizer, data)
        tokenized = write_windows(recipe, parts, token_dtype(tokenizer.size), directory)
    else:
        rows = read_rows(data.source, recipe.files, data.max_samples, data.max_line_mb)
        records = with_examples(records_from(rows.first, data.source, template_of(data)), data)
        texts = (text for record in records for text in (record.prompt, record.response))
        tokenizer, names = tokenizer_for(recipe, texts, directory)
        tokenized = write_records(recipe, records, rows.count, tokenizer, directory)
    whose = names[0] if data.tokenizer else "byte-level BPE trained on it"
    return stored(recipe, tokenized, directory, Vocabulary(tokenizer.size, names, whose))


def write_tokenized(recipe: Recipe, directory: Path) -> dict[str, Any]:
    """Write the samples of data that is tokenized already, and the tokenizer if one is given; return meta.json."""
    tokenized, size = write_sequences(recipe, directory)
    names = copy_tokenizer(recipe, directory)
    return stored(recipe, tokenized, directory, Vocabulary(size, names, "tokenized before"))


class Vocabulary(NamedTuple):
    """The tokenizer of a data set."""

    size: int
    """Largest id + 1."""
    files: list[str]
    """Names of its files next to the samples."""
    description: str


def stored(recipe: Recipe, tokenized: Tokenized, directory: Path, vocabulary: Vocabulary) -> dict[str, Any]:
    """Write the order of the samples, and return meta.json."""
    samples = tokenized.samples[split_order(recipe.data, len(tokenized.samples))]
    np.save(directory / SAMPLES, samples)
    names = file_names(recipe.data)
    what = DESCRIPTIONS[recipe.data.source].format(name=Path(recipe.data.path or "").name)
    tokens = int(samples["length"].sum(dtype=np.int64))
    return {
        "description": f"{what}: {len(samples):,} samples, {tokens:,} tokens ({vocabulary.description}, "
        f"{vocabulary.size:,} tokens).{files_of(names)}",
        "files": names,
        "account": account(recipe, tokenized.sizes, tokenized.read),
        "tokenizer_size": vocabulary.size,
        "tokenizer_files": vocabulary.files,
        "litgpt_unended": tokenized.litgpt_unended,
    }


def files_of(names: dict[str, list[str]]) -> str:
    """Return sentences that name the files of a directory; empty for a single file."""
    if not names:
        return ""
    left_out = f" Left out: {listed(names['left_out'])}." if names["left_out"] else ""
    return f" Files: {listed(names['read'])}.{left_out}"


WRITERS = {Source.random: random_meta, Source.megatron_binary: write_tokenized}
"""Sources whose samples are no text."""


def account(recipe: Recipe, sizes: npt.NDArray[np.int64], read: int) -> Account:
    """Return the account of samples with these numbers of tokens, out of those read."""
    held_out = held_out_of(recipe.data, len(sizes))
    return account_of(sizes, row_length=recipe.sequence_length, read=read, held_out=held_out)


def tokenizer_for(recipe: Recipe, texts: Iterator[str], directory: Path) -> tuple[Tokenizer, list[str]]:
    """Return the configured tokenizer, or one trained on the texts, and the names of its files in the directory."""
    if recipe.tokenizer_files:
        tokenizer = load_tokenizer(recipe.tokenizer_files)
        refuse_larger_tokenizer(recipe, tokenizer.size)
        names = copy_tokenizer(recipe, directory)
        if config := completed_config(recipe.tokenizer_files, tokenizer):
            write_file(directory / CONFIG, json.dumps(config, indent=1) + "\n")
            names = list(dict.fromkeys([*names, CONFIG]))
        return tokenizer, names
    files = train_bpe(texts, recipe.data.bpe_vocab_size, directory)
    return load_tokenizer(files), list(files)


def copy_tokenizer(recipe: Recipe, directory: Path) -> list[str]:
    """Copy the files of the configured tokenizer next to the samples, and return their names."""
    files = recipe.tokenizer_files
    for name, path in files.items():
        with reading(path):
            content = read_bytes(path, RECORD_FILE_BYTES)
        write_file(directory / name, content)
    return list(files)


def refuse_bpe_size(size: int, vocab_size: int) -> None:
    """Raise DataError if a BPE of this size cannot be trained or does not fit the model."""
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
    """Raise DataError if the tokenizer, or tokenized data, has ids outside the model's embedding."""
    if size > recipe.vocab_size and recipe.data.source is Source.megatron_binary:
        raise DataError(
            f"data.path={recipe.data.path} has the token id {size - 1}, and model.vocab_size={recipe.vocab_size}. Set "
            f"model.vocab_size={size}, or data.path to files of another tokenizer."
        )
    if size > recipe.vocab_size:
        raise DataError(
            f"data.tokenizer={recipe.data.tokenizer} has {size} tokens, more than "
            f"model.vocab_size={recipe.vocab_size}. Set model.vocab_size={size}, give a smaller tokenizer, or set "
            "data.tokenizer=null for a BPE trained on the text."
        )
