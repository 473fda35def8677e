"""Intervals that hold at every look together."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.special import stdtrit

from analysis.intervals import FEWEST_FOR_MEAN
from analysis.sequential import SPENDING, critical_t, pairs_until, sequential_intervals


def test_the_first_look_is_students_t_and_later_ones_ask_for_more_than_one_look_alone() -> None:
    spent = 1 - 2**-SPENDING
    assert critical_t(3, 0.05) == pytest.approx(stdtrit(2, 1 - 0.05 * spent / 2), rel=0.005)
    assert all(critical_t(n, 0.05) > stdtrit(n - 1, 0.975) for n in range(3, 21))


@pytest.mark.parametrize("error", [0.05, 0.025])
def test_normal_pairs_of_equal_mean_leave_an_interval_with_the_stated_probability(error: float) -> None:
    count, looks = 100_000, range(FEWEST_FOR_MEAN, 21)
    logs = np.random.default_rng(1).standard_normal((count, max(looks)))
    crossed = np.zeros(count, bool)
    shares = []
    for n in looks:
        t = logs[:, :n].mean(1) / logs[:, :n].std(1, ddof=1) * math.sqrt(n)
        crossed |= np.abs(t) > critical_t(n, error)
        shares.append(crossed.mean())
    spent = [error * (1 - (n - FEWEST_FOR_MEAN + 2) ** -SPENDING) for n in looks]
    assert np.allclose(shares, spent, atol=4 * math.sqrt(error / count))


def test_later_pairs_leave_earlier_intervals_as_they_are_and_only_narrow_them() -> None:
    ratios = list(np.exp(0.01 * np.random.default_rng(2).standard_normal(12)))
    found = sequential_intervals(ratios, 0.05)
    assert len(found) == 10
    assert sequential_intervals(ratios[:7], 0.05) == found[:5]
    assert all(a[0] <= b[0] and b[1] <= a[1] for a, b in itertools.pairwise(found))
    assert sequential_intervals([1.5] * 9, 0.05) == [], "pairs that do not vary prove nothing"


def test_the_pairs_until_an_interval_is_narrow_enough_are_foreseen() -> None:
    n = pairs_until(0.01, 0.02, 0.05, 50)
    assert n is not None
    assert critical_t(n, 0.05) * 0.01 / math.sqrt(n) <= 0.02 < critical_t(n - 1, 0.05) * 0.01 / math.sqrt(n - 1)
    assert pairs_until(0.5, 0.02, 0.05, 50) is None
