"""Intervals of a median over repeats: choice, coverage, and their places on the page."""

from __future__ import annotations

import math
import random
from pathlib import Path

import numpy as np
import pytest

from analysis.formatting import shown_spread
from analysis.intervals import (
    Spread,
    coverage,
    detectable,
    interval_rank,
    log_detectable,
    log_deviation,
    paired_interval,
    pairs_needed,
)
from analysis.report.points_table import interval_words
from analysis.report.report import report
from analysis.scaling.groups import scaling_groups
from jobs import metrics as m
from tests.support.fake_runs import a_run, finished_run
from tests.support.measured_runs import measured_run
from tests.support.report_pages import Page


# Repeats, rank of the lower end, coverage in percent: published tables of intervals of a median.
@pytest.mark.parametrize(
    ("n", "k", "percent"),
    [(6, 1, 96.9), (7, 1, 98.4), (8, 1, 99.2), (9, 2, 96.1), (12, 3, 96.1), (17, 5, 95.1), (20, 6, 95.9)],
)
def test_the_interval_is_that_of_published_tables(n: int, k: int, percent: float) -> None:
    assert interval_rank(n) == k
    assert round(100 * coverage(n, k), 1) == percent


def test_fewer_than_six_repeats_have_no_interval() -> None:
    assert [Spread.of([1.0] * n).interval for n in range(1, 6)] == [None] * 5
    assert Spread.of([6.0, 5.0, 4.0, 3.0, 2.0, 1.0]).interval == (1.0, 6.0)


def test_an_interval_leaves_out_as_many_repeats_at_both_ends_as_it_may() -> None:
    assert Spread.of([float(i) for i in range(1, 13)]).interval == (3.0, 10.0)


def test_an_interval_holds_the_median_as_often_as_it_states_also_of_skewed_values() -> None:
    drawn = random.Random(0)
    held = 0
    for _ in range(2000):
        low, high = Spread.of([drawn.expovariate(1.0) for _ in range(9)]).interval or (0.0, 0.0)
        held += low <= 0.6931 <= high
    assert held / 2000 == pytest.approx(coverage(9, 2), abs=0.015)


def test_an_interval_is_scaled_with_its_median() -> None:
    spread = Spread.of([float(i) for i in range(1, 10)]).over(2.0)
    assert (spread.median, spread.interval) == (2.5, (1.0, 4.0))


def test_two_thousand_repeats_have_an_interval() -> None:
    assert 0.95 <= coverage(2000, interval_rank(2000)) < 0.96


def test_an_interval_is_shown_where_it_is_not_smallest_to_largest() -> None:
    nine = Spread.of([1000.0 + i for i in range(9)])
    assert shown_spread(m.TOKENS_PER_S, nine) == "1,004 (1,000 to 1,008; CI 1,001 to 1,007)"
    assert shown_spread(m.TOKENS_PER_S, Spread.of([1000.0 + i for i in range(6)])) == "1,002 (1,000 to 1,005)"


def test_the_page_states_which_interval_and_how_sure(tmp_path: Path) -> None:
    for nodes, repeats in ((1, 9), (2, 6), (4, 2)):
        for repeat in range(1, repeats + 1):
            run = a_run(f"n{nodes}-r{repeat}", nodes=nodes, repeat=repeat)
            finished_run(tmp_path, run, step_time_s=(1 + 0.01 * repeat) / nodes)
    text = Page(report([tmp_path], None).read_text()).text
    message = (
        "CI: confidence interval of the median, by order statistics, which assumes that repeats are independent and no "
        "distribution: n = 6: repeats 1 to 6 by size, 96.9 %; n = 9: repeats 2 to 8 by size, 96.1 %; not shown where "
        "it is smallest to largest. Points of fewer than 6 repeats have none."
    )
    assert message in text
    assert message in (tmp_path / "report.md").read_text()
    assert "CI 948.1 to 1,004" in text


def test_no_line_has_no_words_on_intervals() -> None:
    assert interval_words([]) == ""


def test_a_page_without_intervals_states_why() -> None:
    groups = scaling_groups([measured_run(1, 1000.0, repeat=1), measured_run(1, 1100.0, repeat=2)])
    assert interval_words(groups) == (
        "Medians have no confidence interval: without an assumed distribution that takes 6 repeats, and no point has "
        "more than 2."
    )


@pytest.mark.parametrize(("n", "deviation"), [(3, 0.02), (5, 0.05), (5, 0.4), (20, 0.1)])
def test_a_detectable_difference_is_found_four_times_of_five(n: int, deviation: float) -> None:
    drawn = np.random.default_rng(1)
    shape = drawn.normal(size=n)
    ratios = np.exp(deviation * (shape - shape.mean()) / shape.std(ddof=1))
    difference = detectable(list(ratios))
    assert difference is not None
    campaigns = np.exp(np.log1p(difference) + drawn.normal(scale=deviation, size=(1500, n)))
    intervals = [paired_interval(list(each)) for each in campaigns]
    found = np.mean([interval is not None and interval[0] > 1 for interval in intervals])
    assert 0.75 < found < 0.87


def test_as_many_pairs_as_are_needed_find_the_difference_and_one_less_do_not() -> None:
    ratios = [0.95, 1.02, 1.08, 0.97, 1.01]
    needed = pairs_needed(ratios, 0.03)
    assert needed is not None
    assert needed > len(ratios)
    deviation = log_deviation(ratios)
    assert log_detectable(deviation, needed, 0.95) <= math.log(1.03) < log_detectable(deviation, needed - 1, 0.95)
    assert pairs_needed([0.01, 100.0, 1.0], 0.0001) is None


def test_pairs_without_a_spread_have_no_detectable_difference() -> None:
    assert detectable([1.0, 1.1]) is None
    assert detectable([1.0, 1.0, 1.0]) is None
