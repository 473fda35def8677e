"""DLIO's log and summary.json."""

from __future__ import annotations

import pytest

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Text
from tests.analysis.parsers.reading import SAMPLES, column, records, texts

MIB = 1 << 20


def test_lines_of_one_block_are_one_measurement() -> None:
    found = [each for each in records(SAMPLES / "dlio.txt", "DLIO") if each.kind is Kind.measurement]
    assert texts(found, Text.benchmark) == ["training", "evaluation", "training", "evaluation"]
    assert [each.values for each in found] == [
        {a.EPOCH: 1, a.ACCELERATOR_UTILIZATION: pytest.approx(0.841816), a.SAMPLES_PER_S: 68.5329},
        {a.EPOCH: 1, a.ACCELERATOR_UTILIZATION: pytest.approx(0.891836), a.SAMPLES_PER_S: 91.1979},
        {a.EPOCH: 2, a.ACCELERATOR_UTILIZATION: pytest.approx(0.902354), a.SAMPLES_PER_S: 72.8999},
        {a.EPOCH: 2, a.ACCELERATOR_UTILIZATION: pytest.approx(0.865171), a.SAMPLES_PER_S: 89.5382},
    ]


def test_the_mean_over_evaluations_is_of_all_ranks_though_the_log_prints_an_nth_of_it() -> None:
    found = records(SAMPLES / "dlio.txt", "DLIO")
    assert column(found, Kind.setting, a.RANKS) == [2]
    training, evaluation = (each for each in found if each.kind is Kind.summary)
    assert training.texts == {Text.benchmark: "training", Text.state: "fail"}
    assert training.values == pytest.approx({
        a.ACCELERATOR_UTILIZATION: 0.883939, a.SAMPLES_PER_S: 71.0074, a.IO_BANDWIDTH: 0.2774 * MIB,
    })  # fmt: skip
    assert evaluation.texts == {Text.benchmark: "evaluation"}, "what failed is compared with half of what was reached"
    assert evaluation.values == pytest.approx({
        a.ACCELERATOR_UTILIZATION: 2 * 0.446004, a.SAMPLES_PER_S: 2 * 45.418693, a.IO_BANDWIDTH: 2 * 0.177417 * MIB,
    })  # fmt: skip


def test_a_number_that_is_0_or_none_is_absent_and_checkpoints_are_summaries() -> None:
    found = records(SAMPLES / "dlio_main.txt", "DLIO")
    assert [each.values for each in found if each.kind is Kind.measurement] == [
        {a.EPOCH: 1, a.ACCELERATOR_UTILIZATION: 0.875, a.SAMPLES_PER_S: 40.25},
        {a.EPOCH: 1, a.SAMPLES_PER_S: 12.5},
        {a.EPOCH: 2, a.SAMPLES_PER_S: 41},
    ]
    assert column(found, Kind.setting, a.RANKS) == [4]
    summaries = [each for each in found if each.kind is Kind.summary]
    assert [dict(each.texts) for each in summaries] == [
        {Text.benchmark: "training", Text.state: "fail"},
        {Text.benchmark: "checkpoint save"},
        {Text.benchmark: "evaluation"},
    ]
    assert [each.values for each in summaries] == [
        {a.ACCELERATOR_UTILIZATION: 0.875, a.SAMPLES_PER_S: 40.625, a.IO_BANDWIDTH: 5000 * MIB},
        {a.DURATION: 2.5, a.IO_BANDWIDTH: 2048 * MIB},
        {a.ACCELERATOR_UTILIZATION: 0.5, a.SAMPLES_PER_S: 12.5, a.IO_BANDWIDTH: 100 * MIB},
    ]


def test_a_document_strings_the_evaluations_of_each_rank_together() -> None:
    setting, *measured = records(SAMPLES / "dlio.json", "DLIO (JSON)")
    assert setting.values == {a.RANKS: 2, a.NODES: 1}
    assert [each.kind for each in measured] == [Kind.measurement, Kind.measurement, Kind.summary] * 2
    first_epoch, _, training, first_evaluation, second_evaluation, evaluation = measured
    assert first_epoch.values == pytest.approx(
        {a.EPOCH: 1, a.ACCELERATOR_UTILIZATION: 0.8742482743621343, a.SAMPLES_PER_S: 70.46965432477722}
    )
    assert training.texts == {Text.benchmark: "training", Text.state: "fail"}
    assert first_evaluation.values == pytest.approx({
        a.EPOCH: 1, a.ACCELERATOR_UTILIZATION: 0.44591792472889645 + 0.44629751010853376,
        a.SAMPLES_PER_S: 45.598934579947276 + 45.32741115379835,
    })  # fmt: skip
    assert second_evaluation.values[a.SAMPLES_PER_S] == pytest.approx(44.76908872581721 + 45.97933601179547)
    assert evaluation.values[a.SAMPLES_PER_S] == pytest.approx(2 * 45.41869261783958)
    assert evaluation.texts == {Text.benchmark: "evaluation"}


def test_a_document_has_each_epoch_and_the_mean() -> None:
    setting, first, second, mean = records(SAMPLES / "dlio_main.json", "DLIO (JSON)")
    assert setting.values == {a.RANKS: 4, a.NODES: 2}
    assert first.values == {a.EPOCH: 1, a.ACCELERATOR_UTILIZATION: 0.875, a.SAMPLES_PER_S: 40.25}
    assert second.values == {a.EPOCH: 2, a.ACCELERATOR_UTILIZATION: 0.88}
    assert mean.values == {
        a.ACCELERATOR_UTILIZATION: pytest.approx(0.8775),
        a.SAMPLES_PER_S: 40.25,
        a.IO_BANDWIDTH: 5000 * MIB,
    }
    assert mean.texts == {Text.benchmark: "training", Text.state: "fail"}
