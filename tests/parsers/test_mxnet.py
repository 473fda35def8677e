"""Lines of MXNet's Speedometer, of its own programs and of MLPerf's."""

from __future__ import annotations

import re
import statistics
from pathlib import Path

import pytest

from analysis.parsers import metrics as a
from analysis.parsers.record import Kind, Text
from jobs import metrics as m
from tests.parsers.reading import CORPUS, SAMPLES, column, needs_corpus, records, texts

NAME = "MXNet Speedometer"
SAMPLE = SAMPLES / "mxnet.txt"
VERSIONS = SAMPLES / "mxnet_versions.txt"
DELL = CORPUS / "mlperf" / "v3.0_Dell_resnet"


def test_where_one_process_prints_its_rate_is_that_of_all() -> None:
    first, second, third = (each for each in records(SAMPLE, NAME) if each.kind is Kind.step)
    assert first.values == {a.EPOCH: 0, a.ITERATION: 20, a.SAMPLES_PER_S: 1920.5}
    assert second.values == {a.EPOCH: 0, a.ITERATION: 40, a.SAMPLES_PER_S: 3840.25, m.LOSS: 6.875}
    assert (second.rank, second.line) == (0, 4)
    assert second.texts == {Text.timestamp: "2026-01-02 03:04:16,250"}
    # A rate of no time at all, and a number that is cut off.
    assert third.values == {a.EPOCH: 0, a.ITERATION: 60}


def test_an_evaluation_has_its_accuracy_and_arguments_that_repeat_are_told_once() -> None:
    found = records(SAMPLE, NAME)
    assert [each.values for each in found if each.kind is Kind.evaluation] == [{a.EPOCH: 0, a.EVALUATION_SCORE: 0.0625}]
    assert texts(found, Text.model) == ["resnet-v1b"]
    assert texts(found, Text.precision) == ["float16"]


def test_workers_of_a_parameter_server_each_tell_their_own_rate(tmp_path: Path) -> None:
    of_workers = records(VERSIONS, NAME)
    assert column(of_workers, Kind.step, a.SAMPLES_PER_S) == []
    assert column(of_workers, Kind.step, a.SAMPLES_PER_S_PER_RANK)[:2] == [2650.25, 2600.75]
    assert [each.rank for each in of_workers if each.kind is Kind.step][:2] == [1, 0]
    # Without the arguments it shows by the second process that prints.
    log = tmp_path / "log"
    log.write_text("".join(VERSIONS.read_text().splitlines(keepends=True)[1:]))
    assert column(records(log, NAME), Kind.step, a.SAMPLES_PER_S_PER_RANK)[:2] == [2650.25, 2600.75]


def test_older_versions_and_gluon_are_read_and_torn_numbers_are_not_believed() -> None:
    steps = [each.values for each in records(VERSIONS, NAME) if each.kind is Kind.step]
    rate = a.SAMPLES_PER_S_PER_RANK
    assert steps[2:] == [
        {a.EPOCH: 1, a.ITERATION: 100, rate: 2700.5},
        {a.EPOCH: 2, a.ITERATION: 49, rate: 812.345678, m.LEARNING_RATE: 0.1},
        {a.EPOCH: 2, a.ITERATION: 99, rate: 800.5, m.LOSS: 1.25},
    ]
    assert column(records(VERSIONS, NAME), Kind.evaluation, m.EVALUATION_LOSS) == [1.5]


@needs_corpus
@pytest.mark.parametrize("system", ["4xXE8545x4A100-SXM-40GB", "16xXE8545x4A100-SXM-40GB"])
def test_an_epoch_of_mlperf_takes_as_long_as_its_rate_says(system: str) -> None:
    log = DELL / system / "result_0.txt"
    found = records(log, NAME, beside=("MLPerf MLLOG",))
    images_per_s = statistics.median(column(found, Kind.step, a.SAMPLES_PER_S))
    epochs_s = [float(time) for time in re.findall(r"Time cost=([\d.]+)", log.read_text())]
    assert 1_281_167 / images_per_s == pytest.approx(statistics.median(epochs_s), rel=0.02)
    assert set(texts(found, Text.precision)) == {"float16"}
