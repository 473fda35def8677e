"""PaddleClas's lines, of dynamic and static graphs."""

from __future__ import annotations

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Text
from jobs import metrics as m
from tests.analysis.parsers.reading import SAMPLES, column, records

NAME = "PaddleClas"
SAMPLE = SAMPLES / "paddleclas.txt"


def test_a_step_has_its_time_and_the_rate_of_one_gpu() -> None:
    first, second, *_ = (each for each in records(SAMPLE, NAME) if each.kind is Kind.step)
    assert first.texts == {Text.timestamp: "2026/03/04 05:06:07"}
    assert first.values == {
        a.EPOCH: 1, a.ITERATION: 0, m.LEARNING_RATE: 0.1, m.LOSS: 7.025, m.STEP_TIME: 6.25, a.DATA_TIME: 3.5,
        a.SAMPLES_PER_S_PER_RANK: 40.96,
    }  # fmt: skip
    assert m.LOSS not in second.values, "a loss of nan is absent"


def test_static_graphs_and_old_versions_print_the_same_in_another_form() -> None:
    static, old = [each for each in records(SAMPLE, NAME) if each.kind is Kind.step][2:]
    assert static.values == {
        a.EPOCH: 0, a.ITERATION: 20, m.LOSS: 6.875, m.LEARNING_RATE: 0.256, m.STEP_TIME: 0.125, a.DATA_TIME: 0.00125,
        a.SAMPLES_PER_S_PER_RANK: 2048,
    }  # fmt: skip
    assert old.values == {
        a.EPOCH: 1, a.ITERATION: 30, m.LOSS: 6.25, m.LEARNING_RATE: 0.1, m.STEP_TIME: 0.25, a.DATA_TIME: 0.00125,
    }, "the line ends within 253."  # fmt: skip


def test_an_epoch_has_a_summary_and_an_evaluation_counts_as_a_whole() -> None:
    found = records(SAMPLE, NAME)
    assert [each.values for each in found if each.kind is Kind.summary] == [
        {a.EPOCH: 1, m.LOSS: 5.25},
        {a.EPOCH: 0, m.LOSS: 6.5, m.STEP_TIME: 0.12625, a.DATA_TIME: 0.0025, a.SAMPLES_PER_S_PER_RANK: 2027.5},
    ]
    assert [each.values for each in found if each.kind is Kind.evaluation] == [
        {a.EPOCH: 1, m.EVALUATION_LOSS: 3.75, a.EVALUATION_SCORE: 0.3125},
        {m.EVALUATION_LOSS: 6.25, a.EVALUATION_SCORE: 0.0125},
    ]


def test_what_two_ranks_of_paddleclas_really_print_is_read() -> None:
    found = records(SAMPLES / "paddleclas_2_4.txt", NAME)
    assert [each.kind.name for each in found] == ["setting"] + ["step", "step", "summary", "evaluation"] * 2
    assert column(found, Kind.setting, a.RANKS) == [2]
    assert column(found, Kind.step, a.EPOCH) == [1, 1, 2, 2]
    assert column(found, Kind.step, a.ITERATION) == [0, 2, 0, 2]
    assert column(found, Kind.step, m.STEP_TIME) == [0.20772, 0.15205, 0.14367, 0.14087]
    assert column(found, Kind.step, a.SAMPLES_PER_S_PER_RANK) == [38.51258, 52.61311, 55.68339, 56.7917]
    assert column(found, Kind.summary, m.LOSS) == column(found, Kind.step, m.LOSS)[1::2], "of the epoch so far"
    assert column(found, Kind.evaluation, m.EVALUATION_LOSS) == [1.38645, 1.38657]


def test_what_a_static_graph_really_prints_is_read() -> None:
    found = records(SAMPLES / "paddleclas_2_4_static.txt", NAME)
    assert [each.kind.name for each in found] == (["step"] * 3 + ["summary", "evaluation"]) * 2
    assert column(found, Kind.step, a.ITERATION) == [2, 4, 6] * 2
    assert column(found, Kind.step, m.LOSS) == [1.7849, 1.5252, 1.8068, 1.6806, 1.3439, 1.4731]
    assert column(found, Kind.step, a.SAMPLES_PER_S_PER_RANK)[-1] == 93.00241
    assert column(found, Kind.summary, m.STEP_TIME) == [0.07451, 0.08602]
    assert column(found, Kind.summary, a.SAMPLES_PER_S_PER_RANK) == [], "2.4 leaves it out"
    assert column(found, Kind.evaluation, a.EVALUATION_SCORE) == [0.25, 0.25]
