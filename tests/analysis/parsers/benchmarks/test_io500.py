"""IO500's phases and scores, from the printed summary and from result.txt."""

from __future__ import annotations

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Text
from tests.analysis.parsers.reading import SAMPLES, records, texts

NAME = "IO500"
GIB = 1 << 30


def test_each_phase_is_a_measurement_and_one_of_0_only_took_time() -> None:
    found = [each for each in records(SAMPLES / "io500.txt", NAME) if each.kind is Kind.measurement]
    assert texts(found, Text.benchmark) == ["ior-easy-write", "mdtest-easy-write", "ior-hard-write", "find"]
    assert [each.values for each in found] == [
        {a.IO_BANDWIDTH: 2.5 * GIB, a.DURATION: 301.25},
        {a.IO_OPERATIONS_PER_S: 12250, a.DURATION: 305},
        {a.DURATION: 10.5},
        {a.IO_OPERATIONS_PER_S: 1500500, a.DURATION: 12.125},
    ]


def test_what_breaks_the_rules_is_invalid() -> None:
    found = records(SAMPLES / "io500.txt", NAME)
    assert [Text.state in each.texts for each in found] == [False, True, True, False, True, True]
    score, old = (each for each in found if each.kind is Kind.summary)
    assert score.values == {a.IO_BANDWIDTH: 1.5 * GIB, a.IO_OPERATIONS_PER_S: 24000, a.IO500_SCORE: 6}
    assert old.values[a.IO_BANDWIDTH] == GIB, "the old label GB/s is wrong"
    assert old.rank == 0


def test_result_txt_contains_the_same() -> None:
    found = records(SAMPLES / "io500_result.txt", NAME)
    assert [(each.kind, each.texts, each.values) for each in found] == [
        (Kind.measurement, {Text.benchmark: "ior-easy-write"}, {a.IO_BANDWIDTH: 2.5 * GIB, a.DURATION: 301.25}),
        (
            Kind.measurement,
            {Text.benchmark: "find", Text.state: "invalid"},
            {a.IO_OPERATIONS_PER_S: 1500500, a.DURATION: 12.125},
        ),
        (
            Kind.summary,
            {Text.state: "invalid"},
            {a.IO_BANDWIDTH: 1.5 * GIB, a.IO_OPERATIONS_PER_S: 24000, a.IO500_SCORE: 6},
        ),
    ]
