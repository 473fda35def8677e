"""Finding and cleaning lines: launchers' prefixes, sections, bars, compression, and whatever else a file may hold."""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from analysis.parsers.base import Line, LocalRank, RankLabel
from analysis.parsers.detect import read_log
from analysis.parsers.search import BLOCK_BYTES, Search, blocks, whole_lines
from tests.analysis.parsers.reading import SAMPLES


@pytest.mark.parametrize(
    ("printed", "text", "rank", "host"),
    [
        (b"0: step", "step", 0, None),
        (b" 12: [rank3]: step", "step", 3, None),
        (b"[default7]:step", "step", LocalRank(7), None),
        (b"retraining/1 [default0]:step", "step", LocalRank(0), None),
        (b"[default3]:[rank11]: step", "step", 11, None),
        (b"[trainer0|5]:step", "step", 5, None),
        (b"[1,9]<stderr>:step", "step", 9, None),
        (b"Wed Jun  1 10:54:37 2022[1,5]<stdout>: step", "step", 5, None),
        (b"vm-07-14: step", "step", None, "vm-07-14"),
        (b"node12: 3: step", "step", 3, "node12"),
        (b"retraining/0 step", "step", 0, None),
        (b"[2025-01-02T03:04:05+00:00] step", "step", None, None),
        (b"[\x1b[32m20251114 15:17:20\x1b[0m][\x1b[36mrank-15/16\x1b[0m] step", " step", 15, None),
        (b"st\x00ep \x1b[1;31mred\x1b[0m", "step red", None, None),
        (b"step \xff", "step \N{REPLACEMENT CHARACTER}", None, None),
    ],
)
def test_prefixes_are_removed_and_name_rank_or_host(
    printed: bytes, text: str, rank: RankLabel, host: str | None
) -> None:
    assert list(Search(everything=True).lines([printed])) == [Line(1, text, rank, host)]


@pytest.mark.parametrize(
    "printed",
    [
        "fp16: True",
        "step10: 3",
        "H100: fast",
        "ValueError: 3",
        "urllib3.MaxRetryError: x",
        "slurmstepd: error",
        "12:30:00 x",
        "11/20 x",
        "IOR-3.0.1: MPI",
        "job1: (groupid=0, jobs=1): err= 0",
    ],
)
def test_what_only_looks_like_a_prefix_stays(printed: str) -> None:
    assert list(Search(everything=True).lines([printed.encode()])) == [Line(1, printed)]


def test_markers_that_overlap_or_contain_each_other_are_all_found() -> None:
    search = Search(markers=(" iteration ", "epoch 0, iteration"), section_start=("iteration 5", "n 5/"))
    assert {search.all_markers[mark] for mark, _, _ in search.found(b"epoch 0, iteration 5/99")} == set(
        search.all_markers
    )


def test_lines_with_a_needle_and_whole_sections_are_found_whatever_the_blocks() -> None:
    text = b"a\nneedle 1\nb open\nc\nd\rdd\nclose x\nneedle 2\nz\nneedle open\nq\nr\nclose\nz\nneedle"
    search = Search(markers=("needle",), section_start=("open",), section_end=("close",))
    expected = [(2, "needle 1"), (3, "b open"), (4, "c"), (5, "d"), (5, "dd"), (6, "close x"), (7, "needle 2"),
                (9, "needle open"), (10, "q"), (11, "r"), (12, "close"), (14, "needle")]  # fmt: skip
    feeds = [at + 1 for at, byte in enumerate(text) if byte == ord("\n")]
    for cut in [0, *feeds]:
        found = search.lines([part for part in (text[:cut], text[cut:]) if part])
        assert [(line.number, line.text) for line in found] == expected


PRINTED = [b"needle", b"x needle y", b"3: needle", b"a", b"", b"a\rneedle\rb", b"needl", b"x" * 70_000 + b"needle"]


@given(st.lists(st.sampled_from(PRINTED)), st.integers(0, 40))
def test_lines_with_the_needle_are_the_same_where_nearly_all_have_it(printed: list[bytes], full: int) -> None:
    content = b"\n".join([*printed, *[b"needle"] * full])
    many = Search(markers=("needle", "never there"))  # of two no block is full of one
    assert list(Search(markers=("needle",)).lines([content])) == list(many.lines([content]))


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress, zstandard.ZstdCompressor().compress])
def test_compressed_files_are_read_and_torn_ones_as_far_as_they_go(
    compress: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    content = b"".join(b"line %d %d\n" % (number, number * number) for number in range(20_000))
    file = tmp_path / "log"
    file.write_bytes(compress(content))
    assert b"".join(blocks(file)) == content
    file.write_bytes(compress(content)[:-1000])
    assert content.startswith(b"".join(blocks(file)))


def test_of_a_torn_log_all_is_read_that_is_whole(tmp_path: Path) -> None:
    content = b"".join(b"line %d %d\n" % (number, number * number) for number in range(20_000))
    file = tmp_path / "log"
    file.write_bytes(gzip.compress(content)[:-1000])
    read = b"".join(blocks(file))
    assert content.startswith(read)
    assert len(read) > 0.9 * len(content)


def test_a_mark_of_utf_8_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_bytes(codecs.BOM_UTF8 + b"JobID|State\n")
    assert b"".join(blocks(file)) == b"JobID|State\n"


def test_utf_16_is_read_as_text(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text((SAMPLES / "megatron.txt").read_text(), encoding="utf-16")
    assert sum(1 for form, found in read_log(file) for _ in found if form.name != "launcher") == 5


def test_whole_lines_leave_out_those_that_are_too_long_and_count_on(tmp_path: Path) -> None:
    file = tmp_path / "log"
    lines = [b"a", b"", b"b" * (3 * BLOCK_BYTES), b"c", b"d" * BLOCK_BYTES]
    file.write_bytes(b"\n".join(lines))
    assert list(whole_lines(file, 3 * BLOCK_BYTES)) == list(enumerate(lines, start=1))
    assert list(whole_lines(file, BLOCK_BYTES)) == [(1, b"a"), (2, b""), (4, b"c"), (5, lines[4])]
    assert [number for number, _ in whole_lines(file, 9)] == [1, 2, 4]


def test_memory_is_flat_for_a_line_of_a_hundred_megabytes(tmp_path: Path) -> None:
    file = tmp_path / "log"
    with file.open("wb") as log:
        for _ in range(100):
            log.write(b" iteration " + b"x" * 1_000_000)
        log.write(b"\n" + (SAMPLES / "megatron.txt").read_bytes())
    tracemalloc.start()
    assert sum(1 for form, found in read_log(file) for _ in found if form.name != "launcher") == 5
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 6 * BLOCK_BYTES


@pytest.mark.parametrize(
    "begins", ["{'loss': 1.5}\n", "[rank0]: starting\n", "[2026-01-02 03:04:05] INFO\n", "[5] {\n"]
)
def test_a_log_that_only_begins_like_json_is_read_line_by_line(begins: str, tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text(begins + (SAMPLES / "megatron.txt").read_text())
    assert {each.name: len(list(found)) for each, found in read_log(file)}["Megatron-LM"] >= 5


def test_the_first_line_of_a_block_represents_all_with_the_same_key() -> None:
    search = Search(markers=("WARN",), dedup_key=re.compile(r"via [AB]"))
    block = b"x via A\ny via A WARN\nz via B\rz via B\nWARN\nother\nv via A, via B\nw via C\n"
    found = [(line.number, line.text, line.times) for line in search.lines([block, b"via B"])]
    assert found == [
        (1, "x via A", 3),
        (2, "y via A WARN", 0),
        (3, "z via B", 2),
        (3, "z via B", 0),
        (4, "WARN", 1),
        (8, "via B", 1),
    ]
