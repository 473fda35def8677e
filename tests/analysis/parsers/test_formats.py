"""The contract of every format: its samples give exactly these records; torn, empty and foreign files give no others.

A format that is added to FORMATS needs a sample and its records in sample_records.txt: a block for each sample, with
the file's name, remarks behind `#`, and under the name of each format that finds something its records, line by line.
`SLURMSCALE_UPDATE_GOLDEN=1 python -m pytest tests/analysis/parsers/test_formats.py` writes the records again, not the
remarks.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from types import ModuleType

import pytest

from analysis.parsers.base import DocumentFormat, Kind, LineFormat
from analysis.parsers.benchmarks import all_reduce_bench
from analysis.parsers.cluster import nccl_info, nvidia_smi, sacct
from analysis.parsers.detect import FORMATS
from analysis.parsers.search import torn_number, without_torn_number
from tests.analysis.parsers.reading import SAMPLE_NAMES, SAMPLES, in_words, parsed, read
from tests.support.paths import ROOT

EXPECTED = SAMPLES.parent / "sample_records.txt"


def blocks() -> dict[str, list[str]]:
    """Return the lines below each heading of the expected records."""
    named = (block.splitlines() for block in EXPECTED.read_text().split("== ")[1:])
    return {lines[0]: [line for line in lines[1:] if line] for lines in named}


def found_in(path: Path) -> list[str]:
    """Return the formats of a file and their records, as lines of sample_records.txt."""
    return [line for name, rows in read(path).items() for line in (name, *(f"  {in_words(row)}" for row in rows))]


@pytest.mark.parametrize("name", SAMPLE_NAMES)
def test_a_sample_gives_these_records_and_none_of_another_format(name: str) -> None:
    expected, found = blocks(), found_in(SAMPLES / name)
    if os.environ.get("SLURMSCALE_UPDATE_GOLDEN") == "1":
        expected[name] = [line for line in expected.get(name, []) if line.startswith("#")] + found
        EXPECTED.write_text("\n".join(f"== {each}\n" + "".join(f"{row}\n" for row in expected[each])
                                      for each in sorted(expected)))  # fmt: skip
    assert found == [line for line in expected[name] if not line.startswith("#")]


def test_every_format_has_a_sample_with_records() -> None:
    assert {each.name for each in FORMATS} <= {line for block in blocks().values() for line in block}


@pytest.mark.parametrize("name", SAMPLE_NAMES)
def test_a_torn_last_line_changes_no_record_of_the_lines_before(name: str, tmp_path: Path) -> None:
    content = (SAMPLES / name).read_bytes()
    lines = content.split(b"\n")
    last = max(row.line for rows in read(SAMPLES / name).values() for row in rows)
    torn, ended = tmp_path / "torn", tmp_path / "ended"
    before = b"".join(line + b"\n" for line in lines[: last - 1])
    torn.write_bytes(before + lines[last - 1][: len(lines[last - 1]) // 2] if last else content[: len(content) // 2])
    ended.write_bytes(before)

    def earlier(path: Path) -> list[tuple[str, str]]:
        rows = [(form, row) for form, found in read(path).items() for row in found if row.line < last]
        return [(form, in_words(row._replace(line=0))) for form, row in rows]  # of a single line JSON is a document

    assert earlier(torn) == earlier(ended)


CUT_OFF = ["nanotron.txt", "nemo.txt", "hpl.txt", "perf_analyzer.csv", "torchtune_log.txt", "nccl_tests.txt", "osu.txt",
           "nvidia_smi.txt", "sacct.txt"]  # fmt: skip


def values_in(path: Path) -> set[tuple[str, Kind, int, str, float]]:
    """Return every measured number in a file with its place, to ten digits; settings may be counts of lines."""
    return {
        (form, row.kind, row.line, metric.name, float(f"{value:.10g}"))
        for form, rows in read(path).items()
        for row in rows
        if row.kind is not Kind.setting
        for metric, value in row.values.items()
    }


@pytest.mark.parametrize("name", CUT_OFF)
def test_a_number_that_is_cut_off_at_the_end_of_a_file_is_not_read(name: str, tmp_path: Path) -> None:
    lines = (SAMPLES / name).read_bytes().splitlines(keepends=True)
    whole, torn = tmp_path / "whole", tmp_path / "torn"
    cuts = 0
    for number in range(1, len(lines))[-20:]:
        whole.write_bytes(b"".join(lines[: number + 1]))
        known = values_in(whole)
        for found in re.finditer(rb"[0-9][0-9.:]*(?=[0-9])", lines[number]):
            for end in range(found.start() + 1, found.end() + 1):
                torn.write_bytes(b"".join(lines[:number]) + lines[number][:end])
                new = {each for each in values_in(torn) if each[2] == number + 1}
                assert new <= known, lines[number][:end]
                cuts += 1
    assert cuts


@pytest.mark.parametrize("text", ['{"train_batch_size": 2, "log_history": []}', '1\n2 {"step": 3}', "5\n6 MB", "78"])
def test_a_last_line_without_an_end_is_whole_unless_it_ends_with_a_number_below_others(text: str) -> None:
    assert b"".join(without_torn_number([text.encode()])).decode() == text


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("a\nrate 123", "a\nrate "),
        ("a\nloss:1.", "a\n"),
        ("a\n7|01:02:0", "a\n7|"),
        ("a\n1,234", "a\n"),
        ("a\nx=1e-", "a\nx="),
    ],
)
def test_a_last_number_goes_with_all_that_may_belong_to_it(text: str, kept: str) -> None:
    first, last = text.split("\n")
    assert b"".join(without_torn_number([f"{first}\n".encode(), last.encode()])).decode() == kept


@pytest.mark.parametrize(
    ("lines", "last", "is_read"),
    [
        (["step 1 loss 2.50", "step 2 loss 2.41"], "step 10 loss 2.32", True),
        (["step 1 loss 2.50", "step 2 loss 2.41"], "step 10 loss 2.3", False),
        (["step 1 loss 2.50", "step 2 loss 12.41"], "step 10 loss -2.32", True),
        (["step 1 loss 2.50"], "step 10 loss 2.32", True),
        (["step 1 loss 2.5"], "step 10 loss 2.3", False),
        (["loss 2.25", "loss 2.5", "loss 3"], "loss 2.41", True),
        (["loss 2.25", "loss 2.5", "loss 3"], "loss 2", False),
        (["loss 2.25", "norm 0.50"], "val loss 2.41", False),
        (["lr 1e-4 t 1.0", "x 3"], "x 1.25e-05", True),
        (["lr 0.00012", "lr 0.00011"], "lr 9.9", False),
        (["tps: 12,345", "tps: 9,800"], "tps: 12,401", True),
        (["tps: 12,345", "tps: 12,800"], "tps: 12,40", False),
        (["tps: 12,345", "tps: 12,800"], "tps: 12", False),
        (["p99 98749", "p99 99772"], "p99 105229", True),
        (["p99 98749", "p99 99772"], "p99 10522", False),
        (["32 1.5 0", "64 1.6 0"], "128 1.7 0", True),
        (["step,loss,s", "1,2.5,0.50", "2,2.4,0.51"], "3,2.3,0.52", True),
        (["step,loss,s", "1,2.5,0.50", "2,2.4,0.51"], "3,2.3,0.5", False),
        (["step,loss,s", "1,2.5,0.50", "2,2.4,0.51"], "3,2.3", False),
        (["loss 2.345678901234567", "loss 2.34567890123456"], "loss 2.3456789012345", True),
        (["end 12:30:05", "end 12:31:17"], "end 12:32:01", True),
        (["end 12:30:05", "end 12:31:17"], "end 12:32:0", False),
    ],
)
def test_a_last_number_is_read_if_it_has_the_form_of_those_of_the_same_lines(
    lines: list[str], last: str, is_read: bool, tmp_path: Path
) -> None:
    before = "".join(f"{line}\n" for line in lines)
    kept = b"".join(without_torn_number([before.encode(), last.encode()])).decode()
    assert (kept == before + last) is is_read
    (tmp_path / "log").write_text(before + last)
    assert (torn_number(tmp_path / "log") == "") is is_read


JOBS = "JobID|State|ExitCode|Elapsed|NodeList\n"
NCCL = "node1:700:731 [0] NCCL INFO "
TORN = {
    all_reduce_bench: ["3:", "0 data size: 4.0 GB", " busbw: 64", " algo throughput: 1280000000000.0000 bps, 12"],
    nccl_info: [
        f"{NCCL}Channel 00/0 : 3[1] -> 0[0] [receive] via NET/I",
        f"{NCCL}Channel 00/0 : 3[1] -> 0[0] via P2P/CUM",
        f"{NCCL}NCCL_IB_TIMEOUT set by environment to 2",
        f"{NCCL}ncclCommInitRank comm 0x55d0 rank 0 nranks 4",
        f"{NCCL}comm 0x55d0 rank 0 nRanks 4 nNodes 2",
        f"{NCCL}8 coll channels, 0 collnet channels, 0 nvls channels, 16 p2p channels",
        f"{NCCL}NET/IB : No device found.",
    ],
    nvidia_smi: [
        "# gpu    pwr\n# Idx      W\n    0      -",
        "# gpu    pwr\n# Idx      W\n    0    abc",
        "index, power.draw [W]\n0, nan W",
        "index, power.draw [W]\n0",
        "0, 300.5 W",
    ],
    sacct: [
        f"{JOBS}12|FAILED|1:0|00:01",
        f"{JOBS}12|FAILED|1:0|00:01:00|node1|more",
        f"{JOBS}twelve|FAILED|1:0|00:01:00|node1",
        f"{JOBS}12|has failed|1:0|00:01:00|node1",
        f"{JOBS}| grep | 1:0 | 2 | node1",
    ],
}


@pytest.mark.parametrize(("form", "text"), [(form, text) for form, texts in TORN.items() for text in texts])
def test_a_torn_or_foreign_line_or_an_absent_value_gives_no_record(form: ModuleType, text: str) -> None:
    assert parsed(form.parse, *text.splitlines()) == []


@pytest.mark.parametrize(
    "content",
    ["", "\n", "{}", "[]", '{"": null}', "Traceback (most recent call last):\n", (ROOT / "LICENSE").read_text()],
)
def test_an_empty_or_foreign_file_gives_no_record(content: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(content)
    assert read(tmp_path / "log") == {}


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_every_format_cites_the_code_that_writes_it_and_how_it_is_found(form: LineFormat | DocumentFormat) -> None:
    assert [each.name for each in FORMATS].count(form.name) == 1
    assert form.upstream.startswith("https://")
    assert not isinstance(form, LineFormat) or form.markers or form.section_start or form.is_header is not None
