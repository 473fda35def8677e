"""torchtune's bar."""

from __future__ import annotations

import pytest

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind
from jobs import metrics as m
from tests.analysis.parsers.reading import SAMPLES, column, records

NAME = "torchtune"
METRICS = "torchtune (metric logger)"


def test_a_bar_that_is_drawn_twice_is_one_step() -> None:
    found = records(SAMPLES / "torchtune.txt", NAME)
    assert column(found, Kind.step, m.STEP) == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert column(found, Kind.step, a.EPOCH) == [1, 1, 1, 1, 1, 2, 2, 2, 2, 2], "the first bar is drawn once more later"
    assert column(found, Kind.step, m.LOSS)[:2] == [10.44729232788086, 10.25253963470459]
    assert column(found, Kind.step, m.LOSS)[-1] == 8.277865409851074


def test_the_rate_of_a_bar_is_a_time_per_step() -> None:
    found = records(SAMPLES / "torchtune.txt", NAME)
    assert column(found, Kind.step, a.STEP_TIME_SMOOTHED) == pytest.approx(
        [1.28, 1.09, 1.64, 1.91, 2.06, 1 / 1.72, 1 / 1.38, 1.18, 1.15, 1.55]
    )


def test_a_rate_and_a_loss_that_are_not_known_are_absent() -> None:
    found = records(SAMPLES / "torchtune_versions.txt", NAME, beside=(METRICS,))
    assert column(found, Kind.step, m.STEP) == [1, 2, 3]
    assert column(found, Kind.step, m.LOSS) == [2.5, 2.25], "a loss of nan is absent, and a torn bar no step"
    assert column(found, Kind.step, a.STEP_TIME_SMOOTHED) == pytest.approx([4.25, 0.25])


def test_the_file_of_the_metric_logger_has_speed_and_gradient_norm_of_each_step() -> None:
    found = records(SAMPLES / "torchtune_log.txt", METRICS)
    assert column(found, Kind.step, m.STEP) == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert found[5].line == 6
    assert found[5].values == {
        m.STEP: 6,
        m.LOSS: 9.34914779663086,
        m.LEARNING_RATE: 0.01,
        m.TOKENS_PER_S_PER_RANK: 375.733642578125,
        m.GRADIENT_NORM: 0.7082120180130005,
    }


def test_metrics_that_are_printed_amid_the_bars_are_of_the_same_steps() -> None:
    path = SAMPLES / "torchtune_stdout.txt"
    bars, metrics = records(path, NAME, beside=(METRICS,)), records(path, METRICS, beside=(NAME,))
    for found in (bars, metrics):
        assert column(found, Kind.step, m.STEP) == [1, 2, 3, 4, 5, 6]
        assert column(found, Kind.step, m.LOSS)[-1] == 9.35390853881836
    assert column(metrics, Kind.step, m.TOKENS_PER_S_PER_RANK)[0] == 1905.2061767578125


def test_memory_is_printed_in_gib_and_a_speed_of_nothing_is_absent() -> None:
    (found,) = records(SAMPLES / "torchtune_versions.txt", METRICS, beside=(NAME,))
    assert found.values == {
        m.STEP: 4, m.LOSS: 2.125, m.LEARNING_RATE: 2e-5, m.MEMORY_PEAK: 2.5 * 2**30, m.MEMORY_RESERVED_PEAK: 4 * 2**30,
    }  # fmt: skip
