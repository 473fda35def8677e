"""The core of comparisons: matching, ratios with intervals, and directions."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_1samp, ttest_ind

from analysis.compare.core import Ratio, change_direction, clauses, matched, relative_change, unequal_keys
from analysis.intervals import welch_interval

throughputs = st.lists(st.floats(1, 1e6), min_size=3, max_size=8)


def test_members_are_matched_by_key_in_the_order_of_a_then_b() -> None:
    assert list(matched([3, 1], [2, 11, 13], key=lambda number: number % 10).items()) == [
        (3, ([3], [13])), (1, ([1], [11])), (2, ([], [2]))
    ]  # fmt: skip


def test_differences_leave_out_ignored_keys_and_count_the_rest() -> None:
    keys = unequal_keys({"a": 1, "b": 2, "c": 3}, {"b": 3, "c": 3, "d": None, "e": 5}, ignored={"a"})
    assert keys == ["b", "e"]
    assert clauses([*keys, "f"], 2) == "b; e; and 1 more"
    assert clauses(keys, 2) == "b; e"


@given(st.lists(st.floats(0.5, 2), min_size=3, max_size=8))
def test_the_interval_of_pairs_is_students_of_the_logarithms(ratios: list[float]) -> None:
    logs = [math.log(ratio) for ratio in ratios]
    if max(logs) - min(logs) < 1e-6:
        return
    expected = ttest_1samp(logs, 0).confidence_interval(0.99)
    interval = Ratio.of_pairs(ratios, 0.99).interval
    assert interval is not None
    assert [math.log(bound) for bound in interval] == pytest.approx([expected.low, expected.high], rel=1e-6, abs=1e-9)


def test_a_change_equal_to_the_tolerance_is_within_it() -> None:
    changes = [relative_change(value, 0.5) for value in (0.4, 0.6, 0.39, 0.61)]
    assert [change_direction(change, 0.2) for change in changes] == [0, 0, -1, 1]


@given(throughputs, throughputs)
def test_the_interval_is_welchs_of_the_logarithms(a: list[float], b: list[float]) -> None:
    logs = [[math.log(value) for value in side] for side in (a, b)]
    if min(max(side) - min(side) for side in logs) < 1e-6:
        return
    expected = ttest_ind(logs[1], logs[0], equal_var=False).confidence_interval(0.95)
    interval = welch_interval(a, b)
    assert interval is not None
    assert [math.log(bound) for bound in interval] == pytest.approx([expected.low, expected.high], rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("noise", [(0.02, 0.02), (0.01, 0.05)])
def test_about_one_in_twenty_comparisons_of_equal_sides_is_significant(noise: tuple[float, float]) -> None:
    draw = random.Random(1)
    wrong = 0
    for _ in range(2000):
        a, b = ([draw.lognormvariate(8, spread) for _ in range(3)] for spread in noise)
        wrong += Ratio.of_sides(a, b).direction != 0
    assert 0.02 < wrong / 2000 < 0.07


@given(throughputs, throughputs)
def test_swapping_a_and_b_turns_every_number_over(a: list[float], b: list[float]) -> None:
    there, back = Ratio.of_sides(a, b), Ratio.of_sides(b, a)
    assert [back.middle, back.high, back.low] == pytest.approx([1 / there.middle, 1 / there.low, 1 / there.high])
    assert back.direction == -there.direction
    assert there.low <= there.middle * (1 + 1e-12)
    assert there.middle <= there.high * (1 + 1e-12)
