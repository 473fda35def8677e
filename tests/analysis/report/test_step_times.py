"""The distribution of step times: its boxes on the page and in a paper, for one point and for many."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from analysis.load.discover import read_runs
from analysis.report.digest import Digest
from analysis.report.export.paper import drawn
from analysis.report.figures.bars import MOST_BARS
from analysis.report.figures.page import figures
from analysis.report.figures.step_times import NAME
from analysis.report.figures.style import Figure
from analysis.scaling.groups import scaling_groups
from tests.support.megatron_logs import megatron, write


def figures_of(path: Path) -> list[Figure]:
    return figures(Digest(groups=scaling_groups(read_runs([path]))))


def boxes_of(path: Path) -> Figure:
    return next(figure for figure in figures_of(path) if figure.name == NAME)


def a_log(path: Path, ranks: int, steps: int, *, middle_ms: float = 1000.0, slow: int | None = None) -> list[float]:
    """Write a log whose step times vary by some per cent, and return them in ms; step `slow` is nine times as long."""
    chance = random.Random(ranks)
    times_ms = [round(middle_ms * chance.gauss(1, 0.03), 1) for _ in range(steps)]
    if slow is not None:
        times_ms[slow] *= 9
    text = megatron(list(enumerate(times_ms, 1)), ranks=ranks)
    write(path, text.replace("lm loss: ", f"lm loss: {ranks}"))
    write(path.parent / "facts.yaml", "model: tall\n")
    return times_ms


def test_a_box_has_the_quartiles_of_the_steady_steps_and_whiskers_at_tenths(tmp_path: Path) -> None:
    times_ms = a_log(tmp_path / "a.out", 8, 40)[1:]  # the first step is warm-up
    figure = boxes_of(tmp_path)
    assert figure.plot is not None
    box, median, slowest = figure.plot.data
    p10, first, middle, third, p90 = np.percentile(times_ms, (10, 25, 50, 75, 90)) / np.median(times_ms)
    assert (box.base[0], box.base[0] + box.x[0]) == pytest.approx((first, third))
    assert (median.x[0], median.error_x.array[0], median.error_x.arrayminus[0]) == pytest.approx(
        (middle, p90 - middle, middle - p10)
    )
    assert slowest.x[0] == pytest.approx(max(times_ms) / np.median(times_ms))
    assert f"median {np.median(times_ms) / 1000:.3f} s" in box.hovertext[0]
    assert "of 39 steps" in figure.plot.layout.yaxis.ticktext[0]


@pytest.mark.parametrize("points", [1, 3, MOST_BARS + 2])
def test_every_point_has_a_row_on_the_page_and_in_the_paper(tmp_path: Path, points: int) -> None:
    for ranks in range(1, points + 1):
        a_log(tmp_path / f"{ranks}.out", ranks, 12, middle_ms=9000 / ranks)
    figure = boxes_of(tmp_path)
    assert figure.plot is not None
    rows = min(points, MOST_BARS)
    assert len(figure.plot.data[0].x) == len(set(figure.plot.layout.yaxis.ticktext)) == rows
    assert figure.plot.layout.height >= 30 * rows
    assert ("Left out: 2 points" in figure.caption) == (points > MOST_BARS)
    svg = drawn([figure], ["svg"])[f"figures/{NAME}.svg"].decode()
    assert all(f", {ranks} rank" in svg for ranks in range(points - rows + 1, points + 1))


def test_a_pause_far_beyond_the_boxes_is_counted_and_does_not_squeeze_them(tmp_path: Path) -> None:
    a_log(tmp_path / "a.out", 8, 40, slow=20)
    figure = boxes_of(tmp_path)
    assert figure.plot is not None
    assert figure.plot.layout.xaxis.range[1] < 2
    assert len(figure.plot.data[2].x) == 0
    assert "Slowest steps beyond the axis: 1" in figure.caption


def test_equal_steps_are_a_line_on_an_axis_that_does_not_magnify(tmp_path: Path) -> None:
    write(tmp_path / "a.out", megatron([(step, 1000.0) for step in range(1, 12)]))
    plot = boxes_of(tmp_path).plot
    assert plot is not None
    assert plot.layout.xaxis.range[0] < 0.95 < 1.05 < plot.layout.xaxis.range[1]


@pytest.mark.parametrize("steps", [2, 3, 4])
def test_too_few_steps_have_no_distribution(tmp_path: Path, steps: int) -> None:
    a_log(tmp_path / "a.out", 8, steps)
    assert NAME not in [figure.name for figure in figures_of(tmp_path)]


def test_a_single_run_has_no_figure_of_a_single_marker(tmp_path: Path) -> None:
    a_log(tmp_path / "a.out", 8, 20)
    assert [figure.name for figure in figures_of(tmp_path)] == [NAME, "loss"]
    a_log(tmp_path / "b.out", 16, 20)
    assert figures_of(tmp_path)[0].heading == "Throughput"
