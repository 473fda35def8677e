"""Tokenizers: token ids as litgpt 0.5.12 computes them (litgpt/tokenizer.py), without importing it.

tokenizer.json is read by `tokenizers`, tokenizer.model by `sentencepiece`. Three differences are intended. Padding and
truncation of a tokenizer.json are disabled, because they would change the text. A text begins with a begin token if the
tokenizer itself adds one, whatever the name of its directory. A text that must end has exactly one end token, also
where text or template contains it: LitGPT removes it there. `train_bpe` trains a tokenizer where none is given.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from sentencepiece import SentencePieceProcessor
from tokenizers import Tokenizer as HuggingFaceTokenizer
from tokenizers import decoders, models, pre_tokenizers, trainers

from jobs.data.sources import reading
from jobs.errors import DataError
from jobs.files import opened, parse_json, read_bytes
from jobs.output import write_file

VOCABULARIES = ("tokenizer.json", "tokenizer.model")
"""In LitGPT's order of precedence."""
CONFIG = "tokenizer_config.json"
GENERATION_CONFIG = "generation_config.json"

ENDS = ("<|eot_id|>", "<|end_of_text|>", "<|im_end|>", "<|endoftext|>", "<end_of_turn>", "<|end|>", "<|eom_id|>")
"""Tokens that end a turn or a text in the chat formats of Llama 3, Qwen, Gemma and Phi."""
EOS_TOKEN = "<|endoftext|>"  # noqa: S105 - a token of text, not a secret
LEAST_BPE_VOCAB_SIZE = 256 + 1
"""All bytes and EOS_TOKEN."""


NEAR_TOKENS = 16
"""Blank tokens beyond which a begin or end token in a text belongs to its content."""


@dataclass(frozen=True)
class Tokenizer:
    """Text to token ids below `size`."""

    raw_encode: Callable[[list[str]], list[list[int]]]
    """The token ids of many texts, without those that the library adds around a text."""
    decode: Callable[[list[int]], str]
    """The text of token ids, special tokens included."""
    size: int
    """Largest id + 1."""
    bos_id: int | None
    eos_id: int
    begin: tuple[int, ...]
    """Tokens in front of every text; empty if a text begins with its first word."""
    adds_eos: bool
    """True if the library itself adds eos_id after a text."""

    def encode(self, texts: list[str], *, bos: bool | None = None, eos: bool = False) -> list[list[int]]:
        """Return the token ids of many texts with their begin and end tokens."""
        return [self.delimited(ids, bos=bos, eos=eos) for ids in self.raw_encode(texts)]

    def delimited(self, ids: list[int], *, bos: bool | None, eos: bool) -> list[int]:
        """Return the ids of a text with at most one begin token, and with exactly one end token if `eos`.

        A begin or end token that the text itself contains there, with blanks around it, is not repeated. With bos=None
        a text has the begin token that its tokenizer adds, or its own; with bos=False it follows another text.
        """
        ids = self._without_end(ids) if eos else ids
        bare = self._without_begin(ids)
        begin: tuple[int, ...] = ()
        if bos is not False:
            own = self.bos_id is not None and (bos or (len(bare) < len(ids) and self.bos_id != self.eos_id))
            begin = self.begin or ((self.bos_id,) if own and self.bos_id is not None else ())
        return [*begin, *bare, *([self.eos_id] if eos else [])]

    def ended(self, ids: list[int]) -> list[int]:
        """Return the ids of the last part of a text with exactly one end token."""
        return [*self._without_end(ids), self.eos_id]

    def litgpt_unended(self, responses: list[list[int]]) -> int:
        """Return the number of responses, as raw ids, that LitGPT leaves without an end token: those that have one."""
        return len(responses) if self.adds_eos else sum(ids[-1:] == [self.eos_id] for ids in responses)

    def _without_begin(self, ids: list[int]) -> list[int]:
        begins = {*self.begin, self.bos_id}
        while found := [at for at, token in enumerate(ids[:NEAR_TOKENS]) if token in begins]:
            if not self._is_blank(ids[: found[0]]):
                break
            ids = ids[found[0] + 1 :]
        return ids

    def _without_end(self, ids: list[int]) -> list[int]:
        while self.eos_id in (near := ids[-NEAR_TOKENS:]):
            after = near[::-1].index(self.eos_id)
            if not self._is_blank(ids[len(ids) - after :]):
                break
            ids = ids[: len(ids) - after - 1]
        return ids

    def _is_blank(self, ids: list[int]) -> bool:
        return not ids or not self.decode(ids).strip()


def tokenizer_files(path: Path) -> dict[str, Path]:
    """Return the files of a tokenizer by LitGPT's names, the vocabulary first.

    `path` is a directory or the vocabulary file itself; raise DataError if it contains no vocabulary.
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

    Raise DataError if a file is corrupt or no end-of-sequence token is defined.
    """
    name, vocabulary = next(iter(files.items()))
    config = read_json(files[CONFIG]) if CONFIG in files else {}
    with reading(vocabulary):
        opened(vocabulary).close()  # sentencepiece and tokenizers hide the reason of a failed open
    if name == "tokenizer.json":
        library = load_huggingface(vocabulary)
        bos_id = token_id(config, "bos_token", library.ids, vocabulary)
        eos_id = token_id(config, "eos_token", library.ids, vocabulary)
        if (bos_id is None or eos_id is None) and GENERATION_CONFIG in files:
            generation = read_json(files[GENERATION_CONFIG])
            bos_id = generation.get("bos_token_id") if bos_id is None else bos_id
            eos_id = generation.get("eos_token_id") if eos_id is None else eos_id
    else:
        processor = load_sentencepiece(vocabulary)
        library = Library(processor.encode, processor.decode, processor.vocab_size(), {}, (), ())
        bos_id, eos_id = processor.bos_id(), processor.eos_id()
    bos_id, eos_id = in_vocabulary(bos_id, library.size), in_vocabulary(eos_id, library.size)
    if bos_id is None and len(library.before) == 1:
        (bos_id,) = library.before
    if eos_id is None and len(library.after) == 1:
        (eos_id,) = library.after
    begins = begins_with_bos(config, library.before)
    for key, token, needed in (("bos_token", bos_id, begins), ("eos_token", eos_id, True)):
        if needed and token is None and not (key == "bos_token" and library.before):
            raise DataError(
                f"{vocabulary} has no {key}, which {'begins' if key == 'bos_token' else 'ends'} a text. Add a {CONFIG} "
                f'with its "{key}" next to it; LitGPT requires it too.'
            )
    assert eos_id is not None
    begin = library.before or (() if bos_id is None else (bos_id,))
    return Tokenizer(
        library.encode, library.decode, library.size, bos_id, eos_id, begin if begins else (), eos_id in library.after
    )


def in_vocabulary(token: Any, size: int) -> int | None:
    """Return a valid token id, else None: sentencepiece uses -1, and a generation_config.json may contain a list."""
    return token if isinstance(token, int) and 0 <= token < size else None


class Library(NamedTuple):
    """A vocabulary as its library reads it."""

    encode: Callable[[list[str]], list[list[int]]]
    decode: Callable[[list[int]], str]
    size: int
    ids: dict[str, int]
    """Ids by token; empty for sentencepiece."""
    before: tuple[int, ...]
    """Ids that its post-processor adds in front of a text."""
    after: tuple[int, ...]
    """Ids that it adds after a text."""


def load_huggingface(path: Path) -> Library:
    """Return the functions of a tokenizer.json, and its ids by token."""
    try:
        processor = HuggingFaceTokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises no narrower class
        raise corrupt(path, error) from error
    processor.no_padding()
    processor.no_truncation()

    def encode(texts: list[str]) -> list[list[int]]:
        return [encoding.ids for encoding in processor.encode_batch_fast(texts, add_special_tokens=False)]

    def decode(ids: list[int]) -> str:
        return str(processor.decode(ids, skip_special_tokens=False))

    # A post-processor's tokens have 1 in the mask of special tokens, those of the text 0.
    added = processor.encode("a")
    mask = added.special_tokens_mask
    first, last = (mask.index(0), len(mask) - mask[::-1].index(0)) if 0 in mask else (len(mask), len(mask))
    ids = processor.get_vocab(with_added_tokens=True)
    size = max(ids.values(), default=-1) + 1
    return Library(encode, decode, size, ids, tuple(added.ids[:first]), tuple(added.ids[last:]))


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


def token_id(config: dict[str, Any], key: str, ids: dict[str, int], vocabulary: Path) -> int | None:
    """Return the id of a token of tokenizer_config.json, which is a string or an object with content."""
    token = config.get(key)
    if isinstance(token, dict):
        token = token.get("content")
    if token is None:
        return None
    if not isinstance(token, str) or token not in ids:
        raise DataError(f'{vocabulary} has no token {token!r}, which {CONFIG} next to it names as "{key}".')
    return ids[token]


def begins_with_bos(config: dict[str, Any], before: tuple[int, ...]) -> bool:
    """Return True if a text begins with a begin token.

    Its configuration decides, else the tokens that the tokenizer itself adds before a text, as Llama 3's does.
    """
    if "add_bos_token" in config:
        return bool(config["add_bos_token"])
    return bool(before) or config.get("tokenizer_class") == "LlamaTokenizer"


def completed_config(files: dict[str, Path], tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the configuration of a tokenizer.json with its begin and end; empty if it has both, or for sentencepiece.

    LitGPT, which reads an export, looks for them there, and otherwise adds a begin token by the name of the directory.
    """
    if "tokenizer.json" not in files:
        return {}
    config = read_json(files[CONFIG]) if CONFIG in files else {"tokenizer_class": "PreTrainedTokenizerFast"}
    tokens = {token: name for name, token in load_huggingface(files["tokenizer.json"]).ids.items()}
    missing: dict[str, Any] = {"add_bos_token": bool(tokenizer.begin)}
    missing |= {"bos_token": tokens[tokenizer.bos_id]} if tokenizer.bos_id is not None else {}
    missing |= {"eos_token": tokens[tokenizer.eos_id]}
    new = {key: value for key, value in missing.items() if config.get(key) is None}
    return config | new if new else {}


@dataclass(frozen=True)
class SpecialTokens:
    """Ids by which a server begins a prompt, ends an answer and pads."""

    bos_id: int | None
    ends: list[int]
    """The tokenizer's end token first."""
    pad_id: int | None


def special_tokens(files: dict[str, Path]) -> SpecialTokens:
    """Return the special tokens of a tokenizer, from its configuration, vocabulary and generation_config.json.

    Every token that ends a turn or a text in a chat format is an end: a template may have taught the model each one.
    """
    tokenizer = load_tokenizer(files)
    config = read_json(files[CONFIG]) if CONFIG in files else {}
    generation = read_json(files[GENERATION_CONFIG], strict=False) if GENERATION_CONFIG in files else {}
    name, vocabulary = next(iter(files.items()))
    if name == "tokenizer.json":
        ids = load_huggingface(vocabulary).ids
        pad_id = token_id(config, "pad_token", ids, vocabulary)
    else:
        ids, pad_id = {}, load_sentencepiece(vocabulary).pad_id()
    given = generation.get("eos_token_id")
    further = [*(given if isinstance(given, list) else [given]), *(ids[end] for end in ENDS if end in ids)]
    ends = [tokenizer.eos_id, *(token for token in further if in_vocabulary(token, tokenizer.size) is not None)]
    found = in_vocabulary(pad_id, tokenizer.size)
    padding = in_vocabulary(generation.get("pad_token_id"), tokenizer.size) if found is None else found
    return SpecialTokens(tokenizer.bos_id, list(dict.fromkeys(ends)), padding)


def read_json(path: Path, *, strict: bool = True) -> dict[str, Any]:
    """Return the JSON object of a configuration file; an empty one for what is not JSON, unless it must be."""
    try:
        with reading(path):
            value = parse_json(read_bytes(path))
    except ValueError as error:
        if not strict:
            return {}
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
