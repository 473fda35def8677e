"""Which points differ: what is called fastest, the places of lines, and a gain, from repeats and from steps."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.load.discover import read_runs
from analysis.report.digest import Digest
from analysis.report.headline import headlines
from analysis.report.points_table import PLACE, point_table
from analysis.run import RunResult
from analysis.scaling.groups import Point, scaling_groups
from analysis.scaling.places import EVERYTHING, differ, places, span
from jobs import metrics as m
from tests.support.fake_runs import a_run, ended, prepared, started, step


def of_steps(*times_s: float) -> RunResult:
    """Return a run that did 1,000 tokens in each step."""
    rate = 1000 * len(times_s) / sum(times_s) if times_s else 1000.0
    return RunResult(Path("run"), values={m.TOKENS_PER_S: rate}, step_times_s=dict(enumerate(times_s, start=1)))


def of_rates(*rates: float) -> Point:
    """Return a point whose repeats recorded no steps."""
    return Point(1, 1, tuple(RunResult(Path(str(i)), values={m.TOKENS_PER_S: rate}) for i, rate in enumerate(rates)))


def one(*times_s: float) -> Point:
    return Point(1, 1, (of_steps(*times_s),))


def noisy(mean_s: float, share: float, count: int, seed: int) -> Point:
    draw = random.Random(seed)
    return one(*(mean_s * (1 + share * draw.uniform(-1, 1)) for _ in range(count)))


DRIFTING = [1.0 + 0.01 * i for i in range(40)]
CASES = [
    # one run each
    ("no steps at all", of_rates(100.0), of_rates(900.0), False),
    ("three steps", one(1.0, 1.0, 1.0), one(2.0, 2.0, 2.0), False),
    ("four equal steps", one(*[1.0] * 4), one(*[1.1] * 4), True),
    ("equal steps", one(*[1.0] * 9), one(*[1.0] * 9), False),
    ("rounding", one(*[0.1] * 9), one(*[0.3 / 3] * 9), False),
    ("40 steps of 25 % noise, 6 % apart", noisy(1.0, 0.25, 40, 1), noisy(1.06, 0.25, 40, 2), False),
    ("40 steps of 1 % noise, 6 % apart", noisy(1.0, 0.01, 40, 1), noisy(1.06, 0.01, 40, 2), True),
    ("40 steps of 25 % noise, 3 times apart", noisy(1.0, 0.25, 40, 1), noisy(3.0, 0.25, 40, 2), True),
    ("five steps that overlap", one(1.0, 1.1, 1.2, 1.3, 1.4), one(1.35, 1.5, 1.6, 1.7, 1.8), False),
    ("five steps apart", one(1.0, 1.1, 1.2, 1.3, 1.4), one(1.5, 1.6, 1.7, 1.8, 1.9), True),
    ("half slow, half fast", one(*[1.0] * 20, *[1.4] * 20), one(*[1.2] * 40), False),
    ("drift by 40 %", one(*DRIFTING), one(*(1.1 * each for each in DRIFTING)), False),
    ("one slow step of 40", one(*[1.0] * 39, 9.0), one(*[1.3] * 40), True),
    # few repeats: their range
    ("two apart", of_rates(100, 110), of_rates(90, 95), True),
    ("two overlap", of_rates(100, 110), of_rates(90, 105), False),
    ("two touch", of_rates(100, 110), of_rates(90, 100), False),
    ("five, one of them slow", of_rates(100, 101, 102, 103, 50), of_rates(90, 91, 92), False),
    ("two alike by luck", Point(1, 1, (of_steps(0.8, 1.2, 0.9, 1.1),) * 2), of_rates(950, 960), False),
    ("one run without steps beside six", of_rates(500.0), of_rates(100, 101, 102, 103, 104, 105), False),
    ("one run with steps beside six", one(*[2.0] * 9), of_rates(100, 101, 102, 103, 104, 105), True),
    # six and more: the interval of the median, which leaves out one of nine at each end
    ("nine, one slow", of_rates(*range(100, 108), 50), of_rates(*range(90, 98)), True),
    ("eight and eight overlap", of_rates(*range(100, 108)), of_rates(*range(97, 105)), False),
    ("six and six apart", of_rates(*range(100, 106)), of_rates(*range(90, 96)), True),
    ("six and six touch", of_rates(*range(100, 106)), of_rates(*range(95, 101)), False),
]


@pytest.mark.parametrize(("a", "b", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_points_differ_only_if_repeats_or_steps_tell_them_apart(a: Point, b: Point, expected: bool) -> None:
    assert differ(a, b) is differ(b, a) is expected
    assert (places([a, b]) == [(1, 2), (1, 2)]) is not expected


@given(st.lists(st.lists(st.floats(1, 100), min_size=1, max_size=7), min_size=2, max_size=8))
def test_places_agree_with_what_can_be_told_apart_two_by_two(rates: list[list[float]]) -> None:
    points = [of_rates(*each) for each in rates]
    for i, (best, worst) in enumerate(places(points)):
        others = [each for j, each in enumerate(points) if j != i]
        equal = sum(not differ(points[i], each) for each in others)
        assert 1 <= best <= worst <= len(points)
        assert worst - best == equal
    assert span(of_rates(5.0)) == EVERYTHING == (0.0, math.inf)


def written(path: Path, name: str, times_s: Sequence[float], parallelism: str, ranks: int = 1) -> None:
    """Write a run with these steady steps."""
    run = a_run(name, steps=len(times_s) + 2, parallelism=parallelism, ranks_per_node=ranks)
    directory = prepared(path, run)
    started(directory, run)
    for number, time_s in enumerate([9.0, 9.0, *times_s], start=1):
        step(directory, number, step_time_s=time_s)
    ended(directory, step=run.job.steps)


def told(path: Path) -> tuple[str, list[str]]:
    """Return the headline and the places of the lines."""
    runs = read_runs([path])
    groups = scaling_groups(runs)
    headings, rows = point_table(groups)
    return " ".join(headlines(Digest(runs, groups))), [row.cells[headings.index(PLACE)] for row in rows]


def noise(mean_s: float, seed: int) -> list[float]:
    draw = random.Random(seed)
    return [mean_s * (1 + 0.25 * draw.uniform(-1, 1)) for _ in range(40)]


def test_single_runs_whose_steps_overlap_have_no_fastest_no_place_and_no_times(tmp_path: Path) -> None:
    written(tmp_path, "a", noise(1.0, 1), "ddp")
    written(tmp_path, "b", noise(1.06, 2), "fsdp_full")
    words, found = told(tmp_path)
    assert "the highest of 2 points, not distinguishable from 1 other; no configuration" in words
    assert "fastest" not in words
    assert "times" not in words
    assert found == ["1 to 2 of 2"] * 2


def test_a_gain_within_the_noise_of_the_steps_is_none(tmp_path: Path) -> None:
    written(tmp_path, "a", noise(1.06, 1), "ddp")
    written(tmp_path, "b", noise(1.0, 2), "ddp", ranks=2)
    runs = read_runs([tmp_path])
    (words,) = headlines(Digest(runs, scaling_groups(runs)))
    assert "gains nothing from 1 to 2 ranks" in words
    assert "times, not distinguishable, " in words
    assert "speeds up" not in words


def test_a_third_line_that_is_clearly_slower_has_its_place(tmp_path: Path) -> None:
    written(tmp_path, "a", noise(1.0, 1), "ddp")
    written(tmp_path, "b", noise(1.02, 2), "fsdp_full")
    written(tmp_path, "c", noise(4.0, 3), "tp")
    words, found = told(tmp_path)
    assert "the highest of 3 points, not distinguishable from 1 other" in words
    assert found == ["1 to 2 of 3", "1 to 2 of 3", "3 of 3"]
