"""Samples on disk: the cache directory that `prepare` writes, and its memory-mapped reader.

    meta.json        description, size and files of the tokenizer; what generates random samples
    tokens.npy       all token ids, one after the other, as unsigned integers
    samples.npy      where in tokens.npy each sample lies (SAMPLE_DTYPE)
    tokenizer.json   (or tokenizer.model) and its configuration, as LitGPT reads them

Random samples are generated, not stored: they have meta.json alone. Nothing here is ever written twice; a
directory that exists is whole.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from jobs.errors import DataError

META = "meta.json"
TOKENS = "tokens.npy"
SAMPLES = "samples.npy"

SAMPLE_DTYPE = np.dtype([("start", "<i8"), ("length", "<i4"), ("unlabelled", "<i4")])
"""First token of a sample, its input tokens, and how many of its first targets take no loss."""

IGNORED = -100
"""Target that takes no loss, as torch.nn.functional.cross_entropy and LitGPT have it."""

Tokens = npt.NDArray[np.int64]


class Dataset(ABC):
    """Tokenized samples; a sample of n inputs is n + 1 tokens, each input's target being the next token."""

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
        """Targets of each sample that take a loss."""
        self._meta = meta

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def description(self) -> str:
        """One sentence: what text, how many samples and tokens."""
        return str(self._meta["description"])

    @property
    def tokenizer_files(self) -> list[Path]:
        """Files that a LitGPT checkpoint directory needs to read and write this text; none for random tokens."""
        return [self.directory / name for name in self._meta["tokenizer_files"]]

    @abstractmethod
    def sample(self, index: int) -> tuple[Tokens, Tokens]:
        """Inputs and targets of one sample, both (length,); targets are IGNORED where no loss is taken."""


class StoredDataset(Dataset):
    """Samples that lie in tokens.npy."""

    def __init__(self, directory: Path, meta: dict[str, Any]) -> None:
        samples = np.load(directory / SAMPLES)
        lengths = np.ascontiguousarray(samples["length"])
        super().__init__(directory, meta, lengths, (lengths - samples["unlabelled"]).astype(np.int64))
        self._samples = samples
        self._tokens = np.load(directory / TOKENS, mmap_mode="r")

    def sample(self, index: int) -> tuple[Tokens, Tokens]:
        """A copy of the tokens on disk."""
        start, length, unlabelled = self._samples[index].tolist()
        tokens = self._tokens[start : start + length + 1].astype(np.int64)
        targets = tokens[1:].copy()
        targets[:unlabelled] = IGNORED
        return tokens[:-1], targets


class RandomDataset(Dataset):
    """Uniformly random tokens; sample i is a function of (seed, i)."""

    def __init__(self, directory: Path, meta: dict[str, Any]) -> None:
        recipe = meta["random"]
        count, self._length = recipe["samples"], recipe["sequence_length"]
        lengths = np.full(count, self._length, dtype=np.int32)
        super().__init__(directory, meta, lengths, lengths.astype(np.int64))
        self._seed, self._vocab_size = recipe["seed"], recipe["vocab_size"]

    def sample(self, index: int) -> tuple[Tokens, Tokens]:
        """The same tokens whenever they are asked for."""
        random = np.random.Generator(np.random.Philox(np.random.SeedSequence((self._seed, index))))
        tokens = random.integers(self._vocab_size, size=self._length + 1)
        return tokens[:-1], tokens[1:].copy()


def open_dataset(directory: Path) -> Dataset:
    """The samples of a directory that `prepare` returned.

    Raises DataError when the directory is not prepared data.
    """
    meta = read_meta(directory)
    return RandomDataset(directory, meta) if "random" in meta else StoredDataset(directory, meta)


def read_meta(directory: Path) -> dict[str, Any]:
    """What meta.json says; raises DataError when it is not there."""
    try:
        return dict(json.loads((directory / META).read_text(encoding="utf-8")))
    except FileNotFoundError as error:
        raise DataError(
            f"{directory} is not prepared data: it has no {META}. Remove what is left of it; a run makes it again."
        ) from error


def write_tokens(path: Path, arrays: Iterable[npt.NDArray[Any]], dtype: npt.DTypeLike, most: int | None = None) -> int:
    """Write a one-dimensional .npy file array by array, at most so many tokens, and return how many it has.

    numpy leaves room in the header for the first axis to grow, so the header is written again when its length is known.
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
