"""mdtest's table of rates."""

from __future__ import annotations

import re

import pytest

from analysis.parsers import metrics as a
from analysis.parsers.record import Kind, Text
from tests.parsers.reading import CORPUS, SAMPLES, column, needs_corpus, records, texts

NAME = "mdtest"
CASE = CORPUS / "ior" / "io500_aion_2021"
OPERATIONS = {"write": "file creation", "stat": "file stat", "read": "file read", "delete": "file removal"}


def test_operations_that_were_run_have_their_mean_rate_and_no_time_is_taken_for_one() -> None:
    found = records(SAMPLES / "mdtest.txt", NAME)
    assert texts(found, Text.software) == ["mdtest-4.0.0", "mdtest-3.0.0"]
    assert column(found, Kind.setting, a.RANKS) == [16, 4]
    assert column(found, Kind.setting, a.NODES) == [2, 1]
    assert texts(found, Text.benchmark) == ["directory creation", "file creation", "file stat"]
    assert column(found, Kind.measurement, a.IO_OPERATIONS_PER_S) == [2000, 1250, 3000]


@needs_corpus
def test_real_tables_say_what_io500_says_of_them() -> None:
    said = re.findall(r"\[RESULT\] +mdtest-(\S+)-(\S+) +([\d.]+) kIOPS", (CASE / "result_summary.txt").read_text())
    assert len(said) == 7
    for size, phase, thousands in said:
        found = records(CASE / f"mdtest-{size}-{phase}.txt", NAME)
        rates = {each.texts[Text.benchmark]: each.values for each in found if each.kind is Kind.measurement}
        # In the delete phase the tree is removed too, in the write phase it is made.
        assert rates[OPERATIONS[phase]][a.IO_OPERATIONS_PER_S] == pytest.approx(float(thousands) * 1000)
        assert column(found, Kind.setting, a.RANKS) == [128]
