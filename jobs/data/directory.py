"""Files of a directory of data: those that are trained on, and those that are left out by their names."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from jobs.data.dataset import SAMPLES
from jobs.errors import DataError
from jobs.schema import Source

RECORDS_FILE = "train.json"
"""The file of instruction records in a directory, as in LitGPT's JSON data; alone, if it exists."""
PARQUET = ".parquet"
"""Suffix of the files of a data set of the Hugging Face Hub."""
JSON_LINES = (".jsonl", ".jsonl.zst")
"""Endings of files with one document per line, as the Pile's."""
OF_TEXT: tuple[tuple[str, ...], ...] = ((".txt",), JSON_LINES)
OF_RECORDS: tuple[tuple[str, ...], ...] = ((PARQUET,), (".jsonl",), (".json",))
"""Endings of the files of a directory, by precedence: the first ones that a file to train on has."""
NO_RECORDS = frozenset(("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json", "config.json"))
"""JSON files that describe data."""
WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
HELD_OUT = re.compile(
    r"(?:test|testing|val|valid|validate|validation|dev|devel|development|eval|evaluation|holdout|heldout)"
    r"(?:s|set|data|split)?"
)
TRAIN = re.compile(r"(?:train|training)(?:s|set|data|split)?")
MOST_NAMES = 20


@dataclass(frozen=True)
class Chosen:
    """The files of a directory and below it."""

    read: list[Path]
    """In reading order."""
    left_out: list[Path]


def chosen(directory: Path, source: Source) -> Chosen:
    """Return the files of a directory that this source trains on.

    Raise DataError if all files that it could read have the name of another split.
    """
    files = files_below(directory)
    groups = OF_TEXT if source is Source.text else OF_RECORDS
    readable = [path for path in files if path.name.endswith(sum(groups, ())) and path.name not in NO_RECORDS]
    trained = [path for path in readable if not is_held_out(path.relative_to(directory))]
    if readable and not trained:
        raise DataError(
            f"{directory} has no file to train on: all are named as splits for tests or validation "
            f"({listed(names_of(readable, directory))}). Set data.path to one of the files to train on it, or to a "
            "directory with files of another name."
        )
    if source is not Source.text and directory / RECORDS_FILE in trained:
        read = [directory / RECORDS_FILE]
    else:
        # The files nearest to the top decide: docs/LICENSE.txt below the shards of a corpus is not part of it.
        depth = min((len(path.relative_to(directory).parts) for path in trained), default=0)
        top = [path for path in trained if len(path.relative_to(directory).parts) == depth]
        kind = next((group for group in groups if any(path.name.endswith(group) for path in top)), ())
        read = [path for path in trained if path.name.endswith(kind)]
    taken = set(read)
    return Chosen(read, [path for path in files if path not in taken])


def names_of(files: list[Path], directory: Path) -> list[str]:
    """Return the names of files below a directory."""
    return [path.relative_to(directory).as_posix() for path in files]


def files_below(directory: Path) -> list[Path]:
    """Return the files of a directory and of those below it by name, without hidden ones and prepared data.

    Raise the OSError of the directory itself; one below it that cannot be read, such as lost+found, has no files.
    """

    def refuse(error: OSError) -> None:
        if Path(error.filename) == directory:
            raise error

    found: list[Path] = []
    for parent, directories, names in os.walk(directory, onerror=refuse):
        directories[:] = sorted(
            name for name in directories if not name.startswith(".") and not (Path(parent) / name / SAMPLES).exists()
        )
        paths = (Path(parent) / name for name in names if not name.startswith("."))
        found += [path for path in paths if path.is_file()]
    return sorted(found)


def is_held_out(name: Path) -> bool:
    """Return True if a file, else the nearest directory that names a split, names one for tests or validation."""
    for part in reversed(name.parts):
        words = [word.lower() for word in WORD.findall(part)]
        if any(TRAIN.fullmatch(word) for word in words):
            return False
        if any(map(HELD_OUT.fullmatch, words)) or ("held" in words and "out" in words):
            return True
    return False


def listed(names: list[str]) -> str:
    """Return names on one line, with the number of those beyond MOST_NAMES."""
    more = len(names) - MOST_NAMES
    return ", ".join([*names[:MOST_NAMES], *([f"and {more:,} more"] if more > 0 else [])])
