"""Doubts: no speed that noise, other work or unlike work may explain stands without its doubt."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from analysis.compare.ab import compare_groups
from analysis.compare.loss import loss_doubts
from analysis.load.discover import read_runs
from analysis.report.caveats import warnings
from analysis.report.digest import Digest
from analysis.report.figures.page import figures
from analysis.report.figures.style import Figure
from analysis.report.headline import headlines
from analysis.scaling.groups import scaling_groups
from jobs import metrics as m
from tests.support.fake_events import clock
from tests.support.fake_runs import a_run, counted, ended, event, finished_run, prepared, started, step


def said(path: Path) -> tuple[list[str], list[str]]:
    """Return the headlines and the warnings of a sweep."""
    runs = read_runs([path])
    doubts = loss_doubts(runs)
    groups = scaling_groups(runs, doubts)
    return headlines(Digest(runs, groups)), warnings(Digest(runs, groups, doubts))


def a_point(path: Path, ranks: int, step_times_s: Sequence[float], held: float | None = None, **run: Any) -> None:
    """Write a repeat for each step time."""
    for repeat, step_time_s in enumerate(step_times_s, start=1):
        directory = finished_run(
            path, a_run(f"n{ranks}-r{repeat}", nodes=ranks, repeat=repeat, **run), step_time_s=step_time_s
        )
        counted(directory, held)


# --- more than ideal -------------------------------------------------------------------------------------------


def test_a_speedup_above_ideal_is_doubted_in_the_headline_and_explained_in_a_warning(tmp_path: Path) -> None:
    a_point(tmp_path, 1, [1.0], held=1000)
    a_point(tmp_path, 2, [0.415], held=500)
    (headline, doubt), found = said(tmp_path)
    assert "speeds up 2.41 times from 1 to 2 ranks (120 % efficiency" in headline
    assert doubt == "DOUBTFUL: ddp: above the ideal 100 %, perhaps noise or cache. See the warnings."
    (message,) = [text for text in found if "more than ideal" in text]
    assert "Speaks for noise: n = 1 and 1 give no interval" in message
    assert "cache: the weights of a rank went from 1,000 to 500.0" in message
    assert "Speaks against memory: the peak memory of a rank went from 1.000 to 1.000 GiB" in message
    assert "another batch: a step has 1 times the tokens in strong scaling" in message


def test_repeats_that_exclude_noise_speak_against_it(tmp_path: Path) -> None:
    a_point(tmp_path, 1, [1.0, 1.01, 0.99])
    a_point(tmp_path, 2, [0.4, 0.401, 0.399])
    (_, doubt), found = said(tmp_path)
    assert doubt == "DOUBTFUL: ddp: above the ideal 100 %, unexplained. See the warnings."
    assert any("Speaks against noise: the 95 % interval is 1" in text for text in found)


def test_an_efficiency_that_prints_as_100_per_cent_is_no_doubt(tmp_path: Path) -> None:
    a_point(tmp_path, 1, [1.0])
    a_point(tmp_path, 2, [0.499])
    (headline,), found = said(tmp_path)
    assert "DOUBTFUL" not in headline
    assert found == []


# --- repeats ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step_times_s", [[10.78, 0.604], [10.78, 0.604, 0.61]])
def test_two_or_three_repeats_far_apart_are_reported(step_times_s: list[float], tmp_path: Path) -> None:
    a_point(tmp_path, 1, step_times_s)
    _, (message,) = said(tmp_path)
    assert message.startswith(
        f"The {len(step_times_s)} repeats of ddp on 1 rank on 1 node differ by a factor of 17.8, while steps vary by "
        "0 % within a run: 94.99 tokens/s in n1-r1, 1,695 in n1-r2."
    )


def test_repeats_that_differ_less_than_the_steps_within_a_run_are_not_reported(tmp_path: Path) -> None:
    for repeat, scale in ((1, 1.0), (2, 1.2)):
        run = a_run(f"r{repeat}", repeat=repeat, steps=12)
        directory = prepared(tmp_path, run)
        started(directory, run)
        for number in range(1, 13):
            step(directory, number, step_time_s=scale * (1.0 if number % 2 else 1.3))
        ended(directory, step=12)
    assert said(tmp_path)[1] == []


def test_a_line_whose_repeats_lie_apart_is_doubted_in_the_headline(tmp_path: Path) -> None:
    a_point(tmp_path, 1, [1.0, 1.0])
    a_point(tmp_path, 2, [2.0, 0.6])
    assert said(tmp_path)[0][1] == "DOUBTFUL: ddp: repeats lie far apart. See the warnings."


def test_a_difference_of_repeats_is_explained_by_the_load_of_the_node(tmp_path: Path) -> None:
    for repeat, (step_time_s, others) in enumerate(((0.5, 0.02), (1.0, 0.61)), start=1):
        directory = finished_run(tmp_path, a_run(f"r{repeat}", repeat=repeat), step_time_s=step_time_s)
        event(directory, "node_load", attempt=1, step=6, other_load=others, cpu_steal=0.0, cpu_throttled=0)
    _, (message,) = said(tmp_path)
    assert "The node of the slow one: other work took 61.0 % against 2.00." in message
    (run, _) = read_runs([tmp_path])
    assert run.values[m.OTHER_LOAD] == 0.02


@pytest.mark.parametrize(
    ("name", "slow", "fast", "words"),
    [
        ("gpu_clock_hz", 1.2e9, 1.9e9, "its GPU ran at 1,200,000,000 Hz against 1,900,000,000"),
        ("gpu_throttled", 0.5, 0.0, "heat or power slowed the GPU in 50.0 % against 0"),
        ("cpu_clock_hz", 1.2e9, 2.4e9, "its processors ran at 1,200,000,000 Hz against 2,400,000,000"),
        ("gpu_clock_hz", 1.88e9, 1.9e9, ""),
    ],
)
def test_a_difference_of_repeats_is_explained_by_clocks_and_throttling(
    name: str, slow: float, fast: float, words: str, tmp_path: Path
) -> None:
    for repeat, (step_time_s, value) in enumerate(((0.5, fast), (1.0, slow)), start=1):
        directory = finished_run(tmp_path, a_run(f"r{repeat}", repeat=repeat), step_time_s=step_time_s)
        event(directory, "node_load", attempt=1, step=6, **{name: value})
    _, (message,) = said(tmp_path)
    assert words in message
    assert ("The node of the slow one" in message) == bool(words)


def test_a_reference_that_shared_its_machine_is_doubted_in_the_headline(tmp_path: Path) -> None:
    for ranks, others in ((1, 0.4), (2, 0.02)):
        directory = finished_run(tmp_path, a_run(f"r{ranks}", nodes=ranks), step_time_s=1.0 / ranks)
        event(directory, "node_load", attempt=1, step=6, other_load=others, cpu_steal=0.0, cpu_throttled=0)
    expected = "DOUBTFUL: ddp: the reference had less of its machine: other work took 40.0 % against 2.00."
    headline, warnings = said(tmp_path)
    assert expected in headline[1]
    assert warnings == [
        "ddp: at the reference, 1 rank on 1 node, other work took 40.0 % against 2.00 on 2 ranks on 2 nodes. The "
        "reference is slower for that, so speedup and efficiency may be too high. Repeat the points while nothing else "
        "runs on their nodes."
    ]


# --- side by side ----------------------------------------------------------------------------------------------


def trained(path: Path, name: str, begin: float, end: float, **run: Any) -> None:
    """Write a run that trained from one second to another; every node is a name of the machine `boot`."""
    made = a_run(name, **run)
    directory = prepared(path, made)
    started(directory, made, time=clock(begin), machines=["boot"], nodes=[f"{name}-node"])
    for number in range(1, 7):
        step(directory, number)
    ended(directory, step=6, time=clock(end))


def test_points_that_ran_side_by_side_on_one_machine_are_named_in_warning_and_headline(tmp_path: Path) -> None:
    trained(tmp_path, "one", 0, 60)
    trained(tmp_path, "two", 30, 90, nodes=2)
    trained(tmp_path, "later", 90.5, 120, nodes=4)
    (_, doubt), found = said(tmp_path)
    assert doubt == "DOUBTFUL: ddp: runs shared their machine. See the warnings."
    (message,) = [text for text in found if "same machine" in text]
    assert message.startswith(
        "2 of 3 runs trained while another run of this report trained on the same machine (one with two, two with one; "
        "on one-node, two-node). They shared its processors"
    )
    assert "launcher.max_running=1" in message


def test_runs_one_after_the_other_share_nothing(tmp_path: Path) -> None:
    trained(tmp_path, "one", 0, 60)
    trained(tmp_path, "two", 60.5, 90, nodes=2)
    assert not any("same machine" in text for text in said(tmp_path)[1])


# --- unlike scaling --------------------------------------------------------------------------------------------


def drawn(figure: Figure) -> list[dict[str, Any]]:
    """Return the lines of a figure."""
    assert figure.plot is not None
    return list(json.loads(figure.plot.to_json())["data"])


def a_line(path: Path, *, weak: bool, sweep: str = "demo") -> None:
    for ranks in (1, 2):
        run = a_run(f"{'weak' if weak else 'strong'}-{ranks}", nodes=ranks, weak=weak, sweep=sweep)
        finished_run(path, run, step_time_s=1.0 if weak else 1.0 / ranks, tokens=1024 * (ranks if weak else 1))


def test_strong_and_weak_scaling_have_figures_and_headlines_of_their_own(tmp_path: Path) -> None:
    a_line(tmp_path, weak=False)
    a_line(tmp_path, weak=True)
    runs = read_runs([tmp_path])
    groups = scaling_groups(runs)
    found = {figure.name: figure for figure in figures(Digest(groups=groups))}
    assert len(found) == len(figures(Digest(groups=groups)))
    lines = {name: [each["name"] for each in drawn(found[name])] for name in ("efficiency", "efficiency-weak")}
    assert [sum("ideal" not in each for each in names) for names in lines.values()] == [1, 1]
    assert found["efficiency"].heading == "Efficiency, strong scaling"
    assert [("strong scaling" in text, "weak scaling" in text) for text in headlines(Digest(runs, groups))] == [
        (True, False),
        (False, True),
    ]


def test_speeds_of_unlike_scaling_modes_are_not_compared(tmp_path: Path) -> None:
    a_line(tmp_path / "a", weak=False)
    a_line(tmp_path / "b", weak=True)
    result = compare_groups(*(scaling_groups(read_runs([tmp_path / side])) for side in "ab"))
    assert not result.pairs
    assert {reason for _, reason in result.unpaired} == {
        "A has strong scaling, B weak: their work grows differently with the ranks, so speeds are not compared"
    }


def test_markers_of_equal_value_stay_visible(tmp_path: Path) -> None:
    for parallelism in ("ddp", "fsdp_full", "tp"):
        finished_run(tmp_path, a_run(parallelism, parallelism=parallelism))
        finished_run(tmp_path, a_run(f"{parallelism}-2", parallelism=parallelism, nodes=2), step_time_s=0.3)
    (throughput, *_) = figures(Digest(groups=scaling_groups(read_runs([tmp_path]))))
    sizes = [each["marker"]["size"][0] for each in drawn(throughput) if each["mode"] == "lines+markers"][:3]
    assert sizes == sorted(set(sizes), reverse=True), "the one drawn first lies below and is the largest"
