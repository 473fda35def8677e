"""Stragglers: ranks and nodes that are slow in most windows, and no others, are named with their cost."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from analysis.load.discover import read_runs
from analysis.metrics.stragglers import within
from analysis.report.caveats import warnings
from analysis.report.digest import Digest
from analysis.report.report import report
from analysis.run import RunResult
from jobs import metrics as m
from jobs.layout import layout_of
from jobs.runtime.pace import summary
from tests.support.fake_runs import UNMEASURED_STEPS, a_run, ended, event, prepared, started, step
from tests.support.megatron_logs import megatron
from tests.support.report_pages import Page

STEPS = 5
WINDOWS = 8
OwnTimes = Callable[[int, int], tuple[float, float]]
"""By rank and window: the time of the batch and of the layers."""


def test_ranks_are_within_a_node_if_all_are_of_it_and_not_all_of_it() -> None:
    assert within((4, 5), (4, 7))
    assert within((6, 7), (4, 7))
    assert not within((4, 7), (4, 7))
    assert not within((2, 5), (4, 7))
    assert not within((6, 9), (4, 7))


def even(_rank: int, _window: int) -> tuple[float, float]:
    return 0.01, 0.3


def paced(
    path: Path, name: str, own_s: OwnTimes, *, nodes: int = 2, ranks_per_node: int = 4, windows: int = WINDOWS
) -> None:
    """A finished run with steps of a second, whose ranks had these own times."""
    run = a_run(name, nodes=nodes, ranks_per_node=ranks_per_node, steps=UNMEASURED_STEPS + STEPS * windows)
    directory = prepared(path, run)
    started(directory, run)
    for number in range(1, (run.job.steps or 0) + 1):
        step(directory, number, step_time_s=1.0)
    for window in range(windows):
        parts = np.array([own_s(rank, window) for rank in range(run.ranks)])
        window_summary = summary(parts, layout_of(run), [f"node{rank // ranks_per_node}" for rank in range(run.ranks)])
        event(directory, "pace", attempt=1, step=UNMEASURED_STEPS + STEPS * (window + 1), steps=STEPS, **window_summary)
    ended(directory)


def only(path: Path) -> RunResult:
    (run,) = read_runs([path])
    return run


def sentences(path: Path) -> list[str]:
    return [each for each in warnings(Digest(read_runs([path]))) if each.startswith("Stragglers")]


def slow(ranks: set[int], windows: set[int] | None = None, layers_s: float = 0.6, batch_s: float = 0.01) -> OwnTimes:
    """Own times of ranks that are slow in these windows, or in all."""
    return lambda rank, window: (
        (batch_s, layers_s) if rank in ranks and (windows is None or window in windows) else (0.01, 0.3)
    )


# --- who is named ----------------------------------------------------------------------------------------------


def test_a_rank_that_is_slow_in_all_windows_is_named_with_its_node_and_cost(tmp_path: Path) -> None:
    paced(tmp_path, "lame", slow({5}))
    run = only(tmp_path)
    assert run.stragglers is not None
    (found,) = run.stragglers
    assert (found.ranks, found.node, found.windows, found.by_batch) == ((5, 5), "node1", WINDOWS, False)
    assert (found.own_time_s, found.others_own_time_s) == pytest.approx((0.61, 0.31))
    assert run.values[m.STRAGGLER_SHARE] == pytest.approx(0.3)
    assert sentences(tmp_path) == [
        "Stragglers in 1 of 1 run: lame waits for rank 5 on node1: 1.97 times the median own "
        "time of the others, mostly the forward passes of layers, which costs at least 30.0 % of the step time. "
        "straggler_share is defined below."
    ]


def test_a_rank_that_waits_for_its_batch_is_reported(tmp_path: Path) -> None:
    paced(tmp_path, "hungry", slow({2}, layers_s=0.3, batch_s=0.2))
    (sentence,) = sentences(tmp_path)
    assert "rank 2 on node0: 1.61 times the median own time of the others, mostly getting batches" in sentence


def test_a_node_whose_ranks_are_all_slow_is_named_and_its_ranks_are_not(tmp_path: Path) -> None:
    paced(tmp_path, "hot", slow({4, 5, 6, 7}))
    found = only(tmp_path).stragglers
    assert found is not None
    assert [(each.ranks, each.node) for each in found] == [((4, 7), "node1")]
    assert "waits for all ranks of node1 (4 to 7): 1.97 times" in sentences(tmp_path)[0]


def test_a_node_with_one_rank_that_is_not_slow_is_not_named_but_its_slow_ranks_are(tmp_path: Path) -> None:
    paced(tmp_path, "mixed", slow({4, 5, 6}))
    found = only(tmp_path).stragglers
    assert found is not None
    assert [each.ranks for each in found] == [(4, 4), (5, 5), (6, 6)]
    assert "waits for rank 4 on node1, rank 5 on node1, rank 6 on node1: the worst 1.97 times" in sentences(tmp_path)[0]


def test_a_slow_rank_on_another_node_than_the_slow_one_is_named_beside_it(tmp_path: Path) -> None:
    paced(tmp_path, "both", slow({1, 8, 9, 10, 11}), nodes=4)
    found = only(tmp_path).stragglers
    assert found is not None
    assert [each.ranks for each in found] == [(1, 1), (8, 11)]


# --- who is not ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("why", "own_s"),
    [
        ("even", even),
        ("one slow window", slow({5}, windows={3})),
        ("slow in five of eight windows", slow({5}, windows={0, 1, 2, 3, 4})),
        ("less than a tenth slower", slow({5}, layers_s=0.33)),
        ("another rank in every window", lambda rank, window: (0.01, 0.6 if rank == window else 0.3)),
    ],
)
def test_no_straggler_is_seen_where_there_is_none(why: str, own_s: OwnTimes, tmp_path: Path) -> None:
    paced(tmp_path, why, own_s)
    run = only(tmp_path)
    assert run.stragglers == []
    assert run.values[m.STRAGGLER_SHARE] == 0
    assert sentences(tmp_path) == []


def test_what_is_short_beside_the_step_is_not_reported_however_much_slower_it_is(tmp_path: Path) -> None:
    paced(tmp_path, "short", lambda rank, _: (0.0, 0.02 if rank == 5 else 0.002))
    assert only(tmp_path).stragglers == []


def test_six_slow_windows_of_eight_are_most_of_them(tmp_path: Path) -> None:
    paced(tmp_path, "often", slow({5}, windows={0, 1, 2, 3, 4, 5}))
    found = only(tmp_path).stragglers
    assert found is not None
    assert [each.windows for each in found] == [6]


# --- what is not recorded --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [0, 3])
def test_of_a_run_with_no_or_too_few_windows_nothing_is_reported(kept: int, tmp_path: Path) -> None:
    paced(tmp_path, "old", slow({5}))
    status = tmp_path / "old" / "status.jsonl"
    lines = status.read_text().splitlines()
    windows = [line for line in lines if '"pace"' in line]
    status.write_text("".join(f"{line}\n" for line in lines if line not in windows[kept:]))
    run = only(tmp_path)
    assert run.used
    assert run.stragglers is None
    assert m.STRAGGLER_SHARE not in run.values
    report([tmp_path], None)
    text = (tmp_path / "report.md").read_text()
    assert "wait for" not in text
    assert "Stragglers" not in text


@pytest.mark.parametrize(
    ("later_window", "named"),
    [
        ({"step": "7"}, [(5, 5)]),
        ({"slowest_ranks": 3, "slowest_nodes": None, "fastest": []}, []),
        ({"slowest_ranks": [4, {"rank": "x"}, {"rank": 1, "own_time_s": 1e999, "others_own_time_s": 1}]}, []),
        ({"slowest_ranks": [{"rank": 1, "own_time_s": 1.0, "others_own_time_s": 0}]}, []),
    ],
)
def test_events_that_anybody_wrote_do_not_break_a_report(
    later_window: dict[str, object], named: list[tuple[int, int]], tmp_path: Path
) -> None:
    paced(tmp_path, "lame", slow({5}))
    status = tmp_path / "lame" / "status.jsonl"
    later = json.dumps({"event": "pace", "attempt": 2, "step": 7, "steps": 5, **later_window})
    status.write_text(status.read_text() + f"{later}\n" * 2 * WINDOWS)
    report([tmp_path], None)
    found = only(tmp_path).stragglers
    assert found is not None
    assert [each.ranks for each in found] == named


def test_after_a_restart_the_attempt_with_the_most_windows_reports(tmp_path: Path) -> None:
    paced(tmp_path, "again", slow({5}))
    status = tmp_path / "again" / "status.jsonl"
    lines = status.read_text().splitlines()
    window = next(json.loads(line) for line in lines if '"pace"' in line)
    later = [window | {"attempt": 2, "slowest_ranks": [], "slowest_nodes": []}] * (WINDOWS - 1)
    status.write_text("".join(f"{line}\n" for line in (*lines, *map(json.dumps, later))))
    found = only(tmp_path).stragglers
    assert found is not None
    assert [each.ranks for each in found] == [(5, 5)]


# --- in logs of Megatron-LM ------------------------------------------------------------------------------------


def detected(slowest_ms: float, rank: int) -> str:
    """A line of Megatron's detector, numbers as it prints them."""
    return (
        " 0: INFO:megatron.core.utils:[2026-03-04 05:06:07] | MnRtt/Rnk: 300.00ms/3 | "
        f"MxRtt/Rnk: {slowest_ms:.2f}ms/{rank} | MnPwr/Rnk: 500000W/3 | MxPwr/Rnk: 510000W/5 | MnTmp/Rnk: 40C/0 | "
        "MxTmp/Rnk: 50C/1 | MnUtl/Rnk: 90%/3 | MxUtl/Rnk: 95%/6 | MnClk/Rnk: 1500MHz/1 | MxClk/Rnk: 1600MHz/0 | "
        "MnDRtt/Rnk: 1.50ms/2 | MxDRtt/Rnk: 3.25ms/3 | MnEtpt/Rnk: 100.00TF/5 | MxEtpt/Rnk: 150.00TF/3\n"
    )


def megatron_log(where: Path, lines: list[str], *, stages: int = 1) -> Path:
    """Steps of a second, each with a line of the detector."""
    stage = f"  pipeline_model_parallel_size {'.' * 20} {stages}\n"
    steps = megatron([(number, 1000.0) for number in range(1, len(lines) + 1)]).splitlines(keepends=True)
    text = "".join(step + line for step, line in zip(steps[-len(lines) :], lines, strict=True))
    where.write_text("".join(steps[: -len(lines)]) + stage + text)
    return where


def test_a_rank_that_megatrons_detector_finds_slowest_in_most_windows_is_named(tmp_path: Path) -> None:
    log = megatron_log(tmp_path / "slurm.out", [detected(450, 5)] * 7 + [detected(310, 2)])
    run = only(log)
    assert run.values[m.STRAGGLER_SHARE] == pytest.approx(0.15)
    assert (
        "waits for rank 5: 1.50 times the own time of the fastest rank, mostly the forward passes of layers, which "
        "costs at least 15.0 % of the step time"
    ) in sentences(log)[0]


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([detected(450, rank) for rank in range(8)], id="another rank in every window"),
        pytest.param([detected(320, 5)] * 8, id="little slower"),
        pytest.param([detected(450, 5)] + [detected(310, 5)] * 7, id="one slow window"),
    ],
)
def test_megatrons_slowest_rank_is_not_always_a_straggler(lines: list[str], tmp_path: Path) -> None:
    assert only(megatron_log(tmp_path / "slurm.out", lines)).stragglers == []


def test_of_pipeline_stages_nobody_knows_whether_they_have_the_same_to_do(tmp_path: Path) -> None:
    run = only(megatron_log(tmp_path / "slurm.out", [detected(450, 5)] * 8, stages=2))
    assert run.stragglers is None
    assert m.STRAGGLER_SHARE not in run.values


# --- where it shows --------------------------------------------------------------------------------------------


def test_page_and_tables_name_the_straggler(tmp_path: Path) -> None:
    paced(tmp_path, "<i>lame</i>", slow({5}))
    page = Page(report([tmp_path], None).read_text())
    assert "The others wait for rank 5 on node1: 1.97 times the median own time of the others" in page.text
    assert "i" not in page.tags()
    text = (tmp_path / "report.md").read_text()
    assert "## Stragglers" in text
    assert "rank 5 on node1, the forward passes of layers" in text
    header, row = (line.split(",") for line in (tmp_path / "runs.csv").read_text().splitlines())
    assert float(row[header.index("straggler_share")]) == pytest.approx(0.3)
