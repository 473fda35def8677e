"""Steadiness: slow steps and drifts that are there are named, noise is not, and the words are exact."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kendalltau, theilslopes

from analysis.load.discover import read_runs
from analysis.metrics.step_variation import slow_steps, step_variation
from analysis.parsers import log_metrics as a
from analysis.report.caveats import warnings
from analysis.report.digest import Digest
from analysis.report.report import report
from jobs import metrics as m
from tests.support.fake_runs import UNMEASURED_STEPS, a_run, ended, prepared, started, step
from tests.support.megatron_logs import megatron, write
from tests.support.report_pages import Page


def by_step(times_s: Sequence[float]) -> dict[int, float]:
    return dict(enumerate(times_s, start=UNMEASURED_STEPS + 1))


def noise(count: int, deviation: float = 0.03, seed: int = 0) -> list[float]:
    """Step times around a second."""
    drawn = random.Random(seed)
    return [math.exp(drawn.gauss(0, deviation)) for _ in range(count)]


def timed_run(path: Path, name: str, times_s: Sequence[float]) -> None:
    """A finished run whose steady steps took these times; the unmeasured ones before them took 100 s each."""
    run = a_run(name, steps=UNMEASURED_STEPS + len(times_s))
    directory = prepared(path, run)
    started(directory, run)
    for number, time_s in enumerate([100.0] * UNMEASURED_STEPS + list(times_s), start=1):
        step(directory, number, step_time_s=time_s)
    ended(directory)


def sentences(path: Path) -> list[str]:
    return warnings(Digest(read_runs([path])))


@given(st.lists(st.integers(1, 40), min_size=m.DRIFT_FEWEST_STEPS, max_size=90))
def test_the_drift_and_its_p_are_those_of_theil_sen_and_of_kendall(times: list[int]) -> None:
    values = step_variation(by_step([float(time) for time in times]))
    blocks = [float(np.median(block)) for block in np.array_split(times, m.DRIFT_BLOCKS)]
    order = range(m.DRIFT_BLOCKS)
    rise = theilslopes(blocks, order).slope * m.DRIFT_BLOCKS / np.median(times)
    p = kendalltau(order, blocks).pvalue
    assert values[m.STEP_TIME_DRIFT] == pytest.approx(rise)
    assert values.get(m.STEP_TIME_DRIFT_P, math.nan) == pytest.approx(p, nan_ok=True)


# --- steps that are far out ------------------------------------------------------------------------------------


def test_one_step_far_out_is_named_and_not_in_the_rate_of_a_run_of_ours(tmp_path: Path) -> None:
    times_s = noise(40)
    timed_run(tmp_path / "s", "alone", times_s)
    timed_run(tmp_path / "s", "torn", [*times_s, 30.0])
    alone, torn = read_runs([tmp_path])
    assert torn.values[m.TOKENS_PER_S] == pytest.approx(alone.values[m.TOKENS_PER_S])
    assert list(torn.far_out_s.values()) == [30.0]
    (named,) = [text for text in sentences(tmp_path) if text.startswith("Far out")]
    assert "torn" in named
    assert "30.00 s" in named
    assert "-41 % with it" in named, "what the rate would be with it"


def test_the_short_last_batch_of_an_epoch_is_named_and_not_in_the_rate(tmp_path: Path) -> None:
    steps = [(step, 115.0 if step == 60 else 500.0) for step in range(1, 101)]
    (run,) = read_runs([write(tmp_path / "train.out", megatron(steps))])
    assert list(run.far_out_s) == [60]
    assert run.values[a.STEPS_PER_S] == pytest.approx(2.0)
    (named,) = [text for text in sentences(tmp_path) if text.startswith("Far out")]
    assert "step 60 with 0.1150 s" in named
    assert "+0.78 % with it" in named


def test_steps_that_are_slow_again_and_again_are_in_the_rate_of_a_run_of_ours(tmp_path: Path) -> None:
    timed_run(tmp_path, "saves", [3.0 if place % 5 == 0 else 1.0 + place % 3 / 1000 for place in range(40)])
    (run,) = read_runs([tmp_path])
    assert not run.far_out_s
    assert run.values[m.TOKENS_PER_S] == pytest.approx(1024 / 1.4, rel=0.01)


# --- slow steps ------------------------------------------------------------------------------------------------


def test_a_slow_step_is_found_and_its_cost_is_what_it_took_beyond_the_median() -> None:
    times_s = by_step([1.0] * 15 + [5.0] + [1.0] * 4)
    assert slow_steps(times_s) == [18]
    values = step_variation(times_s)
    assert values[m.SLOW_STEPS] == 1
    assert values[m.SLOW_STEPS_SHARE] == pytest.approx(4 / 24)


def test_a_step_less_than_a_fifth_slower_is_not_slow_however_steady_the_others() -> None:
    assert slow_steps(by_step([1.0] * 19 + [1.19])) == []
    assert slow_steps(by_step([1.0] * 19 + [1.21])) == [22]


def test_a_step_within_the_noise_of_its_run_is_not_slow() -> None:
    assert slow_steps(by_step([1.0, 2.0] * 10 + [2.2])) == []


def test_slow_steps_do_not_hide_each_other() -> None:
    times_s = noise(30)
    for i in (4, 9, 14, 19, 24, 29):
        times_s[i] = 3.0
    assert len(slow_steps(by_step(times_s))) == 6


def test_too_few_steps_have_neither_slow_ones_nor_a_drift() -> None:
    assert step_variation(by_step([1.0] * 8 + [9.0])) == {}
    assert set(step_variation(by_step(noise(49)))) == {m.SLOW_STEPS, m.SLOW_STEPS_SHARE}


def test_slow_steps_are_named_with_number_steps_worst_and_cost(tmp_path: Path) -> None:
    times_s = [0.5] * 20
    times_s[4], times_s[9] = 2.0, 1.0
    timed_run(tmp_path, "jerky", times_s)
    timed_run(tmp_path, "calm", [0.5] * 20)
    assert sentences(tmp_path) == [
        "Slow steps in 1 of 2 runs: jerky 2 of 20 (steps 7, 12), at worst step 7 with 2.000 s "
        "against a median of 0.5000 s, which cost 16.7 % of the steady time. They count in throughput; slow_steps is "
        "defined below."
    ]


def test_slow_steps_at_equal_distances_state_every_how_many(tmp_path: Path) -> None:
    timed_run(tmp_path, "regular", [2.0 if i % 10 == 9 else 0.5 for i in range(80)])
    (sentence,) = sentences(tmp_path)
    assert "regular 8 of 80 (steps 12, 22, 32, 42, 52 and 3 more, one every 10 steps), at worst step 12" in sentence


def test_of_many_runs_with_slow_steps_those_that_lost_most_are_named(tmp_path: Path) -> None:
    for i in range(5):
        timed_run(tmp_path, f"run{i}", [1.0] * 19 + [2.0 + i])
    (sentence,) = [text for text in sentences(tmp_path) if text.startswith("Slow steps")]
    assert "in 5 of 5 runs: run4 1 of 20 (step 22)" in sentence
    assert "; run3 1 of 20" in sentence
    assert "; and 2 more, in runs.csv." in sentence
    assert "run1" not in sentence


def test_a_long_name_is_cut_in_the_middle(tmp_path: Path) -> None:
    timed_run(tmp_path, f"{'a' * 100}-end", [1.0] * 19 + [2.0])
    (sentence,) = [text for text in sentences(tmp_path) if text.startswith("Slow steps")]
    assert f"in 1 of 1 run: {'a' * 29}…{'a' * 25}-end 1 of 20" in sentence


# --- drift -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rise", [-0.3, 0.1, 0.5])
def test_a_drift_is_recovered_from_noise(rise: float) -> None:
    times_s = [time_s * (1 + rise * i / 199) for i, time_s in enumerate(noise(200))]
    values = step_variation(by_step(times_s))
    assert values[m.STEP_TIME_DRIFT] == pytest.approx(rise / (1 + rise / 2), abs=0.02)
    assert values[m.STEP_TIME_DRIFT_P] < 0.001


def test_slow_steps_make_no_drift() -> None:
    times_s = noise(100)
    times_s[-5:] = [9.0] * 5
    assert abs(step_variation(by_step(times_s))[m.STEP_TIME_DRIFT]) < 0.03


def test_equal_step_times_have_no_drift_and_no_probability_of_one() -> None:
    values = step_variation(by_step([1.0] * 60))
    assert values[m.STEP_TIME_DRIFT] == 0
    assert m.STEP_TIME_DRIFT_P not in values


@pytest.mark.parametrize("seed", range(20))
def test_noise_is_not_reported_as_drift_or_slow_steps(tmp_path: Path, seed: int) -> None:
    timed_run(tmp_path, "noisy", noise(100, 0.03, seed))
    assert sentences(tmp_path) == []


def test_a_drift_is_refused_with_direction_size_and_steps(tmp_path: Path) -> None:
    timed_run(tmp_path, "slowing", [1 + 0.01 * i for i in range(100)])
    timed_run(tmp_path, "calm", noise(100))
    assert sentences(tmp_path) == [
        "The step time drifted over the steady steps, by more than 5 % and with p < 0.001, in 1 of 2 runs: slowing "
        "rose by 66.9 % of its median from step 3 to 102. Throughput then depends on the length of the run."
    ]


def test_a_sure_but_small_drift_is_not_reported(tmp_path: Path) -> None:
    timed_run(tmp_path, "almost", [1 + 0.0003 * i for i in range(100)])
    (run,) = read_runs([tmp_path])
    assert run.values[m.STEP_TIME_DRIFT_P] < 0.001
    assert sentences(tmp_path) == []


# --- where it shows --------------------------------------------------------------------------------------------


def test_unmeasured_steps_are_no_slow_steps(tmp_path: Path) -> None:
    timed_run(tmp_path, "calm", [1.0] * 20)
    (run,) = read_runs([tmp_path])
    assert run.values[m.SLOW_STEPS] == 0
    assert list(run.step_times_s) == list(range(3, 23))


def test_page_and_table_report_slow_steps(tmp_path: Path) -> None:
    timed_run(tmp_path, "<i>jerky</i>", [1.0] * 19 + [2.0])
    page = Page(report([tmp_path], None).read_text())
    assert "Slow steps in 1 of 1 run: <i>jerky</i> 1 of 20" in page.text
    assert "i" not in page.tags()
    header, row = (line.split(",") for line in (tmp_path / "runs.csv").read_text().splitlines())
    assert float(row[header.index("slow_steps")]) == 1
    assert row[header.index("step_time_drift")] == ""
