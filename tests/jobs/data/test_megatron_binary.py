"""Megatron's binary format, read and written: by us, and by Megatron-core where it is installed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import zstandard

from jobs.cli import main
from jobs.data import Dataset, open_dataset, prepare
from jobs.data.megatron_binary import read_index, sequences_of, write_documents
from jobs.errors import DataError
from jobs.schema import Source
from tests.support.cli import printed_words
from tests.support.tiny_data import SENTENCES, data_config

DOCUMENTS = [np.array(ids) for ids in ([5, 3, 300, 0], [7], [2, 2, 2, 9, 11, 12, 13])]


def files(prefix: Path) -> tuple[Path, Path]:
    return Path(f"{prefix}.idx"), Path(f"{prefix}.bin")


def sequences(prefix: Path) -> list[list[int]]:
    index_file, bin_file = files(prefix)
    return [ids.tolist() for ids in sequences_of(read_index(index_file, bin_file), bin_file)]


def prepared(prefix: Path, sequence_length: int, vocab_size: int = 512, **values: Any) -> Dataset:
    data = data_config(prefix.parent / "cache", Source.megatron_binary, path=str(prefix), **values)
    return open_dataset(prepare(data, sequence_length=sequence_length, vocab_size=vocab_size, seed=1))


def refusal(prefix: Path, **values: Any) -> str:
    with pytest.raises(DataError) as refused:
        prepared(prefix, 2, **values)
    return str(refused.value)


@pytest.mark.parametrize(("vocab_size", "itemsize"), [(512, 2), (65_499, 2), (65_500, 4)])
def test_what_is_written_is_read_back_in_the_type_that_megatron_chooses(
    tmp_path: Path, vocab_size: int, itemsize: int
) -> None:
    prefix = tmp_path / "some" / "text_document"
    assert write_documents(prefix, iter(DOCUMENTS), vocab_size) == 3
    assert sequences(prefix) == [ids.tolist() for ids in DOCUMENTS]
    assert files(prefix)[1].stat().st_size == 12 * itemsize
    assert sorted(path.name for path in prefix.parent.iterdir()) == ["text_document.bin", "text_document.idx"]


def test_the_index_has_the_bytes_of_the_format(tmp_path: Path) -> None:
    write_documents(tmp_path / "p", iter([np.array([1, 2]), np.array([3])]), 512)
    assert files(tmp_path / "p")[0].read_bytes() == (
        b"MMIDIDX\0\0" + b"\1" + b"\0" * 7 + b"\x08" + b"\2" + b"\0" * 7 + b"\3" + b"\0" * 7
        + b"\2\0\0\0\1\0\0\0" + b"\0" * 8 + b"\4" + b"\0" * 7
        + b"\0" * 8 + b"\1" + b"\0" * 7 + b"\2" + b"\0" * 7
    )  # fmt: skip
    assert files(tmp_path / "p")[1].read_bytes() == b"\1\0\2\0\3\0"


def test_samples_are_windows_over_all_sequences(tmp_path: Path) -> None:
    write_documents(tmp_path / "p", iter(DOCUMENTS), 512)
    stream = [token for ids in DOCUMENTS for token in ids.tolist()]
    for path in (tmp_path / "p", *files(tmp_path / "p")):
        dataset = prepared(path, 3)
        assert [dataset.sample(i)[0].tolist() for i in range(len(dataset))] == [stream[0:3], stream[3:6], stream[6:9]]
        assert [dataset.sample(i)[1].tolist() for i in range(len(dataset))] == [stream[1:4], stream[4:7], stream[7:10]]
    assert dataset.description == (
        "Megatron's binary format in p.bin: 3 samples, 9 tokens (tokenized before, 301 tokens)."
    )


def test_text_written_by_the_command_gives_the_samples_of_the_text_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = "".join(json.dumps({"text": text, "meta": {}}) + "\n" for text in [*SENTENCES, "", *SENTENCES])
    source = tmp_path / "00.jsonl.zst"
    source.write_bytes(zstandard.compress(lines.encode()))
    given = ["data=text", f"data.path={source}", "data.bpe_vocab_size=300", "job.sequence_length=16",
             f"data.cache_dir={tmp_path}/cache"]  # fmt: skip
    prefix = tmp_path / "pile_text_document"
    assert main(["data", *given, "--megatron", str(prefix)]) == 0
    assert f"40 documents in {prefix}.bin and {prefix}.idx" in capsys.readouterr().out
    assert main(["data", *given, "--megatron", str(prefix)]) == 2
    assert f"{prefix}.idx exists, and is not overwritten." in printed_words(capsys)
    of_text = data_config(tmp_path / "cache", Source.text, path=str(source), bpe_vocab_size=300)
    text = open_dataset(prepare(of_text, sequence_length=16, vocab_size=2048, seed=1))
    binary = prepared(prefix, 16)
    assert len(binary) == len(text) > 20
    for i in range(len(text)):
        assert np.array_equal(binary.sample(i)[0], text.sample(i)[0])


def test_only_one_data_set_of_whole_text_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    to = ["--megatron", str(tmp_path / "p"), f"data.cache_dir={tmp_path}/cache", "ranks_per_node=1"]
    for given, says in (
        (["data=random"], "data.source=random has none. Set data=text"),
        (["data=random", "data.max_samples=8,16", "-m"], "writes one data set, and these are 2."),
        (["data.max_samples=64"], "Set data.max_samples=null."),
    ):
        assert main(["data", *given, *to]) == 2
        assert says in printed_words(capsys)


def test_an_interrupted_writer_leaves_no_file(tmp_path: Path) -> None:
    def interrupted() -> Iterator[npt.NDArray[Any]]:
        yield DOCUMENTS[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_documents(tmp_path / "p", interrupted(), 512)
    assert list(tmp_path.iterdir()) == []


def test_files_that_are_not_the_format_are_refused_with_the_reason(tmp_path: Path) -> None:
    prefix = tmp_path / "p"
    assert refusal(prefix).startswith(f"{prefix} does not exist. data.source=megatron_binary reads PREFIX.bin and ")
    write_documents(prefix, iter(DOCUMENTS), 512)
    index_file, bin_file = files(prefix)
    good = index_file.read_bytes()
    for content, why in (
        (b"MMIDIDX", "does not begin with MMIDIDX"),
        (b"X" + good[1:], "does not begin with MMIDIDX"),
        (good[:9] + b"\2" + good[10:], "has version 2, and 1 is known"),
        (good[:17] + b"\7" + good[18:], "has ids of type 7, which is no type of integers"),
        (good[:-1], f"has {len(good) - 1} bytes, and its 3 sequences need {len(good)}"),
    ):
        index_file.write_bytes(content)
        assert refusal(prefix).startswith(f"{index_file} {why}"), why
    index_file.write_bytes(good)
    bin_file.write_bytes(bin_file.read_bytes()[:-2])
    assert refusal(prefix).startswith(f"{index_file} names sequences outside the 22 bytes of p.bin")


def test_ids_outside_the_embedding_are_refused(tmp_path: Path) -> None:
    write_documents(tmp_path / "p", iter(DOCUMENTS), 512)
    assert refusal(tmp_path / "p", vocab_size=300) == (
        f"data.path={tmp_path}/p has the token id 300, and model.vocab_size=300. Set model.vocab_size=301, or "
        "data.path to files of another tokenizer."
    )
    write_documents(tmp_path / "n", iter([np.array([4, -3, 1])]), 100_000)
    assert refusal(tmp_path / "n").startswith(f"{tmp_path}/n.bin has a negative token id.")


@pytest.mark.long
def test_megatron_core_reads_what_we_write_and_we_read_what_it_writes(tmp_path: Path) -> None:
    megatron = pytest.importorskip("megatron.core.datasets.indexed_dataset")
    torch = pytest.importorskip("torch")
    for vocab_size in (512, 100_000):
        ours, theirs = tmp_path / f"ours{vocab_size}", tmp_path / f"theirs{vocab_size}"
        write_documents(ours, iter(DOCUMENTS), vocab_size)
        read = megatron.IndexedDataset(str(ours))
        assert [read[i].tolist() for i in range(len(read))] == [ids.tolist() for ids in DOCUMENTS]
        assert read.document_indices.tolist() == [0, 1, 2, 3]
        builder = megatron.IndexedDatasetBuilder(f"{theirs}.bin", megatron.DType.optimal_dtype(vocab_size))
        builder.add_document(torch.tensor([5, 3, 300, 0, 7]), [4, 1])
        builder.add_document(torch.tensor(DOCUMENTS[2]), [7])
        builder.finalize(f"{theirs}.idx")
        assert sequences(theirs) == [ids.tolist() for ids in DOCUMENTS]
        assert read_index(*files(theirs)).documents.tolist() == [0, 2, 3]
        assert files(theirs)[1].read_bytes() == files(ours)[1].read_bytes()
