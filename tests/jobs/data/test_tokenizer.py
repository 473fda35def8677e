"""Tokenizers: the ids that LitGPT would make, and refusals with words."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from litgpt.tokenizer import Tokenizer as LitGPTTokenizer
from tokenizers import Tokenizer as HuggingFaceTokenizer

from jobs.data.tokenizer import (
    LEAST_BPE_VOCAB_SIZE,
    Tokenizer,
    completed_config,
    load_tokenizer,
    tokenizer_files,
    train_bpe,
)
from jobs.errors import DataError
from tests.support.tiny_data import (
    SENTENCES,
    huggingface_tokenizer,
    llama3_tokenizer,
    sentencepiece_tokenizer,
    tokenizer_config,
    write_json,
)

BOS_EOS = {"bos_token": "<s>", "eos_token": "</s>"}


def load(path: Path) -> Tokenizer:
    return load_tokenizer(tokenizer_files(path))


def with_generation_config(directory: Path) -> Path:
    write_json(directory / "generation_config.json", {"bos_token_id": 0, "eos_token_id": 1})
    return huggingface_tokenizer(directory)


VARIANTS: dict[str, Callable[[Path], Path]] = {
    "says that it adds bos": lambda d: tokenizer_config(huggingface_tokenizer(d), **BOS_EOS, add_bos_token=True),
    "says that it does not": lambda d: tokenizer_config(huggingface_tokenizer(d), **BOS_EOS, add_bos_token=False),
    "tokens as objects, of class LlamaTokenizer": lambda d: tokenizer_config(
        huggingface_tokenizer(d),
        tokenizer_class="LlamaTokenizer",
        **{key: {"content": token} for key, token in BOS_EOS.items()},
    ),
    "ids in generation_config.json": with_generation_config,
    "sentencepiece alone": sentencepiece_tokenizer,
    "sentencepiece that adds bos": lambda d: tokenizer_config(sentencepiece_tokenizer(d), add_bos_token=True),
    "both files": lambda d: tokenizer_config(huggingface_tokenizer(sentencepiece_tokenizer(d)), **BOS_EOS),
}


@pytest.fixture(scope="module", params=VARIANTS.values(), ids=list(VARIANTS))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, LitGPTTokenizer]:
    """Our tokenizer and LitGPT's, of the same directory."""
    directory = request.param(tmp_path_factory.mktemp("tokenizer"))
    return load(directory), LitGPTTokenizer(directory)


texts = st.lists(st.one_of(st.text(), st.sampled_from([" ", "\n\n", *SENTENCES]))).map("".join)


@given(text=texts, bos=st.sampled_from([None, True, False]), eos=st.booleans())
def test_ids_of_a_text_without_begin_and_end_tokens_are_those_of_litgpt(
    pair: tuple[Tokenizer, LitGPTTokenizer], text: str, bos: bool | None, eos: bool
) -> None:
    ours, litgpt = pair
    assert ours.encode([text], bos=bos, eos=eos) == [litgpt.encode(text, bos=bos, eos=eos).tolist()]


@given(many=st.lists(texts, max_size=8))
def test_many_texts_are_encoded_as_one_by_one(pair: tuple[Tokenizer, LitGPTTokenizer], many: list[str]) -> None:
    ours, _ = pair
    assert ours.encode(many) == [ids for text in many for ids in ours.encode([text])]


def test_litgpt_reads_begin_and_end_of_a_prepared_tokenizer_as_they_were_trained(tmp_path: Path) -> None:
    made = llama3_tokenizer(tmp_path / "t", "<|eot_id|>", adds="both", config=False)
    files, there = tokenizer_files(made), tmp_path / "Llama-2-copy"
    there.mkdir()
    (there / "tokenizer.json").write_bytes((made / "tokenizer.json").read_bytes())
    write_json(there / "tokenizer_config.json", completed_config(files, load(made)))
    litgpt = LitGPTTokenizer(there)
    assert (litgpt.use_bos, litgpt.bos_id, litgpt.eos_id) == (True, load(made).bos_id, load(made).eos_id)


def test_size_is_the_largest_id_and_one(pair: tuple[Tokenizer, LitGPTTokenizer]) -> None:
    ours, litgpt = pair
    count = litgpt.processor.get_vocab_size() if litgpt.backend == "huggingface" else litgpt.vocab_size
    assert ours.size == count


def test_padding_and_truncation_asked_for_by_the_file_do_not_touch_the_text(tmp_path: Path) -> None:
    directory = tokenizer_config(huggingface_tokenizer(tmp_path), **BOS_EOS)
    whole = load(directory).encode(SENTENCES)
    processor = HuggingFaceTokenizer.from_file(str(directory / "tokenizer.json"))
    processor.enable_truncation(3)
    processor.enable_padding(length=50)
    processor.save(str(directory / "tokenizer.json"))
    assert load(directory).encode(SENTENCES) == whole


def test_the_vocabulary_file_itself_can_be_given(tmp_path: Path) -> None:
    directory = tokenizer_config(huggingface_tokenizer(sentencepiece_tokenizer(tmp_path)), **BOS_EOS)
    assert list(tokenizer_files(directory)) == ["tokenizer.json", "tokenizer_config.json"]
    assert list(tokenizer_files(directory / "tokenizer.model")) == ["tokenizer.model", "tokenizer_config.json"]


def test_a_broken_generation_config_is_not_read_when_it_is_not_needed(tmp_path: Path) -> None:
    directory = tokenizer_config(huggingface_tokenizer(tmp_path), **BOS_EOS)
    (directory / "generation_config.json").write_text('{"temperature": 0.6,}')
    assert load(directory).eos_id == 1


def test_a_bpe_trained_on_text_reads_and_writes_it_in_litgpt(tmp_path: Path) -> None:
    train_bpe(SENTENCES, 300, tmp_path)
    ours, litgpt = load(tmp_path), LitGPTTokenizer(tmp_path)
    for sentence in SENTENCES:
        ids = ours.encode([sentence])[0]
        assert litgpt.encode(sentence).tolist() == ids
        assert litgpt.decode(litgpt.encode(sentence)) == sentence


def test_a_bpe_has_no_more_tokens_than_asked_for_and_all_bytes(tmp_path: Path) -> None:
    train_bpe(SENTENCES, LEAST_BPE_VOCAB_SIZE, tmp_path)
    assert load(tmp_path).size == LEAST_BPE_VOCAB_SIZE


def test_every_process_trains_the_same_bpe(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from jobs.data.tokenizer import train_bpe; "
        "from tests.support.tiny_data import SENTENCES; train_bpe(SENTENCES, 320, Path(sys.argv[1]))"
    )
    written = set()
    for number in "123":
        (tmp_path / number).mkdir()
        command = [sys.executable, "-c", program, str(tmp_path / number)]
        subprocess.run(command, check=True, env=os.environ | {"PYTHONHASHSEED": number})
        written.add((tmp_path / number / "tokenizer.json").read_bytes())
    assert len(written) == 1


def refusal(path: Path) -> str:
    with pytest.raises(DataError) as refused:
        load(path)
    return str(refused.value)


def test_a_missing_tokenizer_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path / "gone") == (
        f"data.tokenizer={tmp_path}/gone does not exist. Give a directory with tokenizer.json or tokenizer.model, or "
        "such a file. Set data.tokenizer=PATH, or data.tokenizer=null for a BPE trained on the text."
    )


def test_a_directory_without_a_vocabulary_is_refused(tmp_path: Path) -> None:
    assert f"data.tokenizer={tmp_path} is not a tokenizer. Give" in refusal(tokenizer_config(tmp_path))


def test_a_file_that_is_no_vocabulary_is_refused(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("a b c")
    assert f"data.tokenizer={tmp_path}/vocab.txt is not a tokenizer. Give" in refusal(tmp_path / "vocab.txt")


@pytest.mark.parametrize("content", ["", "{", "{}", "[1, 2]", '{"model": {"type": "Nonsense"}}'])
def test_a_corrupt_tokenizer_json_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    text = refusal(tmp_path)
    assert text.startswith(f"{tmp_path}/tokenizer.json cannot be read as a tokenizer: ")
    assert text.endswith("or set data.tokenizer=null for a BPE trained on the text.")


@pytest.mark.parametrize("content", [b"", b"version https://git-lfs.github.com/spec/v1\n", b"\x00" * 100])
def test_a_corrupt_tokenizer_model_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.model").write_bytes(content)
    assert refusal(tmp_path).startswith(f"{tmp_path}/tokenizer.model cannot be read as a tokenizer: ")


def test_a_half_copied_tokenizer_model_is_refused(tmp_path: Path) -> None:
    model = sentencepiece_tokenizer(tmp_path) / "tokenizer.model"
    model.write_bytes(model.read_bytes()[:1000])
    assert refusal(tmp_path).startswith(f"{model} cannot be read as a tokenizer: ")


def test_a_tokenizer_without_an_end_token_is_refused(tmp_path: Path) -> None:
    assert refusal(huggingface_tokenizer(tmp_path)) == (
        f"{tmp_path}/tokenizer.json has no eos_token, which ends a text. Add a tokenizer_config.json with its "
        '"eos_token" next to it; LitGPT requires it too.'
    )


def test_a_begin_token_that_is_wanted_but_unknown_is_refused(tmp_path: Path) -> None:
    directory = tokenizer_config(huggingface_tokenizer(tmp_path), eos_token="</s>", add_bos_token=True)
    assert "tokenizer.json has no bos_token, which begins a text." in refusal(directory)


def test_a_named_token_that_is_not_in_the_vocabulary_is_refused(tmp_path: Path) -> None:
    directory = tokenizer_config(huggingface_tokenizer(tmp_path), eos_token="<end>")
    assert refusal(directory) == (
        f"{tmp_path}/tokenizer.json has no token '<end>', which tokenizer_config.json next to it names as "
        '"eos_token".'
    )


@pytest.mark.parametrize("eos_token_id", [320, -1, [1, 2], "1"])
def test_an_end_id_beyond_the_vocabulary_is_refused(tmp_path: Path, eos_token_id: object) -> None:
    write_json(tmp_path / "generation_config.json", {"eos_token_id": eos_token_id})
    assert "has no eos_token" in refusal(huggingface_tokenizer(tmp_path))


@pytest.mark.parametrize(
    ("content", "says"), [("{", " is not JSON: "), (json.dumps([1]), " does not contain a JSON object")]
)
def test_a_broken_tokenizer_config_is_refused(tmp_path: Path, content: str, says: str) -> None:
    (huggingface_tokenizer(tmp_path) / "tokenizer_config.json").write_text(content)
    assert f"{tmp_path}/tokenizer_config.json{says}" in refusal(tmp_path)
