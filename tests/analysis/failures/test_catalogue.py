"""The catalogue of failure signatures: each line is written in the shape of its source, none is a line of a log."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analysis.failures.catalogue import SIGNATURES
from analysis.failures.catalogue.markers import markers_of
from analysis.failures.catalogue.table import read
from analysis.failures.signatures import known, matches, search
from analysis.failures.verdict import Verdict, decide
from jobs.failure_causes import FailureCause as C

TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 7, in <module>\n    main()\n'


def of(log: str) -> Verdict:
    return decide(matches(search().lines([log.encode()])))


def lines_of_causes() -> Iterator[tuple[str, C]]:
    for row in Path(__file__).with_name("catalogue_lines.txt").read_text(encoding="utf-8").splitlines():
        if not row.startswith("#"):
            cause, _, line = row.partition(": ")
            yield line.replace("\\n", "\n").replace("{TRACEBACK}", TRACEBACK), C[cause]


@pytest.mark.parametrize(("line", "cause"), list(lines_of_causes()))
def test_a_line_of_a_catalogue_has_its_cause(line: str, cause: C) -> None:
    assert of(line).cause is cause


PACKAGE = '  File "/env/lib/python3.11/site-packages/mesh/{}.py", line 7, in {}\n    {}\n'


@pytest.mark.parametrize(
    ("frames", "cause"),
    [
        (PACKAGE.format("__init__", "<module>", "check()"), C.launch_failure),
        (PACKAGE.format("registry", "build_from_cfg", "raise odd"), C.refused),
        (PACKAGE.format("cli", "parse_args", "raise odd"), C.refused),
        (PACKAGE.format("block", "forward", "y = grow(x)") + PACKAGE.format("grid", "grow", "raise odd"), C.code),
        (PACKAGE.format("config", "merge", "assert key in known"), C.refused),
        ("    assert width % heads == 0\n", C.refused),
        ("    assert x.shape[0] % heads == 0\n", C.code),
        ("    assert os.path.exists(name)\n", C.refused),
        ("    assert torch.cuda.is_available()\n", C.launch_failure),
    ],
)
def test_the_place_where_an_exception_was_raised_shows_its_cause(frames: str, cause: C) -> None:
    assert of(f"{TRACEBACK}{frames}AssertionError").cause is cause
    if "assert " not in frames:
        assert of(f"{TRACEBACK}{frames}ValueError: odd number of file names").cause is cause


@pytest.mark.parametrize(
    "end",
    [
        PACKAGE.format("grid", "grow", "raise odd") + "ValueError: nothing to grow",
        "    opt.load_state_dict(checkpoint['opt'])\nKeyError: 'opt'",
        "    net.load_state_dict(torch.load(path)['net'])\nKeyError: 'net'",
    ],
)
def test_a_library_that_refuses_a_value_and_a_checkpoint_without_a_key_are_hints_at_a_setting(end: str) -> None:
    found = of(f"{TRACEBACK}{end}")
    assert (found.cause, found.possible) == (C.unknown, C.refused)


def test_another_exception_of_a_line_that_reads_a_checkpoint_is_an_error_of_the_program() -> None:
    found = of(f"{TRACEBACK}    net.load_state_dict(checkpoint['net'])\nAttributeError: 'list' object has no 'load'")
    assert (found.cause, found.possible) == (C.code, None)


@pytest.mark.parametrize(
    ("line", "rank", "host"),
    [
        ("srun: error: node03: task 5: Exited with exit code 1", 5, "node03"),
        ("mpirun noticed that process rank 3 with PID 99 on node node03 exited on signal 11 (Segmentation fault).", 3,
         "node03"),
        ("node03: rank 6 exited with code 1", 6, "node03"),
    ],
)  # fmt: skip
def test_the_first_rank_and_its_host_are_kept_even_if_the_cause_is_not_known(line: str, rank: int, host: str) -> None:
    later = "srun: error: node09: task 9: Exited with exit code 1\n"
    found = of(f"{line}\n{later}")
    assert (found.rank, found.host) == (rank, host)


def test_torchrun_names_the_first_rank_and_host_of_a_traceback_without_a_rank() -> None:
    block = ("  time      : 2026-02-03_04:05:0{0}\n  host      : node0{0}\n  rank      : {0} (local_rank: 0)\n"
             "  exitcode  : 1 (pid: 42)\n")  # fmt: skip
    found = of(f"{TRACEBACK}KeyError: 'model'\n{block.format(3)}{block.format(2)}")
    assert (found.cause, found.rank, found.host) == (C.code, 2, "node02")
    without_code = block.replace("1 (pid: 42)", "<N/A>")
    found = of(f"{TRACEBACK}KeyError: 'model'\n{without_code.format(3)}{block.format(4)}")
    assert (found.rank, found.host) == (4, "node04"), "the process of rank 3 was still there"


def test_each_signature_has_a_source_and_an_advice_and_compiles() -> None:
    assert all(each.source and each.pattern for each in SIGNATURES)
    assert all(each.advice.endswith(".") and "\n" not in each.advice for each in SIGNATURES)


@settings(suppress_health_check=list(HealthCheck), deadline=None)
@given(st.data())
def test_a_text_that_an_expression_matches_contains_one_of_its_markers_and_is_known(data: st.DataObject) -> None:
    signature = data.draw(st.sampled_from(SIGNATURES))
    text = data.draw(st.from_regex(signature.expression, alphabet=st.characters(max_codepoint=126)))
    assert any(marker in text for marker in signature.markers)
    assert signature in known(text)


@pytest.mark.parametrize(
    ("expression", "markers"),
    [
        ("plain text", ["plain text"]),
        (r"[Nn]o space left on (?:device|disk)$", ["No space left on device", "No space left on disk",
                                                   "no space left on device", "no space left on disk"]),
        (r"^killed by \S+ on node", ["killed by "]),
        (r"(?:job|task)s? \d+ died", [" died"]),
        (r"\bexit(?: code)? 137\b", ["exit 137", "exit code 137"]),
        (r"(?i)\bexit(?: code)? 137\b", [" 137"]),
        (r"(?=.*never)lost(?! again)", ["lost"]),
        (r": 69, (?:.*Xid|Xid)", ["Xid"]),
    ],
)  # fmt: skip
def test_markers_are_the_fixed_texts_of_an_expression_that_select_the_fewest_lines(
    expression: str, markers: list[str]
) -> None:
    assert sorted(markers_of(expression)) == markers


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ('["lost", "end", "peer lost"]', "'lost' is not known"),
        ('["hung", "ending", "peer lost"]', "'ending' is not known"),
        ('["hung", "end", "{PEER} lost"]', "'PEER' is not known"),
        ('["hung", "peer lost"]', "not a cause, a weight and an expression"),
        ('["hung", "end", "peer (lost"]', "unterminated subpattern"),
        ('["hung", "end", "(?i)lost"]', "need not contain a fixed text"),
        ('["hung", "end", "(?:peer )?lo?"]', "need not contain a fixed text"),
    ],
)
def test_a_wrong_row_is_refused_with_the_row_and_its_source(row: str, why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)) as refused:
        assert [each.markers for each in read(f'["https://example.org"]\ntexts = [{row}]')[1]]
    assert "https://example.org" in str(refused.value)
    assert row.rpartition(', "')[2].strip('"]') in str(refused.value)


def test_the_advice_is_that_of_the_text_and_else_that_of_its_cause() -> None:
    assert "HF_TOKEN" in of(f"{TRACEBACK}huggingface_hub.errors.GatedRepoError: 401 Client Error.").advice
    port = of("[E1 socket.cpp:1] [c10d] The server socket has failed to bind to [::]:29500 (errno: 98).")
    assert "MASTER_PORT" in port.advice
    assert of("slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2026-02-03T04:05:06 DUE TO TIME LIMIT ***").advice == (
        C.time_limit.advice
    )


def test_every_error_of_cuda_is_recognized_by_its_name_and_by_its_text() -> None:
    table = resources.files("analysis.failures.catalogue") / "gpu_errors.csv"
    rows = list(csv.DictReader(table.read_text(encoding="utf-8").splitlines()))
    assert len(rows) > 100
    for row in rows:
        for text in (f"CUDA error: {row['text']}", f"x: cudaError{row['name']}"):
            assert any(known(text)), text
