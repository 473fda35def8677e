"""Samples on disk: the cache directory that `prepare` writes, and its memory-mapped reader.

    meta.json        description, account, size and files of the tokenizer; parameters of random samples
    tokens.npy       all token ids in sequence, as unsigned integers
    samples.npy      position of each sample in tokens.npy (SAMPLE_DTYPE)
    documents.npy    position of the first token of each document in tokens.npy, where samples are windows of text
    tokenizer.json   (or tokenizer.model) and its configuration, as LitGPT reads them

Random samples are generated, not stored: their directory contains only meta.json. No file is written twice; an
existing directory is complete.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from jobs import metrics as m
from jobs.errors import DataError
from jobs.files import opened, read_bytes, read_object

META = "meta.json"
TOKENS = "tokens.npy"
SAMPLES = "samples.npy"
DOCUMENTS = "documents.npy"

SAMPLE_DTYPE = np.dtype([("start", "<i8"), ("length", "<i4"), ("unlabelled", "<i4")])
"""First token of a sample, number of input tokens, and number of first targets that are excluded from the loss."""

IGNORED = -100
"""Target that is excluded from the loss, as in torch.nn.functional.cross_entropy and LitGPT."""

Tokens = npt.NDArray[np.int64]


class Dataset(ABC):
    """Tokenized samples; a sample of n inputs is n + 1 tokens, and the target of an input is the next token."""

    def __init__(
        self,
        directory: Path,
        meta: dict[str, Any],
        lengths: npt.NDArray[np.int32],
        label_counts: npt.NDArray[np.int64],
    ) -> None:
        self.directory = directory
        self.lengths = lengths
        """Input tokens of each sample."""
        self.label_counts = label_counts
        """Targets of each sample that contribute to the loss."""
        self.virtual_tokens = 0
        """Inputs of each sample that are not tokens of the data (jobs.data.virtual_tokens)."""
        self.meta = meta
        """Content of meta.json."""

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def description(self) -> str:
        """One sentence: the text, its samples and its tokens."""
        return str(self.meta["description"])

    @property
    def account(self) -> dict[str, float]:
        """Samples read, used, held out and cut, their tokens and padding, by the names of jobs.metrics."""
        return dict(self.meta["account"])

    @property
    def held_out(self) -> int:
        """Number of samples, the last ones, that no step trains on."""
        return int(self.meta["account"][m.DATA_SAMPLES_HELD_OUT.name])

    @property
    def tokenizer_files(self) -> list[Path]:
        """Tokenizer files that a LitGPT checkpoint directory needs for this text; none for random tokens."""
        return [self.directory / name for name in self.meta["tokenizer_files"]]

    @abstractmethod
    def sample(self, index: int) -> tuple[Tokens, Tokens]:
        """Return inputs and targets of one sample, both (length,); targets without a loss are IGNORED."""

    def further_documents(self, _index: int) -> list[int]:
        """Return the inputs of a sample, behind its first, that begin a document: none in a sample of one document."""
        return []


class StoredDataset(Dataset):
    """Samples that are stored in tokens.npy."""

    def __init__(self, directory: Path, meta: dict[str, Any]) -> None:
        with opened(directory / SAMPLES) as file:
            samples = np.load(file)
        lengths = np.ascontiguousarray(samples["length"])
        super().__init__(directory, meta, lengths, (lengths - samples["unlabelled"]).astype(np.int64))
        self._samples = samples
        opened(directory / TOKENS).close()
        self._tokens = np.load(directory / TOKENS, mmap_mode="r")
        self._documents = np.empty(0, dtype=np.int64)
        if (directory / DOCUMENTS).exists():
            opened(directory / DOCUMENTS).close()
            self._documents = np.load(directory / DOCUMENTS, mmap_mode="r")

    def sample(self, index: int) -> tuple[Tokens, Tokens]:
        """Return a copy of the tokens on disk."""
        start, length, unlabelled = self._samples[index].tolist()
        tokens = self._tokens[start : start + length + 1].astype(np.int64)
        targets = tokens[1:].copy()
        targets[:unlabelled] = IGNORED
        return tokens[:-1], targets

    def further_documents(self, index: int) -> list[int]:
        """Return the inputs of a sample, behind its first, that begin a document."""
        start, length, _ = self._samples[index].tolist()
        first, last = np.searchsorted(self._documents, [start + 1, start + length])
        begins: list[int] = (self._documents[first:last] - start).tolist()
        return begins


class RandomDataset(Dataset):
    """Uniformly random tokens; sample i is a function of (seed, i)."""

    def __init__(self, directory: Path, meta: dict[str, Any]) -> None:
        recipe = meta["random"]
        count, self._length = recipe["samples"], recipe["sequence_length"]
        lengths = np.full(count, self._length, dtype=np.int32)
        super().__init__(directory, meta, lengths, lengths.astype(np.int64))
        self._seed, self._vocab_size = recipe["seed"], recipe["vocab_size"]

    def sample(self, index: int) -> tuple[Tokens, Tokens]:
        """Return the same tokens on every call."""
        random = np.random.Generator(np.random.Philox(np.random.SeedSequence((self._seed, index))))
        tokens = random.integers(self._vocab_size, size=self._length + 1)
        return tokens[:-1], tokens[1:].copy()


def digest_of(directory: Path) -> str:
    """Return the digest of meta.json, which contains those of all other files of the data set."""
    return hashlib.sha256(read_bytes(directory / META)).hexdigest()


def refuse_changed(directory: Path, planned: str | None) -> None:
    """Raise DataError if the files of a data set are not those that were prepared, or planned for a run.

    All files are read once. A data set or plan of an earlier version has no digests: it passes, and a line reports it.
    """
    changed = [META] if planned not in {None, digest_of(directory)} else []
    meta = read_meta(directory)
    if "random" not in meta and "sha256" not in meta:
        text = "was prepared by an earlier version, without digests: nobody checks that it has not changed"
        print(f"{directory} {text}. Remove the directory to prepare it again.", flush=True)
    for name, digest in meta.get("sha256", {}).items():
        with opened(directory / name) as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                changed.append(name)
    if changed:
        raise DataError(
            f"{directory} has changed since it was prepared ({', '.join(changed)}). Look who can write there, remove "
            "the directory, and submit the run again."
        )


def open_dataset(directory: Path) -> Dataset:
    """Open the samples of a directory that `prepare` returned.

    Raise DataError if the directory is not prepared data.
    """
    meta = read_meta(directory)
    return RandomDataset(directory, meta) if "random" in meta else StoredDataset(directory, meta)


def read_meta(directory: Path) -> dict[str, Any]:
    """Return meta.json; raise DataError if it is missing."""
    try:
        return read_object(directory / META)
    except FileNotFoundError as error:
        raise DataError(
            f"{directory} is not prepared data: it has no {META}. Remove the directory; a run creates it again."
        ) from error


def write_tokens(path: Path, arrays: Iterable[npt.NDArray[Any]], dtype: npt.DTypeLike, most: int | None = None) -> int:
    """Write a one-dimensional .npy file array by array, with at most `most` tokens, and return its number of tokens.

    numpy reserves space in the header for the first axis to grow, so the header is rewritten when the length is known.
    """

    def header(count: int) -> int:
        description = {
            "descr": np.lib.format.dtype_to_descr(np.dtype(dtype)),
            "fortran_order": False,
            "shape": (count,),
        }
        file.seek(0)
        np.lib.format.write_array_header_1_0(file, description)
        return file.tell()

    count = 0
    with path.open("wb") as file:
        room = header(count)
        for array in arrays:
            taken = array if most is None else array[: most - count]
            file.write(taken.astype(dtype).tobytes())
            count += len(taken)
            if count == most:
                break
        used = header(count)
        assert used == room, f"the .npy header grew from {room} to {used} bytes"
    return count
