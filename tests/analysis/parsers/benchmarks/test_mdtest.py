"""mdtest's table of rates."""

from __future__ import annotations

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Text
from tests.analysis.parsers.reading import SAMPLES, column, records, texts

NAME = "mdtest"
LAUNCHES = [3, 29, 59, 79]
"""The lines of `mdtest_4_0.txt` that begin a run."""
OPERATIONS = {"write": "file creation", "stat": "file stat", "read": "file read", "delete": "file removal"}


def test_operations_that_were_run_have_their_mean_rate() -> None:
    found = records(SAMPLES / "mdtest_4_0.txt", NAME)
    first = [each for each in found if each.line < LAUNCHES[1]]
    assert {each.texts[Text.benchmark]: each.values for each in first if each.kind is Kind.measurement} == {
        "directory creation": {a.IO_OPERATIONS_PER_S: 30496.624},
        "directory stat": {a.IO_OPERATIONS_PER_S: 735786.315},
        "directory rename": {a.IO_OPERATIONS_PER_S: 86260.652},
        "directory removal": {a.IO_OPERATIONS_PER_S: 774.512},
        "file creation": {a.IO_OPERATIONS_PER_S: 27110.923},
        "file stat": {a.IO_OPERATIONS_PER_S: 648470.006},
        "file read": {a.IO_OPERATIONS_PER_S: 462947.461},
        "file removal": {a.IO_OPERATIONS_PER_S: 223824.254},
        "tree creation": {a.IO_OPERATIONS_PER_S: 31114.011},
        "tree removal": {a.IO_OPERATIONS_PER_S: 404.944},
    }


def test_each_launch_prints_its_version_ranks_and_nodes() -> None:
    found = [each for each in records(SAMPLES / "mdtest_4_0.txt", NAME) if each.kind is Kind.setting]
    assert [each.line for each in found] == LAUNCHES
    assert texts(found, Text.software) == ["mdtest-4.0.0rc1+dev"] * 4
    assert column(found, Kind.setting, a.RANKS) == [2] * 4
    assert column(found, Kind.setting, a.NODES) == [1] * 4


def test_no_time_is_taken_for_a_rate() -> None:
    found = records(SAMPLES / "mdtest_4_0.txt", NAME)
    both = [each for each in found if LAUNCHES[1] < each.line < LAUNCHES[2]]
    assert texts(both, Text.benchmark) == ["file creation", "file stat", "tree creation"]
    assert column(both, Kind.measurement, a.IO_OPERATIONS_PER_S) == [12846.088, 741760.575, 13704.698]
    assert [each for each in found if each.line > LAUNCHES[3]] == []


def test_with_statistics_of_ranks_the_rate_is_that_of_all() -> None:
    found = [each for each in records(SAMPLES / "mdtest_4_0.txt", NAME) if LAUNCHES[2] < each.line < LAUNCHES[3]]
    assert texts(found, Text.benchmark) == [
        "file creation", "file stat", "file read", "file removal", "tree creation", "tree removal"
    ]  # fmt: skip
    assert column(found, Kind.measurement, a.IO_OPERATIONS_PER_S) == [
        65689.961, 752341.525, 281970.017, 111181.021, 13888.424, 2387.196
    ]  # fmt: skip


def test_older_tables_are_read_and_a_torn_row_is_not() -> None:
    found = records(SAMPLES / "mdtest.txt", NAME)
    assert texts(found, Text.software) == ["mdtest-3.4.0", "mdtest-3.0.0"]
    assert column(found, Kind.setting, a.RANKS) == [16, 4]
    assert column(found, Kind.setting, a.NODES) == [2, 1]
    assert texts(found, Text.benchmark) == ["directory creation", "file stat"]
    assert column(found, Kind.measurement, a.IO_OPERATIONS_PER_S) == [2000, 3000]
