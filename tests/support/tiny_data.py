"""Small data for tests: a `Data` config, texts of our own, and tokenizers trained on them in milliseconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sentencepiece import SentencePieceTrainer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from jobs.schema import Data, Source

SENTENCES = [
    "A job waits in the queue until the nodes it asked for are free.",
    "The first step is slow, the second is faster, and from the third on they look alike.",
    "Gradients are summed over all ranks; nobody moves before the slowest has spoken.",
    "Seven kettles whistled while the cat measured the kitchen in whiskers.",
    "Ein Satz auf Deutsch, mit Umlauten: äöü, und einer in 日本語.",
] * 4

ALPACA: list[dict[str, Any]] = [
    {"instruction": "Name a colour.", "input": "", "output": "Green."},
    {"instruction": "Add the numbers.", "input": "2 and 3", "output": "5"},
    {"instruction": "Say nothing.", "output": ""},
    {"instruction": "Tell of the queue.", "input": None, "output": SENTENCES[0]},
]


def data_config(cache: Path, source: Source, **values: Any) -> Data:
    """A `Data` whose cache is below a test's own directory."""
    fields: dict[str, Any] = {"name": "test", "source": source, "path": None, "cache_dir": str(cache)}
    return Data(**(fields | values))


def write_json(path: Path, value: Any) -> Path:
    """Write a JSON file, making its directory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def huggingface_tokenizer(directory: Path, *, adds_bos_and_eos: bool = False) -> Path:
    """A directory with a tokenizer.json of 320 tokens, <s> and </s> among them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    if adds_bos_and_eos:
        special_tokens = [("<s>", 0), ("</s>", 1)]
        tokenizer.post_processor = processors.TemplateProcessing("<s> $A </s>", special_tokens=special_tokens)
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


def llama3_tokenizer(directory: Path, eos: str, *, adds: str = "", config: bool = True) -> Path:
    """A byte-level tokenizer with Llama 3's special tokens, whose post-processor adds bos, eos or both."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={character: i for i, character in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"]
    tokenizer.add_special_tokens(names)
    if adds:
        around = {"bos": f"{names[0]} $A", "eos": f"$A {eos}", "both": f"{names[0]} $A {eos}"}[adds]
        special_tokens = [(name, tokenizer.token_to_id(name)) for name in names]
        tokenizer.post_processor = processors.TemplateProcessing(around, special_tokens=special_tokens)
    directory.mkdir(parents=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    if config:
        tokenizer_config(directory, bos_token=names[0], eos_token=eos)
    return directory


def sentencepiece_tokenizer(directory: Path) -> Path:
    """A directory with a tokenizer.model of 400 tokens, bytes as fallback, as Llama 2's is."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "tokenizer.model").open("wb") as file:
        SentencePieceTrainer.train(
            sentence_iterator=iter(SENTENCES),
            model_writer=file,
            vocab_size=400,
            model_type="bpe",
            byte_fallback=True,
            hard_vocab_limit=False,
            minloglevel=2,
        )
    return directory


def tokenizer_config(directory: Path, **values: Any) -> Path:
    """Put a tokenizer_config.json into a tokenizer's directory."""
    write_json(directory / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"} | values)
    return directory
