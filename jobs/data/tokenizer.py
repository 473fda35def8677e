"""Tokenizers: token ids exactly as litgpt 0.5.12 computes them (litgpt/tokenizer.py), without importing it.

tokenizer.json is read by `tokenizers`, tokenizer.model by `sentencepiece`; the rules for the begin- and end-of-
sequence tokens are LitGPT's. One difference is intended: padding and truncation of a tokenizer.json are disabled,
because they would change the text. `train_bpe` trains a tokenizer where none is given.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sentencepiece import SentencePieceProcessor
from tokenizers import Tokenizer as HuggingFaceTokenizer
from tokenizers import decoders, models, pre_tokenizers, trainers

from jobs.data.sources import reading
from jobs.errors import DataError
from jobs.output import write_file

VOCABULARIES = ("tokenizer.json", "tokenizer.model")
"""In LitGPT's order of precedence."""
CONFIG = "tokenizer_config.json"
GENERATION_CONFIG = "generation_config.json"

EOS_TOKEN = "<|endoftext|>"  # noqa: S105 - a token of text, not a secret
LEAST_BPE_VOCAB_SIZE = 256 + 1
"""All bytes and EOS_TOKEN."""


@dataclass(frozen=True)
class Tokenizer:
    """Text to token ids below `size`."""

    raw_encode: Callable[[list[str]], list[list[int]]]
    """The library's token ids of many texts."""
    size: int
    """Largest id + 1."""
    bos_id: int | None
    eos_id: int
    use_bos: bool
    """True if a text begins with bos_id by default."""

    def encode(self, texts: list[str], *, bos: bool | None = None, eos: bool = False) -> list[list[int]]:
        """Return the token ids of many texts with their begin and end tokens."""
        return [self.delimited(ids, bos=bos, eos=eos) for ids in self.raw_encode(texts)]

    def delimited(self, ids: list[int], *, bos: bool | None, eos: bool) -> list[int]:
        """Add bos_id and eos_id as LitGPT's `Tokenizer.encode` does.

        As in LitGPT, ids that already end with eos_id lose it, even with eos=True.
        """
        if bos or (bos is None and self.use_bos):
            if not ids or ids[0] != self.bos_id:
                assert self.bos_id is not None
                ids = [self.bos_id, *ids]
        elif ids and ids[0] == self.bos_id:
            ids = ids[1:]
        if eos and (not ids or ids[-1] != self.eos_id):
            return [*ids, self.eos_id]
        if ids and ids[-1] == self.eos_id:
            return ids[:-1]
        return ids


def tokenizer_files(path: Path) -> dict[str, Path]:
    """Return the files of a tokenizer by LitGPT's names, the vocabulary first.

    `path` is a directory or the vocabulary file itself; raise DataError where it contains no vocabulary.
    """
    with reading(path):
        if path.is_dir():
            vocabulary = next((path / name for name in VOCABULARIES if (path / name).is_file()), None)
        else:
            vocabulary = path if path.is_file() and path.suffix in (".json", ".model") else None
        if vocabulary is None:
            found = "is not a tokenizer" if path.exists() else "does not exist"
            raise DataError(
                f"data.tokenizer={path} {found}. Give a directory with {' or '.join(VOCABULARIES)}, or such a file. "
                "Set data.tokenizer=PATH, or data.tokenizer=null for a BPE trained on the text."
            )
        beside = {name: vocabulary.parent / name for name in (CONFIG, GENERATION_CONFIG)}
        return {f"tokenizer{vocabulary.suffix}": vocabulary} | {n: p for n, p in beside.items() if p.is_file()}


def load_tokenizer(files: dict[str, Path]) -> Tokenizer:
    """Load the tokenizer of `tokenizer_files`.

    Raise DataError where a file is corrupt or no end-of-sequence token is defined.
    """
    name, vocabulary = next(iter(files.items()))
    config = read_json(files[CONFIG]) if CONFIG in files else None
    use_bos = config is not None and begins_with_bos(config, vocabulary.parent)
    with reading(vocabulary):
        vocabulary.open("rb").close()  # sentencepiece and tokenizers hide the reason of a failed open
    if name == "tokenizer.json":
        encode, ids = load_huggingface(vocabulary)
        size = max(ids.values(), default=-1) + 1
        bos_id = token_id(config, "bos_token", ids, vocabulary)
        eos_id = token_id(config, "eos_token", ids, vocabulary)
        if (bos_id is None or eos_id is None) and GENERATION_CONFIG in files:
            generation = read_json(files[GENERATION_CONFIG])
            bos_id = generation.get("bos_token_id") if bos_id is None else bos_id
            eos_id = generation.get("eos_token_id") if eos_id is None else eos_id
    else:
        processor = load_sentencepiece(vocabulary)
        encode, size = processor.encode, processor.vocab_size()
        bos_id, eos_id = processor.bos_id(), processor.eos_id()
    bos_id, eos_id = in_vocabulary(bos_id, size), in_vocabulary(eos_id, size)
    for key, token, needed in (("bos_token", bos_id, use_bos), ("eos_token", eos_id, True)):
        if needed and token is None:
            raise DataError(
                f"{vocabulary} has no {key}, which {'begins' if key == 'bos_token' else 'ends'} a text. Add a {CONFIG} "
                f'with its "{key}" beside it; LitGPT requires it too.'
            )
    assert eos_id is not None
    return Tokenizer(encode, size, bos_id, eos_id, use_bos)


def in_vocabulary(token: Any, size: int) -> int | None:
    """Return a valid token id, else None: sentencepiece uses -1, and a generation_config.json may contain a list."""
    return token if isinstance(token, int) and 0 <= token < size else None


def load_huggingface(path: Path) -> tuple[Callable[[list[str]], list[list[int]]], dict[str, int]]:
    """Return the encoding function of a tokenizer.json, and its ids by token."""
    try:
        processor = HuggingFaceTokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises no narrower class
        raise corrupt(path, error) from error
    processor.no_padding()
    processor.no_truncation()

    def encode(texts: list[str]) -> list[list[int]]:
        return [encoding.ids for encoding in processor.encode_batch_fast(texts)]

    return encode, processor.get_vocab(with_added_tokens=True)


def load_sentencepiece(path: Path) -> SentencePieceProcessor:
    """Return the processor of a tokenizer.model."""
    try:
        return SentencePieceProcessor(model_file=str(path))
    except (OSError, RuntimeError) as error:
        raise corrupt(path, error) from error


def corrupt(path: Path, error: Exception) -> DataError:
    """Return the error for a vocabulary that its library cannot read."""
    return DataError(
        f"{path} cannot be read as a tokenizer: {error}. Copy it again from its source, or set "
        "data.tokenizer=null for a BPE trained on the text."
    )


def token_id(config: dict[str, Any] | None, key: str, ids: dict[str, int], vocabulary: Path) -> int | None:
    """Return the id of a token of tokenizer_config.json, which is a string or an object with content."""
    token = config.get(key) if config else None
    if isinstance(token, dict):
        token = token.get("content")
    if token is None:
        return None
    if not isinstance(token, str) or token not in ids:
        raise DataError(f'{vocabulary} has no token {token!r}, which {CONFIG} beside it names as "{key}".')
    return ids[token]


def begins_with_bos(config: dict[str, Any], directory: Path) -> bool:
    """Return LitGPT's `check_if_bos_token_used`: for Llama 3 and SmolLM2, tokenizer_config.json does not contain it."""
    if directory.stem.startswith(("Meta-Llama-3", "Llama-3")):
        return True
    if directory.stem.startswith("SmolLM2") and directory.name.endswith("Instruct"):
        return True
    if "add_bos_token" in config:
        return bool(config["add_bos_token"])
    return bool(config.get("tokenizer_class") == "LlamaTokenizer")


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object of a configuration file."""
    try:
        with reading(path):
            value = json.loads(path.read_bytes())
    except ValueError as error:
        raise DataError(f"{path} is not JSON: {error}.") from error
    if not isinstance(value, dict):
        raise DataError(f"{path} does not contain a JSON object.")
    return value


def train_bpe(texts: Iterable[str], vocab_size: int, directory: Path) -> dict[str, Path]:
    """Train a byte-level BPE of at most `vocab_size` tokens and write it in the files that LitGPT reads.

    The same texts give the same tokenizer. Byte-level BPE: Radford et al. 2019 (GPT-2), section 2.2.
    """
    tokenizer = HuggingFaceTokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[EOS_TOKEN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    files = {name: directory / name for name in ("tokenizer.json", CONFIG)}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": False, "eos_token": EOS_TOKEN}
    write_file(files["tokenizer.json"], tokenizer.to_str())
    write_file(files[CONFIG], json.dumps(config, indent=1) + "\n")
    return files
