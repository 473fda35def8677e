"""Sources: which files are read, their text in pieces, and refusals with words."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.data import prepare, sources
from jobs.data.documents import document_pieces
from jobs.data.sources import (
    STDLIB,
    STDLIB_LEAST_BYTES,
    STDLIB_TEXT_BYTES,
    Piece,
    file_names,
    pieces,
    source_files,
    stdlib_files,
)
from jobs.errors import DataError
from jobs.schema import Source
from tests.support.tiny_data import data_config


def refusal(source: Source, path: Path | None) -> str:
    with pytest.raises(DataError) as refused:
        source_files(data_config(Path("unused"), source, path=None if path is None else str(path)))
    return str(refused.value)


@pytest.mark.parametrize("source", [Source.stdlib, Source.docstrings])
def test_the_standard_library_is_read_in_order_within_its_bound(source: Source) -> None:
    files = source_files(data_config(Path("unused"), source))
    assert files == sorted(files)
    assert files[0] == STDLIB / "__future__.py"
    assert STDLIB_LEAST_BYTES < sum(file.stat().st_size for file in files) <= STDLIB_TEXT_BYTES


def test_of_the_standard_library_only_its_own_utf8_sources_are_read(tmp_path: Path) -> None:
    text = "# text\n" * STDLIB_LEAST_BYTES
    for name in ("b.py", "a.py", "pkg/c.py", "pkg/tests/d.py", "test/e.py", "site-packages/f.py", "g.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "latin.py").write_bytes("# é".encode("latin-1"))
    assert [file.relative_to(tmp_path).as_posix() for file in stdlib_files(tmp_path)] == ["a.py", "b.py", "pkg/c.py"]


def test_the_standard_library_is_taken_up_to_the_bound(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.py").write_bytes(b"#" * (STDLIB_TEXT_BYTES // 2))
    assert [file.name for file in stdlib_files(tmp_path)] == ["a.py", "b.py"]


def test_a_python_without_its_sources_is_refused(tmp_path: Path) -> None:
    (tmp_path / "os.py").write_text("import sys\n")
    with pytest.raises(DataError) as refused:
        stdlib_files(tmp_path)
    assert str(refused.value) == (
        f"The standard library of this Python has 11 bytes of source text in {tmp_path}, and data=stdlib and "
        f"data=docstrings need {STDLIB_LEAST_BYTES}. Set data=text data.path=FILE, or data=random."
    )


def test_a_directory_of_text_is_its_txt_files_by_name(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "c.md"):
        (tmp_path / name).write_text("text")
    files = source_files(data_config(tmp_path, Source.text, path=str(tmp_path)))
    assert [file.name for file in files] == ["a.txt", "b.txt"]


def test_a_directory_of_records_is_its_train_json(tmp_path: Path) -> None:
    for name in ("train.json", "val.json"):
        (tmp_path / name).write_text("[]")
    assert source_files(data_config(tmp_path, Source.alpaca, path=str(tmp_path))) == [tmp_path / "train.json"]


# Names of a directory below its root, those that are trained on first.
SPLITS = {
    "parquet": (["train-00000-of-00001.parquet"], ["test-00000-of-00001.parquet", "validation-00000-of-00001.parquet"]),
    "data folder": (["data/train-0.parquet"], ["data/test-0.parquet", "data/val-0.parquet", "README.md"]),
    "split folders": (["main/train/0.parquet"], ["main/test/0.parquet", "main/dev/0.parquet"]),
    "folder and file": (["eval/train.jsonl"], ["train/test.jsonl", "a/held_out/1.jsonl", "a/heldout/2.jsonl"]),
    "json": (["a.json"], ["eval.json", "valid.json", "dataset_infos.json", "config.json"]),
    "train.json alone": (["train.json"], ["more.json", "train.parquet", "test.json"]),
    "precedence": (["x.jsonl"], ["y.json", "test.parquet"]),
    "words": (
        ["contest.json", "developer.json", "latest.json", "medieval.json", "values.json"],
        ["TestSet.json", "devset.json", "my-VAL.json", "pubmed_eval_2.json", "tests.json", "val2017.json"],
    ),
    "other kinds below": (["a.jsonl", "b.jsonl", "more/c.jsonl"], ["old/y.parquet", "old/z.json"]),
    "folders alone": (["x/0.parquet", "y/1.parquet"], ["x/deep/2.json"]),
    "train wins": (["trainData.json", "train_without_validation.json"], ["EVALUATION.json"]),
}


@pytest.mark.parametrize(("read", "left_out"), SPLITS.values(), ids=list(SPLITS))
def test_the_files_of_a_directory_are_trained_on_without_splits_for_tests(
    tmp_path: Path, read: list[str], left_out: list[str]
) -> None:
    for name in (*read, *left_out, ".cache/train.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text("[]")
    data = data_config(tmp_path, Source.alpaca, path=str(tmp_path))
    assert [file.relative_to(tmp_path).as_posix() for file in source_files(data)] == read
    assert file_names(data) == {"read": read, "left_out": sorted(left_out, key=Path)}


def test_a_licence_below_the_shards_of_a_corpus_is_none_of_its_text(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl", "more/c.jsonl", "docs/LICENSE.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text("text")
    data = data_config(tmp_path, Source.text, path=str(tmp_path))
    assert file_names(data) == {"read": ["a.jsonl", "b.jsonl", "more/c.jsonl"], "left_out": ["docs/LICENSE.txt"]}


def test_data_that_was_prepared_inside_a_directory_is_none_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "part.txt").write_text("A job waits in the queue until the nodes it asked for are free.\n" * 40)
    data = data_config(tmp_path / "cache", Source.text, path=str(tmp_path), bpe_vocab_size=300)
    first = prepare(data, sequence_length=8, vocab_size=512, seed=1)
    (tmp_path / "more.log").write_text("written meanwhile")
    assert prepare(data, sequence_length=8, vocab_size=512, seed=1) == first


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every directory")
def test_a_directory_below_that_cannot_be_read_has_no_files(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "lost+found").mkdir(mode=0)
    assert source_files(data_config(tmp_path, Source.text, path=str(tmp_path))) == [tmp_path / "a.txt"]


@pytest.mark.parametrize("name", ["a.jsonl", "a.txt"])
def test_a_byte_order_mark_is_none_of_a_text(name: str, tmp_path: Path) -> None:
    text = '{"text": "one"}\n{"text": "two"}\n' if name == "a.jsonl" else "one\ntwo\n"
    (tmp_path / name).write_text(text, encoding="utf-8-sig")
    found = "".join(piece.text for piece in document_pieces(tmp_path / name, data_config(tmp_path, Source.text)))
    assert found == ("onetwo" if name == "a.jsonl" else text)


@pytest.mark.parametrize("name", ["corpus/test.txt", "valid.jsonl", "dev/00.jsonl.zst", "Eval.txt"])
def test_a_directory_of_text_has_splits_too_and_one_with_nothing_else_is_refused_by_name(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("text")
    assert refusal(Source.text, tmp_path) == (
        f"{tmp_path} has no file to train on: all are named as splits for tests or validation ({name}). Set data.path "
        "to one of the files to train on it, or to a directory with files of another name."
    )
    assert source_files(data_config(tmp_path, Source.text, path=str(tmp_path / name))) == [tmp_path / name]
    (tmp_path / "train").mkdir()
    (tmp_path / "train/a.txt").write_text("text")
    assert source_files(data_config(tmp_path, Source.text, path=str(tmp_path))) == [tmp_path / "train/a.txt"]


def test_random_has_no_files() -> None:
    assert source_files(data_config(Path("unused"), Source.random)) == []


@given(text=st.text(), size=st.integers(1, 40))
def test_pieces_put_together_are_the_file(text: str, size: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "pieces.txt"
    path.write_bytes(text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "PIECE_BYTES", size)
        found = list(pieces(path))
    assert "".join(piece.text for piece in found) == text
    assert [piece.first for piece in found] == [i == 0 for i in range(len(found))]
    assert [piece.last for piece in found] == [i == len(found) - 1 for i in range(len(found))]


def test_a_long_file_is_cut_after_newlines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "PIECE_BYTES", 3)
    (tmp_path / "a.txt").write_text("one\ntwo\nthree")
    assert list(pieces(tmp_path / "a.txt")) == [
        Piece("one\n", first=True, last=False),
        Piece("two\n", first=False, last=False),
        Piece("three", first=False, last=True),
    ]


def test_text_that_is_not_utf8_is_refused_with_the_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "PIECE_BYTES", 8)
    path = tmp_path / "latin.txt"
    path.write_bytes(b"first line\nsecond line\ncaf\xe9 au lait\n")
    with pytest.raises(DataError) as refused:
        list(pieces(path))
    assert str(refused.value) == (
        f"{path} is not UTF-8: byte 26 is 0xe9 (invalid continuation byte). Convert it, for example with: "
        "iconv -f latin1 -t utf-8 latin.txt"
    )


def test_a_path_that_is_not_set_is_refused() -> None:
    assert refusal(Source.text, None) == (
        'data.path is not set. data.source=text reads a UTF-8 text file, JSON lines with "text" (.jsonl, '
        ".jsonl.zst), or a directory of either. Set data.path=PATH."
    )


@pytest.mark.parametrize("source", [Source.stdlib, Source.docstrings, Source.random])
def test_a_path_that_is_not_used_is_refused(source: Source) -> None:
    assert refusal(source, Path("/some/file.txt")) == (
        f"data.path=/some/file.txt is not used by data.source={source.name}. Set data.path=null, or data=text to "
        "train on that file."
    )


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert refusal(Source.alpaca, tmp_path / "gone.json") == (
        f"{tmp_path}/gone.json does not exist. data.source=alpaca reads a list, or lines, of objects with "
        "instruction, output and optionally input, in JSON or Parquet, or a directory with such a train.json or such "
        ".parquet, .jsonl or .json files. Set data.path=PATH."
    )


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    assert refusal(Source.text, tmp_path / "empty.txt").startswith(f"{tmp_path}/empty.txt is empty. data.source=text")


@pytest.mark.parametrize("source", [Source.text, Source.pubmedqa])
def test_a_directory_without_such_files_is_refused(tmp_path: Path, source: Source) -> None:
    (tmp_path / "readme.md").write_text("text")
    assert f"{tmp_path} has no such file. data.source={source.name} reads" in refusal(source, tmp_path)


def test_what_the_system_will_not_read_is_refused_with_its_words() -> None:
    # A name too long for any file system: root may read everything else.
    assert refusal(Source.text, Path("/" + "x" * 300)).endswith("x cannot be read: File name too long.")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads a file of /proc")
def test_a_file_that_breaks_while_it_is_read_is_refused_with_the_systems_words() -> None:
    with pytest.raises(DataError, match=r"/proc/self/mem cannot be read: Input/output error\."):
        list(pieces(Path("/proc/self/mem")))
