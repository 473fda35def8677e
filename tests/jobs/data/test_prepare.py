"""Preparation: the samples of every source, the cache, and refusals with words."""

from __future__ import annotations

import hashlib
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from filelock import FileLock
from hypothesis import given
from hypothesis import strategies as st
from litgpt.data.base import SFTDataset
from litgpt.prompts import Alpaca
from litgpt.tokenizer import Tokenizer as LitGPTTokenizer

from jobs.data import Dataset, open_dataset
from jobs.data import dataset as data_set
from jobs.data import prepare as prepare_data
from jobs.data.dataset import IGNORED
from jobs.errors import DataError
from jobs.schema import Data, Source, TooLong
from tests.support.tiny_data import (
    ALPACA,
    SENTENCES,
    data_config,
    huggingface_tokenizer,
    sentencepiece_tokenizer,
    tokenizer_config,
    write_json,
)

prepare_module = sys.modules[prepare_data.__module__]
BOS_EOS = {"bos_token": "<s>", "eos_token": "</s>"}
VOCAB_SIZE = 512


def prepare(data: Data, *, sequence_length: int = 8, vocab_size: int = VOCAB_SIZE, seed: int = 1) -> Path:
    return prepare_data(data, sequence_length=sequence_length, vocab_size=vocab_size, seed=seed)


def refusal(data: Data, **values: Any) -> str:
    with pytest.raises(DataError) as refused:
        prepare(data, **values)
    return str(refused.value)


def text_config(tmp_path: Path, text: str = " ".join(SENTENCES), **values: Any) -> Data:
    """Plain text with a BPE trained on it."""
    path = tmp_path / "some.txt"
    if not path.exists():
        path.write_text(text, encoding="utf-8")
    return data_config(tmp_path / "cache", Source.text, **({"path": str(path), "bpe_vocab_size": 300} | values))


def alpaca_config(tmp_path: Path, rows: Any = ALPACA, **values: Any) -> Data:
    """Alpaca records with a BPE trained on them."""
    path = write_json(tmp_path / "alpaca.json", rows)
    return data_config(tmp_path / "cache", Source.alpaca, **({"path": str(path), "bpe_vocab_size": 300} | values))


def samples_of(dataset: Dataset) -> list[tuple[list[int], list[int]]]:
    pairs = (dataset.sample(i) for i in range(len(dataset)))
    return [(inputs.tolist(), targets.tolist()) for inputs, targets in pairs]


def visible(cache: Path) -> list[str]:
    """The names that a reader of the cache could take for samples."""
    return [path.name for path in cache.iterdir() if not path.name.startswith(".")] if cache.is_dir() else []


# Text ---------------------------------------------------------------------------------------------------------


def write_tokenizer(kind: str, directory: Path) -> Path:
    if kind == "sentencepiece":
        return tokenizer_config(sentencepiece_tokenizer(directory), add_bos_token=True)
    return tokenizer_config(huggingface_tokenizer(directory), **BOS_EOS, add_bos_token=False)


@pytest.fixture(scope="module", params=["huggingface", "sentencepiece"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(request.param, tmp_path_factory.mktemp("tokenizer"))


@given(documents=st.lists(st.text(min_size=1), min_size=1, max_size=4), sequence_length=st.integers(1, 12))
def test_windows_give_every_token_but_the_first_as_a_label_once(
    documents: list[str], sequence_length: int, tokenizer: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    where = tmp_path_factory.mktemp("text")
    for number, document in enumerate([*documents, *SENTENCES]):
        (where / f"{number:03}.txt").write_bytes(document.encode())
    litgpt = LitGPTTokenizer(tokenizer)
    stream = [token for text in (*documents, *SENTENCES) for token in litgpt.encode(text, eos=True).tolist()]

    data = data_config(where / "cache", Source.text, path=str(where), tokenizer=str(tokenizer))
    dataset = open_dataset(prepare(data, sequence_length=sequence_length))
    windows = (len(stream) - 1) // sequence_length
    inputs = [token for sample in samples_of(dataset) for token in sample[0]]
    targets = [token for sample in samples_of(dataset) for token in sample[1]]
    assert inputs == stream[: windows * sequence_length]
    assert targets == stream[1 : windows * sequence_length + 1]
    assert dataset.lengths.tolist() == dataset.label_counts.tolist() == [sequence_length] * windows


def test_a_long_document_in_pieces_has_one_begin_and_one_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.data.sources.PIECE_BYTES", 30)
    directory = tokenizer_config(huggingface_tokenizer(tmp_path / "tok"), **BOS_EOS, add_bos_token=True)
    text = "\n".join(SENTENCES)
    dataset = open_dataset(prepare(text_config(tmp_path, text, tokenizer=str(directory)), sequence_length=1))
    tokens = [dataset.sample(0)[0].item(), *(dataset.sample(i)[1].item() for i in range(len(dataset)))]
    assert (tokens[0], tokens[-1]) == (0, 1)
    assert not {0, 1} & set(tokens[1:-1])
    assert LitGPTTokenizer(directory).processor.decode(tokens) == text


def test_max_samples_takes_the_first_windows(tmp_path: Path) -> None:
    whole = samples_of(open_dataset(prepare(text_config(tmp_path))))
    assert samples_of(open_dataset(prepare(text_config(tmp_path, max_samples=3)))) == whole[:3]


def test_text_shorter_than_a_sample_is_refused(tmp_path: Path) -> None:
    text = refusal(text_config(tmp_path, "ab"), sequence_length=4)
    assert text == (
        f"{tmp_path}/some.txt has 2 tokens, and one sample of job.sequence_length=4 needs 5. Set a smaller "
        "job.sequence_length, or give more text."
    )
    assert visible(tmp_path / "cache") == []


def test_text_is_described_in_one_sentence(tmp_path: Path) -> None:
    dataset = open_dataset(prepare(text_config(tmp_path, max_samples=2)))
    assert dataset.description == ("Text of some.txt: 2 samples, 16 tokens (byte-level BPE trained on it, 300 tokens).")


def test_the_standard_library_is_there_offline(tmp_path: Path) -> None:
    directory = prepare(data_config(tmp_path, Source.stdlib), sequence_length=512, vocab_size=2048)
    dataset = open_dataset(directory)
    text = LitGPTTokenizer(directory).processor.decode(dataset.sample(0)[0].tolist())
    assert '"""Record of phased-in incompatible language changes.' in text  # the head of __future__.py
    assert dataset.description.startswith("Python standard library: ")
    assert int(max(dataset.sample(i)[0].max() for i in range(len(dataset)))) < 2048


# Instructions -------------------------------------------------------------------------------------------------

rows_strategy = st.lists(
    st.fixed_dictionaries(
        {"instruction": st.text(), "output": st.one_of(st.text(), st.sampled_from(SENTENCES))},
        optional={"input": st.text()},
    ),
    min_size=1,
    max_size=5,
)


@given(rows=rows_strategy, mask_prompt=st.booleans(), sequence_length=st.integers(2, 400))
def test_alpaca_samples_are_those_of_litgpt(
    rows: list[dict[str, str]],
    mask_prompt: bool,
    sequence_length: int,
    tokenizer: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    where = tmp_path_factory.mktemp("alpaca")
    data = alpaca_config(
        where, rows, tokenizer=str(tokenizer), mask_prompt=mask_prompt, too_long=TooLong.truncate, max_samples=4
    )
    dataset = open_dataset(prepare(data, sequence_length=sequence_length))
    litgpt = SFTDataset(rows[:4], LitGPTTokenizer(tokenizer), Alpaca(), sequence_length, mask_prompt, IGNORED)
    assert len(dataset) == len(litgpt)
    for ours, theirs in zip(samples_of(dataset), (litgpt[i] for i in range(len(litgpt))), strict=True):
        assert ours == (theirs["input_ids"][:-1].tolist(), theirs["labels"][1:].tolist())
    assert dataset.lengths.tolist() == [len(inputs) for inputs, _ in samples_of(dataset)]
    assert dataset.label_counts.tolist() == [
        sum(target != IGNORED for target in targets) for _, targets in samples_of(dataset)
    ]


def test_samples_of_one_encoding_call_and_of_several_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = alpaca_config(tmp_path, mask_prompt=True)
    at_once = samples_of(open_dataset(prepare(data, sequence_length=512)))
    monkeypatch.setattr("jobs.data.tokenized.RECORDS_AT_ONCE", 3)
    data.cache_dir += "-other"
    assert samples_of(open_dataset(prepare(data, sequence_length=512))) == at_once


def test_pubmedqa_takes_loss_on_answer_and_decision_alone(tmp_path: Path) -> None:
    row = {"QUESTION": "Do they?", "CONTEXTS": ["Some."], "LONG_ANSWER": "They do.", "final_decision": "yes"}
    path = write_json(tmp_path / "pqal.json", {"1": row, "2": row})
    data = data_config(tmp_path, Source.pubmedqa, path=str(path), bpe_vocab_size=300, mask_prompt=True)
    directory = prepare(data, sequence_length=512)
    dataset = open_dataset(directory)
    labels = [token for token in dataset.sample(1)[1].tolist() if token != IGNORED]
    litgpt = LitGPTTokenizer(directory)
    assert litgpt.processor.decode(labels, skip_special_tokens=False) == "They do.\n\nDecision: yes<|endoftext|>"
    assert dataset.description.startswith("PubMedQA questions of pqal.json: 2 samples, ")


def test_docstrings_are_there_offline_and_take_loss_on_the_answer_alone_where_prompts_are_masked(
    tmp_path: Path,
) -> None:
    config = data_config(tmp_path, Source.docstrings, max_samples=8, mask_prompt=True, too_long=TooLong.truncate)
    directory = prepare(config, sequence_length=128, vocab_size=2048)
    dataset = open_dataset(directory)
    labels = [token for token in dataset.sample(1)[1].tolist() if token != IGNORED]
    text = LitGPTTokenizer(directory).processor.decode(labels, skip_special_tokens=False)
    assert text.startswith("Return first release in which this feature was recognized.")
    assert text.endswith("<|endoftext|>")
    assert dataset.description.startswith("Docstrings of the Python standard library: 8 samples, ")


def test_a_record_that_is_too_long_is_refused_with_what_to_type(tmp_path: Path) -> None:
    # A byte-level BPE of 257 tokens has no merges: a token is a byte, and one more ends the response.
    rows = [{"instruction": "short", "output": "o" * n} for n in (1, 30, 2, 50, 40)]
    data = alpaca_config(tmp_path, rows, bpe_vocab_size=257)
    sizes = [len(Alpaca().apply(prompt="short")) + n + 1 for n in (30, 50)]
    assert refusal(data, sequence_length=sizes[0] - 1) == (
        f'{tmp_path}/alpaca.json: record 2 ("short") has {sizes[0]} tokens with its prompt, and job.sequence_length is '
        f"{sizes[0] - 1}; 2 more are too long, the longest with {sizes[1]}. Set job.sequence_length={sizes[1]} to "
        "keep all complete, or data.too_long=truncate to truncate them as LitGPT does."
    )
    assert f'record 4 ("short") has {sizes[1]} tokens with its prompt, and job.sequence_length is {sizes[1] - 1}. ' in (
        refusal(data, sequence_length=sizes[1] - 1)
    )
    assert open_dataset(prepare(data, sequence_length=sizes[1])).lengths.max() == sizes[1] - 1


def test_a_record_beyond_max_samples_may_be_too_long(tmp_path: Path) -> None:
    rows = [{"instruction": "short", "output": "o" * n} for n in (1, 500)]
    assert len(open_dataset(prepare(alpaca_config(tmp_path, rows, max_samples=1), sequence_length=200))) == 1


# Random -------------------------------------------------------------------------------------------------------


@given(vocab_size=st.integers(1, 200_000), seed=st.integers(0, 2**63), index=st.integers(0, 4095))
def test_random_tokens_are_full_samples_below_the_vocabulary_and_repeat(
    vocab_size: int, seed: int, index: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = data_config(tmp_path_factory.getbasetemp() / "random", Source.random)
    directory = prepare(data, sequence_length=64, vocab_size=vocab_size, seed=seed)
    inputs, targets = open_dataset(directory).sample(index)
    assert inputs.shape == targets.shape == (64,)
    assert inputs[1:].tolist() == targets[:-1].tolist()
    assert 0 <= min(inputs.min(), targets.min()) <= max(inputs.max(), targets.max()) < vocab_size
    again, _ = open_dataset(directory).sample(index)
    assert np.array_equal(inputs, again)


def test_random_samples_are_uniform_and_differ(tmp_path: Path) -> None:
    dataset = open_dataset(prepare(data_config(tmp_path, Source.random), sequence_length=100, vocab_size=10))
    drawn = np.array([dataset.sample(i)[0] for i in range(1000)])
    assert len(np.unique(drawn, axis=0)) == 1000
    counts = np.bincount(drawn.ravel(), minlength=10)
    assert abs(counts - 10_000).max() < 500  # over five standard deviations of a binomial


def test_another_seed_or_vocabulary_gives_other_random_samples(tmp_path: Path) -> None:
    data = data_config(tmp_path, Source.random)
    directories = {prepare(data), prepare(data, seed=2), prepare(data, vocab_size=7), prepare(data, sequence_length=9)}
    assert len({tuple(open_dataset(directory).sample(0)[0].tolist()) for directory in directories}) == 4


def test_random_samples_are_as_many_as_asked_for_and_not_stored(tmp_path: Path) -> None:
    directory = prepare(data_config(tmp_path, Source.random, max_samples=7))
    assert len(open_dataset(directory)) == 7
    assert [path.name for path in directory.iterdir()] == ["meta.json"]
    assert len(open_dataset(prepare(data_config(tmp_path, Source.random)))) == 4096


def test_random_is_described_as_meaningless(tmp_path: Path) -> None:
    dataset = open_dataset(prepare(data_config(tmp_path, Source.random, max_samples=1000)))
    assert dataset.description == "Random tokens, whose loss means nothing: 1,000 samples, 8,000 tokens."
    assert dataset.tokenizer_files == []


# Tokenizer ----------------------------------------------------------------------------------------------------


def test_the_tokenizer_lies_beside_the_samples_as_litgpt_reads_it(tmp_path: Path) -> None:
    source = tokenizer_config(sentencepiece_tokenizer(tmp_path / "tok"), add_bos_token=True)
    dataset = open_dataset(prepare(text_config(tmp_path, tokenizer=str(source))))
    assert [path.name for path in dataset.tokenizer_files] == ["tokenizer.model", "tokenizer_config.json"]
    assert {path.parent for path in dataset.tokenizer_files} == {dataset.directory}
    copy = LitGPTTokenizer(dataset.directory)
    assert copy.encode(SENTENCES[0]).tolist() == LitGPTTokenizer(source).encode(SENTENCES[0]).tolist()


def test_a_tokenizer_larger_than_the_model_is_refused(tmp_path: Path) -> None:
    directory = tokenizer_config(huggingface_tokenizer(tmp_path / "tok"), **BOS_EOS)
    data = text_config(tmp_path, tokenizer=str(directory))
    text = (
        f"data.tokenizer={directory} has 320 tokens, more than model.vocab_size=319. Set "
        "model.vocab_size=320, give a smaller tokenizer, or set data.tokenizer=null for a BPE trained on the text."
    )
    assert refusal(data, vocab_size=319) == text
    assert visible(tmp_path / "cache") == [], "refused before encoding"
    prepare(data, vocab_size=320)
    assert refusal(data, vocab_size=319) == text, "the cache knows the tokenizer's size"


def test_a_bpe_larger_than_the_model_is_refused(tmp_path: Path) -> None:
    assert refusal(text_config(tmp_path), vocab_size=299) == (
        "data.bpe_vocab_size=300 is larger than model.vocab_size=299. Set data.bpe_vocab_size=299 or less, or a "
        "larger model.vocab_size."
    )


def test_a_bpe_smaller_than_all_bytes_is_refused(tmp_path: Path) -> None:
    assert refusal(text_config(tmp_path, bpe_vocab_size=256)) == (
        "data.bpe_vocab_size=256 is too small: all bytes and an end-of-text token are 257. Set data.bpe_vocab_size="
        "257 or more."
    )


# Cache --------------------------------------------------------------------------------------------------------


def digest_of(directory: Path) -> str:
    """Names, times and bytes of all files."""
    facts = [(path.name, path.stat().st_mtime_ns, path.read_bytes()) for path in sorted(directory.iterdir())]
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def test_a_second_call_finds_the_samples_and_writes_nothing(tmp_path: Path) -> None:
    data = alpaca_config(tmp_path)
    directory = prepare(data, sequence_length=512)
    before = digest_of(directory)
    assert prepare(data, sequence_length=512) == directory
    assert digest_of(directory) == before


def test_a_full_disk_still_serves_what_it_has(tmp_path: Path) -> None:
    data = text_config(tmp_path)
    directory = prepare(data)
    with disk_with_room_for(0):
        assert prepare(data) == directory


CHANGES: dict[str, Callable[[Path, Data], Any]] = {
    "text of the same size and time": lambda path, _: path.write_text(path.read_text().replace("Green", "Brown")),
    "max_samples": lambda _, data: setattr(data, "max_samples", 2),
    "mask_prompt": lambda _, data: setattr(data, "mask_prompt", True),
    "too_long": lambda _, data: setattr(data, "too_long", TooLong.truncate),
    "bpe_vocab_size": lambda _, data: setattr(data, "bpe_vocab_size", 290),
    "tokenizer_config.json": lambda path, _: tokenizer_config(path.parent / "tok", **BOS_EOS, add_bos_token=True),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
def test_what_decides_the_samples_decides_the_directory(
    tmp_path: Path, change: Callable[[Path, Data], Any], request: pytest.FixtureRequest
) -> None:
    data = alpaca_config(tmp_path)
    if "tokenizer" in request.node.callspec.id:
        data.tokenizer = str(tokenizer_config(huggingface_tokenizer(tmp_path / "tok"), **BOS_EOS))
    before = prepare(data, sequence_length=512)
    path = Path(str(data.path))
    times = (path.stat().st_atime_ns, path.stat().st_mtime_ns)
    change(path, data)
    os.utime(path, ns=times)
    assert prepare(data, sequence_length=512) != before


def test_where_a_file_lies_and_what_the_config_is_called_decide_nothing(tmp_path: Path) -> None:
    data = text_config(tmp_path)
    before = prepare(data)
    (tmp_path / "elsewhere").mkdir()
    data.path = str(Path(str(data.path)).rename(tmp_path / "elsewhere" / "some.txt"))
    data.name = "another"
    assert prepare(data, seed=2) == before


PROGRAM = """
import os, signal, sys
from pathlib import Path
import numpy as np
from jobs.data import prepare
from jobs.schema import Data, Source

def killed(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)

if "killed" in sys.argv:
    np.save = killed  # tokens.npy is written, samples.npy is not
data = Data(name="test", source=Source.text, path=sys.argv[1], cache_dir=sys.argv[2], bpe_vocab_size=300)
print(prepare(data, sequence_length=8, vocab_size=512, seed=1))
"""
PREPARE = (sys.executable, "-c", PROGRAM)


def test_many_processes_at_once_agree_on_one_directory(tmp_path: Path) -> None:
    data = text_config(tmp_path)
    ranks = [subprocess.Popen([*PREPARE, str(data.path), data.cache_dir], stdout=subprocess.PIPE) for _ in range(4)]
    directories = {Path(rank.communicate()[0].decode().strip()) for rank in ranks}
    assert [rank.returncode for rank in ranks] == [0] * 4
    (directory,) = directories
    assert visible(tmp_path / "cache") == [directory.name]
    alone = prepare(text_config(tmp_path, cache_dir=str(tmp_path / "alone")))
    assert samples_of(open_dataset(directory)) == samples_of(open_dataset(alone))


def test_a_lock_that_is_never_given_back_does_not_stop_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare_module, "LOCK_WAIT_S", 0.2)
    data = text_config(tmp_path)
    name = prepare(text_config(tmp_path, cache_dir=str(tmp_path / "other"))).name
    (tmp_path / "cache").mkdir()
    with FileLock(tmp_path / "cache" / f".{name}.lock"):
        assert visible(tmp_path / "cache") == []
        assert len(open_dataset(prepare(data))) > 0


def test_a_lock_that_cannot_be_taken_does_not_stop_a_run(tmp_path: Path) -> None:
    data = text_config(tmp_path)
    name = prepare(text_config(tmp_path, cache_dir=str(tmp_path / "other"))).name
    (tmp_path / "cache" / f".{name}.lock").mkdir(parents=True)  # cannot be opened, even by root
    assert len(open_dataset(prepare(data))) > 0


def test_two_writers_without_a_lock_leave_one_whole_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = text_config(tmp_path)
    write_samples = prepare_module.write_samples

    def overtaken(recipe: Any, directory: Path) -> Any:
        meta = write_samples(recipe, directory)
        monkeypatch.setattr(prepare_module, "write_samples", write_samples)
        prepare_module.make(recipe, tmp_path / "cache" / recipe.digest())  # another rank is done first
        return meta

    monkeypatch.setattr(prepare_module, "write_samples", overtaken)
    directory = prepare(data)
    assert visible(tmp_path / "cache") == [directory.name]
    assert len(open_dataset(directory)) > 0


def test_a_process_killed_while_writing_harms_nobody(tmp_path: Path) -> None:
    data = text_config(tmp_path)
    done = subprocess.run([*PREPARE, str(data.path), data.cache_dir, "killed"], check=False)
    assert done.returncode == -signal.SIGKILL
    assert visible(tmp_path / "cache") == []
    directory = prepare(data)
    assert visible(tmp_path / "cache") == [directory.name]
    assert len(open_dataset(directory)) > 0


@pytest.mark.parametrize("place", ["file/below", "/proc/slurmscale"])
def test_a_cache_that_cannot_be_made_is_refused(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    cache = tmp_path / place  # an absolute place stays itself
    text = refusal(text_config(tmp_path, cache_dir=str(cache)))
    assert text.startswith(f"data.cache_dir={cache} cannot be written: ")
    assert text.endswith(
        ". No incomplete file was left. Set data.cache_dir=PATH to a directory with free space that all nodes share."
    )


@contextmanager
def disk_with_room_for(size: int) -> Iterator[None]:
    """No file of this process can grow beyond `size` bytes; the system reports that as it reports a quota."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("room", [0, 1000, 6000], ids=["for nothing", "not for a tokenizer", "not for samples.npy"])
def test_a_full_disk_is_refused_and_leaves_nothing(tmp_path: Path, room: int) -> None:
    data = text_config(tmp_path)
    with disk_with_room_for(room):
        text = refusal(data, sequence_length=1)
    assert text.startswith(f"data.cache_dir={tmp_path}/cache cannot be written: ")
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".lock"]
    assert len(open_dataset(prepare(data, sequence_length=1))) > 0


def test_text_that_changes_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = text_config(tmp_path)
    write_samples = prepare_module.write_samples

    def while_another_appends(recipe: Any, directory: Path) -> Any:
        with Path(str(data.path)).open("a") as file:
            file.write("more")
        return write_samples(recipe, directory)

    monkeypatch.setattr(prepare_module, "write_samples", while_another_appends)
    assert refusal(data) == f"{tmp_path}/some.txt changed while it was being read. Run the command again."
    assert visible(tmp_path / "cache") == []


def test_a_cached_standard_library_is_found_at_once(tmp_path: Path) -> None:
    data = data_config(tmp_path, Source.stdlib, bpe_vocab_size=300, max_samples=4)
    prepare(data)
    started = time.perf_counter()
    prepare(data)
    assert time.perf_counter() - started < 1


def test_neither_torch_nor_litgpt_is_imported() -> None:
    program = "import sys, jobs.data; sys.exit(bool({'torch', 'litgpt'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", program], check=True)


# The files of a data set ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o022, 0o077])
def test_the_default_cache_is_private_whatever_the_umask_and_one_of_your_own_has_its_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, umask: int
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a/cache"))
    own = tmp_path / "a/cache/slurmscale/data"
    before = os.umask(umask)
    try:
        made = prepare(text_config(tmp_path, cache_dir=str(own)))
        shared = prepare(text_config(tmp_path, cache_dir=str(tmp_path / "shared")))
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in (made.parents[3], *made.parents[:3], made)} == {0o700}
    assert {path.stat().st_mode & 0o077 for path in made.iterdir()} == {0}
    assert shared.stat().st_mode & 0o777 == 0o777 & ~umask
    own.chmod(0o777)
    prepare(text_config(tmp_path, cache_dir=str(own), max_samples=2))
    assert own.stat().st_mode & 0o777 == 0o700, "one of an earlier version"


@pytest.mark.parametrize("name", ["tokens.npy", "samples.npy", "tokenizer.json", "meta.json"])
def test_a_data_set_that_somebody_has_changed_is_refused_by_the_name_of_the_file(tmp_path: Path, name: str) -> None:
    made = prepare(text_config(tmp_path))
    planned = data_set.digest_of(made)
    data_set.refuse_changed(made, planned)
    data_set.refuse_changed(made, None)
    content = bytearray((made / name).read_bytes())
    content[-3] ^= 1
    (made / name).write_bytes(content if name != "meta.json" else (made / name).read_bytes().replace(b"Text", b"Test"))
    with pytest.raises(DataError, match=rf"has changed since it was prepared \({name}\)"):
        data_set.refuse_changed(made, planned)


@pytest.mark.parametrize(
    ("name", "content", "values", "says"),
    [
        ("a.txt", b"x" * 3_000_000, {"max_line_mb": 2.5}, "line 1 is longer than 2.5 MB"),
        ("a.txt", b"a\n" + b"x" * 2001 + b"\n", {"max_line_mb": 0.002}, "line 2 is longer than 0.002 MB"),
        ("a.jsonl", b'{"text": "' + b"x" * 3_000_000 + b'"}', {"max_line_mb": 1}, "line 1 is longer than 1 MB"),
        ("a.jsonl.zst", b'{"text": "' + b"x" * 70_000_000, {}, "line 1 is longer than 64 MB"),
        ("a.jsonl.zst", b'{"text": ""}\n' * 200_000, {"max_expansion": 9}, "expands to more than 9 times its size"),
        ("a.jsonl.zst", b" \n" * 2_000_000, {"max_expansion": 9}, "expands to more than 9 times its size"),
    ],
)  # fmt: skip
def test_long_lines_and_files_that_expand_without_bound_are_refused_with_their_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes, values: dict[str, float], says: str
) -> None:
    monkeypatch.setattr("jobs.data.documents.FREE_BYTES", 1_000_000)
    path = tmp_path / name
    path.write_bytes(zstandard.compress(content) if name.endswith(".zst") else content)
    told = refusal(data_config(tmp_path / "cache", Source.text, path=str(path), bpe_vocab_size=300, **values))
    assert f"{says} (data.{'max_line_mb' if 'line' in says else 'max_expansion'})" in told
