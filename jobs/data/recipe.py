"""The recipe of a data set: all that determines its samples, and the digest that names them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.data.sources import file_names, reading
from jobs.files import opened
from jobs.prompt_template import template_of
from jobs.schema import INSTRUCTIONS, TEXTS, Data, Source

FORMAT = 3
"""Part of the digest: increase it when the same input results in different samples or another meta.json."""


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
            "held_out": data.held_out_samples,
            "split": None if data.test_split is None else [data.test_split, data.split_seed],
        }
        if data.source in TEXTS:
            facts["documents"] = True  # earlier versions did not write where they begin
        if data.source is Source.random:
            facts |= {"vocab_size": self.vocab_size, "seed": self.seed}
        else:
            facts |= {
                "name": Path(data.path).name if data.path else None,
                "names": file_names(data).get("read", []),
                "files": [sha256(path) for path in self.files],
                "tokenizer": {name: sha256(path) for name, path in self.tokenizer_files.items()},
                "bpe_vocab_size": None if self.tokenizer_files else data.bpe_vocab_size,
                "prompt": template_of(data).texts() if data.source in INSTRUCTIONS else None,
                "shots": data.shots,
                "mask_prompt": data.mask_prompt,
                "too_long": data.too_long.name,
            }
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def sha256(path: Path) -> str:
    """Return the digest of a file's bytes."""
    with reading(path), opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
