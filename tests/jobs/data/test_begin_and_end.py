"""One begin token and one end token, whatever tokenizer, template and text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer as HuggingFaceTokenizer

from jobs.data import open_dataset, prepare
from jobs.data.tokenizer import Tokenizer, load_tokenizer, special_tokens, tokenizer_files
from jobs.errors import DataError
from jobs.prompt_template import fitting
from jobs.schema import Data, Source
from tests.support.tiny_data import data_config, llama3_tokenizer, sentencepiece_tokenizer, tokenizer_config, write_json


def load(path: Path) -> Tokenizer:
    return load_tokenizer(tokenizer_files(path))


END = {"eot": "<|eot_id|>", "text": "<|end_of_text|>"}


def ends(ids: list[int], eos: int, blank: set[int]) -> int:
    """Return the number of end tokens after the last token that is neither blank nor an end."""
    count = 0
    for token in reversed(ids):
        if token != eos and token not in blank:
            break
        count += token == eos
    return count


WRITTEN = [
    "yes",
    "",
    "yes{e}",
    "yes{e}{e}",
    "yes{e}\n",
    "yes {e} \n\n",
    "\n{e}\n{e}\n",
    "a{e}b",
    "{e}yes",
    "### End",
    "{b}yes{e}",
]


@pytest.mark.parametrize("name", ["Llama-3.2-tiny-Instruct", "checkpoint", "SmolLM2-Instruct", "3f1c"])
@pytest.mark.parametrize("eos", END.values(), ids=list(END))
@pytest.mark.parametrize("adds", ["", "bos", "eos", "both"])
def test_a_response_has_one_end_and_a_prompt_one_begin_whatever_the_tokenizer_and_the_template(
    tmp_path: Path, name: str, eos: str, adds: str
) -> None:
    ours = load(llama3_tokenizer(tmp_path / name, eos, adds=adds))
    blank = {token for text in (" ", "\n", "\n\n") for token in ours.raw_encode([text])[0]}
    for text in WRITTEN:
        (ids,) = ours.encode([text.format(e=eos, b="<|begin_of_text|>")], bos=False, eos=True)
        assert (ids[-1], ends(ids, ours.eos_id, blank), ours.bos_id in ids) == (ours.eos_id, 1, False), text
        (document,) = ours.encode([text.format(e=eos, b="<|begin_of_text|>")], eos=True)
        begins = int(adds in {"bos", "both"} or "{b}" in text)
        assert (document.count(ours.bos_id or 0), ends(document, ours.eos_id, blank)) == (begins, 1), text
    (prompt,) = ours.encode([f"<|start_header_id|>user<|end_header_id|>\n\nhi{eos}"])
    assert prompt[-1] == ours.eos_id, "a token that the template wrote stays"
    assert prompt.count(ours.eos_id) == 1


@pytest.mark.parametrize("adds", ["bos", "both"])
def test_without_a_configuration_begin_and_end_are_those_that_the_tokenizer_adds(tmp_path: Path, adds: str) -> None:
    made = llama3_tokenizer(tmp_path / "t", END["eot"], adds=adds, config=False)
    if adds == "bos":
        with pytest.raises(DataError, match="has no eos_token, which ends a text"):
            load(made)
    else:
        (ids,) = load(made).encode(["yes"], eos=True)
        tokens = HuggingFaceTokenizer.from_file(str(made / "tokenizer.json"))
        assert [tokens.id_to_token(i) for i in (ids[0], ids[-1])] == ["<|begin_of_text|>", END["eot"]]


def test_a_tokenizer_whose_begin_is_its_end_has_one_of_each(tmp_path: Path) -> None:
    made = llama3_tokenizer(tmp_path / "t", END["text"])
    tokenizer_config(made, bos_token=END["text"], eos_token=END["text"])
    for text in ("yes", f"{END['text']}yes", f"yes{END['text']}"):
        (ids,) = load(made).encode([text], eos=True)
        assert ids == [*load(made).raw_encode(["yes"])[0], load(made).eos_id]


# --- data sets ---------------------------------------------------------------------------------------------------

OWN = {
    "ends": '"{response}<|eot_id|>"',
    "ends with a line": "|\n  {response}<|eot_id|>",
    "ends twice": '"{response}<|eot_id|><|end_of_text|>"',
    "does not end": '"{response}"',
}


def tokens_of(data: Data) -> list[list[int]]:
    dataset = open_dataset(prepare(data, sequence_length=400, vocab_size=512, seed=1))
    samples = (dataset.sample(i) for i in range(len(dataset)))
    return [np.append(inputs, targets[-1]).tolist() for inputs, targets in samples]


@pytest.mark.parametrize("prompt", [*fitting(Source.alpaca), *OWN])
@pytest.mark.parametrize("eos", END.values(), ids=list(END))
def test_every_sample_of_instruction_data_ends_once(tmp_path: Path, prompt: str, eos: str) -> None:
    made = llama3_tokenizer(tmp_path / "t", eos, adds="bos")
    outputs = ["yes", f"yes{eos}", f"yes\n{eos}\n"]
    path = write_json(tmp_path / "a.json", [{"instruction": "Is it?", "output": output} for output in outputs])
    if prompt in OWN:
        template = tmp_path / "own.yaml"
        template.write_text(f'prompt: "<|begin_of_text|>{{instruction}}"\nresponse: {OWN[prompt]}\n')
        prompt = str(template)
    data = data_config(tmp_path / "c", Source.alpaca, path=str(path), tokenizer=str(made), prompt=prompt)
    ours = load(made)
    blank = {token for text in (" ", "\n") for token in ours.raw_encode([text])[0]}
    for tokens in tokens_of(data):
        assert (tokens[-1], ends(tokens, ours.eos_id, blank)) == (ours.eos_id, 1)
        assert (tokens[0], tokens.count(tokens[0])) == (ours.bos_id, 1)


def test_a_text_document_that_ends_with_its_end_token_has_one(tmp_path: Path) -> None:
    made = llama3_tokenizer(tmp_path / "t", END["text"], adds="both")
    (tmp_path / "text").mkdir()
    for number, text in enumerate(
        ["a" * 300, f"b{END['text']}", f"c{END['text']}\n", f"<|begin_of_text|>d{END['text']}\n\n"]
    ):
        (tmp_path / f"text/{number}.txt").write_text(text)
    data = data_config(tmp_path / "c", Source.text, path=str(tmp_path / "text"), tokenizer=str(made))
    dataset = open_dataset(prepare(data, sequence_length=310, vocab_size=512, seed=1))
    inputs, targets = dataset.sample(0)
    text = load(made).decode([*inputs.tolist(), int(targets[-1])])
    assert text == "".join(f"<|begin_of_text|>{each}<|end_of_text|>" for each in ("a" * 300, "b", "c", "d"))


def test_a_tokenizer_model_of_sentencepiece_ends_once(tmp_path: Path) -> None:
    ours = load(tokenizer_config(sentencepiece_tokenizer(tmp_path / "s"), add_bos_token=True))
    for text in ("yes", "yes</s>", ""):
        (ids,) = ours.encode([text], eos=True)
        assert (ids.count(ours.eos_id), ids[-1], ids.count(ours.bos_id or 0)) == (1, ours.eos_id, 1)


@pytest.mark.parametrize(
    ("eos", "generation", "config", "expected"),
    [
        ("<|eot_id|>", {}, {}, ["<|eot_id|>", "<|end_of_text|>"]),
        ("<|end_of_text|>", {}, {"pad_token": "<|start_header_id|>"}, ["<|end_of_text|>", "<|eot_id|>"]),
        (
            "<|eot_id|>",
            {"eos_token_id": [3, "x", -1, 9999], "pad_token_id": 4},
            {},
            ["<|eot_id|>", 3, "<|end_of_text|>"],
        ),
        ("<|eot_id|>", {"eos_token_id": 256}, {}, ["<|eot_id|>", 256, "<|end_of_text|>"]),
    ],
)
def test_the_ends_of_a_tokenizer_are_all_that_a_template_may_have_taught(
    tmp_path: Path, eos: str, generation: dict[str, object], config: dict[str, str], expected: list[str | int]
) -> None:
    made = llama3_tokenizer(tmp_path / "t", eos)
    tokenizer_config(made, bos_token="<|begin_of_text|>", eos_token=eos, **config)
    if generation:
        write_json(made / "generation_config.json", generation)
    found = special_tokens(tokenizer_files(made))
    ids = HuggingFaceTokenizer.from_file(str(made / "tokenizer.json")).get_vocab()
    wanted = list(dict.fromkeys(ids[token] if isinstance(token, str) else token for token in expected))
    assert (found.bos_id, found.ends) == (ids["<|begin_of_text|>"], wanted)
    assert found.pad_id == (ids["<|start_header_id|>"] if config else generation.get("pad_token_id"))
