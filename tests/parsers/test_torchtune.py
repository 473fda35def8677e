"""torchtune's bar."""

from __future__ import annotations

import pytest

from analysis.parsers import metrics as a
from analysis.parsers.record import Kind
from jobs import metrics as m
from tests.parsers.reading import CORPUS, SAMPLES, column, needs_corpus, records

NAME = "torchtune"


def test_a_bar_that_is_drawn_twice_is_one_step() -> None:
    found = records(SAMPLES / "torchtune.txt", NAME)
    assert column(found, Kind.step, m.STEP) == [1, 2, 3]
    assert column(found, Kind.step, a.EPOCH) == [1, 1, 1]
    assert column(found, Kind.step, m.LOSS) == [2.5, 2.25], "a loss of nan is absent, and a torn bar no step"


def test_the_rate_is_a_time_and_one_that_is_not_known_yet_is_absent() -> None:
    found = records(SAMPLES / "torchtune.txt", NAME)
    assert column(found, Kind.step, a.STEP_TIME_SMOOTHED) == pytest.approx([4.25, 0.25])


@needs_corpus
def test_real_bars_of_two_nodes_give_each_step_once() -> None:
    found = records(CORPUS / "torchtune/excerpts/torchtune_multinode_bar.txt", NAME)
    assert column(found, Kind.step, m.STEP) == [25, 26, 27]
    assert column(found, Kind.step, m.LOSS) == pytest.approx([1.2621808, 1.2436444, 1.1958777])
    assert column(found, Kind.step, a.STEP_TIME_SMOOTHED) == [13.96, 13.96, 14.21]
    assert {each.rank for each in found} == {0}
