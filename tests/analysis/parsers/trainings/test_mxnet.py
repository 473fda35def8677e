"""Lines of MXNet's Speedometer, of its own programs and of MLPerf's."""

from __future__ import annotations

from pathlib import Path

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Text
from jobs import metrics as m
from tests.analysis.parsers.reading import SAMPLES, column, records, texts

NAME = "MXNet Speedometer"
SAMPLE = SAMPLES / "mxnet.txt"
WORKERS = SAMPLES / "mxnet_workers.txt"
VERSIONS = SAMPLES / "mxnet_versions.txt"


def test_where_one_process_prints_its_rate_is_that_of_all() -> None:
    found = records(SAMPLE, NAME)
    assert [each.values for each in found if each.kind is Kind.step] == [
        {a.EPOCH: 0, a.ITERATION: 10, a.SAMPLES_PER_S: 17868.06, m.LOSS: 0.713958},
        {a.EPOCH: 0, a.ITERATION: 20, a.SAMPLES_PER_S: 17297.66, m.LOSS: 0.70015},
        {a.EPOCH: 1, a.ITERATION: 10, a.SAMPLES_PER_S: 19596.12, m.LOSS: 0.681012},
        {a.EPOCH: 1, a.ITERATION: 20, a.SAMPLES_PER_S: 16244.6, m.LOSS: 0.684605},
    ]
    assert {each.rank for each in found if each.kind is Kind.step} == {0}
    assert texts(found, Text.timestamp)[0] == "2026-11-23 02:25:02,412"


def test_an_evaluation_has_its_accuracy_and_its_loss_and_the_arguments_are_read() -> None:
    found = records(SAMPLE, NAME)
    assert column(found, Kind.evaluation, a.EVALUATION_SCORE) == [0.515625, 0.625]
    assert column(found, Kind.evaluation, m.EVALUATION_LOSS) == [0.687761, 0.674557]
    assert texts(found, Text.model) == ["mlp"]
    assert texts(found, Text.precision) == ["float32"]


def test_workers_of_a_parameter_server_each_print_their_own_rate(tmp_path: Path) -> None:
    rates = [3341.48, 2816.69, 2520.16, 2521.97]
    of_workers = records(WORKERS, NAME)
    assert column(of_workers, Kind.step, a.SAMPLES_PER_S) == []
    assert column(of_workers, Kind.step, a.SAMPLES_PER_S_PER_RANK) == rates
    assert [each.rank for each in of_workers if each.kind is Kind.step] == [0, 1, 0, 1]
    assert texts(of_workers, Text.model) == ["mlp"], "repeated arguments are one record"
    # Without the arguments it shows by the second process that prints.
    log = tmp_path / "log"
    log.write_text("".join(WORKERS.read_text().splitlines(keepends=True)[2:]))
    assert column(records(log, NAME), Kind.step, a.SAMPLES_PER_S_PER_RANK) == rates


def test_before_1_3_the_last_batch_alone_is_named_and_without_a_metric_the_rate_stands_alone() -> None:
    steps = [each.values for each in records(SAMPLES / "mxnet_1_2.txt", NAME) if each.kind is Kind.step]
    assert steps[0] == {a.EPOCH: 0, a.ITERATION: 10, a.SAMPLES_PER_S: 47393.27, m.LOSS: 0.713958}
    assert steps[4:] == [
        {a.EPOCH: 0, a.ITERATION: 10, a.SAMPLES_PER_S: 29511.37},
        {a.EPOCH: 0, a.ITERATION: 20, a.SAMPLES_PER_S: 29484.79},
    ]


def test_older_versions_and_gluon_are_read_and_torn_numbers_are_not_believed() -> None:
    assert [each.values for each in records(VERSIONS, NAME)] == [
        {a.EPOCH: 0, a.ITERATION: 50, a.SAMPLES_PER_S: 2650.25, m.LOSS: 6.875},
        # A rate of no time at all, and a number that is cut off.
        {a.EPOCH: 0, a.ITERATION: 100},
        {a.EPOCH: 2, a.ITERATION: 49, a.SAMPLES_PER_S: 812.345678, m.LEARNING_RATE: 0.1},
        {a.EPOCH: 2, a.ITERATION: 99, a.SAMPLES_PER_S: 800.5, m.LOSS: 1.25},
    ]
