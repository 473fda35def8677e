"""Goodput: every second of a run has one cause, and the causes are the right ones."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.load.discover import read_runs
from analysis.metrics.goodput import Loss, Start, Step, account
from analysis.report.digest import Digest
from analysis.report.figures.page import figures
from analysis.report.report import report
from analysis.run import RunResult
from analysis.scaling.groups import scaling_groups
from jobs import metrics as m
from jobs.rundir import RunDir
from tests.support.fake_events import clock, compute, killed_once, meet, submit
from tests.support.fake_runs import a_run, ended, event, prepared, started, step
from tests.support.measured_runs import only

PARTS = set(m.GOODPUT_PARTS)


def parts(run: RunResult) -> dict[str, float]:
    """Return the parts of the time of a run, by name."""
    return {metric.name: run.values[metric] for metric in m.GOODPUT_PARTS if metric in run.values}


def test_a_run_that_was_killed_reports_every_second_of_its_two_starts(tmp_path: Path) -> None:
    killed_once(prepared(tmp_path, a_run(steps=10)))
    run = only(tmp_path)
    assert parts(run) == {
        "queue_time_s": 10,
        "startups_time_s": 4 + 5,
        "useful_time_s": 2 * 10,
        # Steps 5 and 6, and what was computed from their record until the first rank noticed.
        "lost_time_s": 2 * 2 + 3,
        "checkpoints_time_s": 2,
        "requeue_time_s": 37,
        "unsubmitted_time_s": 0,
        "suspended_time_s": 0,
        "rest_time_s": 12 * 0.5 + 9,
    }
    assert run.values[m.LOST_STEPS] == 2
    assert run.values[m.RUN_TIME] == 100
    assert run.values[m.GOODPUT] == pytest.approx(0.2)
    assert run.lost_to == [Loss("killed", 1, 7 + 37 + 5)]


def test_without_a_queue_there_is_no_queue_time(tmp_path: Path) -> None:
    for launcher in ("local", None):
        directory = prepared(tmp_path / str(launcher), a_run(steps=6))
        if launcher:
            submit(directory, 0, launcher)
        meet(directory, 14, startup=4)
        compute(directory, 1, 6)
        ended(directory, time=clock(40))
        run = only(tmp_path / str(launcher))
        assert m.QUEUE_TIME not in run.values
        assert run.values[m.RUN_TIME] == 30


def test_a_pilot_waits_in_the_queue_of_slurm_like_any_other_job(tmp_path: Path) -> None:
    directory = prepared(tmp_path, a_run(steps=6))
    submit(directory, 0, "pilot")
    meet(directory, 14, startup=4)
    compute(directory, 1, 6)
    ended(directory, time=clock(40))
    assert parts(only(tmp_path))["queue_time_s"] == 10


def test_clocks_that_disagree_measure_no_queue_and_nothing_negative(tmp_path: Path) -> None:
    directory = prepared(tmp_path, a_run(steps=6))
    submit(directory, 12)
    meet(directory, 14, startup=4)
    compute(directory, 1, 6)
    ended(directory, time=clock(40))
    run = only(tmp_path)
    assert m.QUEUE_TIME not in run.values
    assert run.values[m.RUN_TIME] == 30


def test_a_run_that_was_stopped_and_submitted_again_was_not_submitted_in_between(tmp_path: Path) -> None:
    directory = prepared(tmp_path, a_run(steps=8))
    submit(directory, -500)  # cancelled before its ranks met, so that the chain begins with the next one
    submit(directory, 0)
    meet(directory, 14, startup=4)
    compute(directory, 1, 4)
    ended(directory, "stopped", time=clock(30), reason="asked to end (SIGTERM)", step=4)
    submit(directory, 1030)
    event(directory, "failed", time=clock(1040), rank=0, node="n0", error="an import")
    submit(directory, 2030)
    meet(directory, 2054, startup=4, attempt=2, from_step=4)
    compute(directory, 5, 8, attempt=2)
    ended(directory, attempt=2, time=clock(2070))
    run = only(tmp_path)
    assert parts(run)["unsubmitted_time_s"] == 2000
    assert parts(run)["queue_time_s"] == 10 + 20
    assert parts(run)["requeue_time_s"] == 0
    assert parts(run)["lost_time_s"] == 0
    assert run.lost_to == [Loss("stopped", 1, 2000 + 20 + 4)]


def test_a_start_that_nobody_saw_die_ends_with_its_last_record(tmp_path: Path) -> None:
    directory = prepared(tmp_path, a_run(steps=6))
    meet(directory, 4, startup=4, restart=0)
    compute(directory, 1, 3)  # until 11.5
    # A later start whose ranks never met, and a rank that outlived the first one on a node that was cut off.
    event(directory, "failed", time=clock(50), restart=1, rank=0, node="n0", error="no route to host")
    meet(directory, 104, startup=4, attempt=2, from_step=0, restart=2)
    event(directory, "failed", time=clock(105), restart=0, cause="lost_peer", rank=1, node="n1", error="gone")
    compute(directory, 1, 6, attempt=2)
    ended(directory, attempt=2, time=clock(120))
    run = only(tmp_path)
    assert parts(run)["requeue_time_s"] == 100 - 11.5
    assert parts(run)["lost_time_s"] == 6
    assert parts(run)["useful_time_s"] == 12
    assert run.lost_to == [Loss("no cause recorded", 1, 6 + 88.5 + 4)]


def test_what_was_lost_is_reported_by_cause_the_costliest_first(tmp_path: Path) -> None:
    directory = prepared(tmp_path, a_run(steps=6))
    for attempt, cause in enumerate(("preempted", "killed", "preempted"), start=1):
        begin = 100.0 * attempt
        meet(directory, begin, startup=4, attempt=attempt)
        kind = "stopped" if cause == "preempted" else "failed"
        # Its ranks do not know why they were asked to stop.
        own = {"reason": "asked to end (SIGTERM)"} if cause == "preempted" else {"cause": "killed", "error": "Killed"}
        event(directory, kind, time=clock(begin + 20), attempt=attempt, **own)
        event(directory, "requeued", time=clock(begin + 20), cause=cause)
    meet(directory, 400, startup=1, attempt=4)
    compute(directory, 1, 6, attempt=4)
    ended(directory, attempt=4, time=clock(420))
    # From one end to the next first step 80 s; a start that was killed did nothing that was recorded in 20 s.
    assert only(tmp_path).lost_to == [Loss("preempted", 2, 160), Loss("killed", 1, 100)]


def test_what_fails_after_a_new_submission_is_no_end_of_the_start_before_it(tmp_path: Path) -> None:
    directory = prepared(tmp_path, a_run(steps=6))
    submit(directory, 0)
    meet(directory, 14, startup=4, restart=0)
    compute(directory, 1, 3)  # until 21.5, when its node crashed
    submit(directory, 1030)
    event(directory, "failed", time=clock(1040), restart=0, rank=0, node="n0", cause="hung", error="no import")
    submit(directory, 2030)
    meet(directory, 2054, startup=4, attempt=2, restart=0)
    compute(directory, 1, 6, attempt=2)
    ended(directory, attempt=2, time=clock(2080))
    run = only(tmp_path)
    assert parts(run)["lost_time_s"] == 6
    assert run.lost_to == [Loss("no cause recorded", 1, 6 + (2030 - 21.5) + 20 + 4)]


def test_a_run_ends_with_its_record_whatever_fails_before_and_after_it(tmp_path: Path) -> None:
    directory = prepared(tmp_path, a_run(steps=6))
    meet(directory, 4, startup=4)
    compute(directory, 1, 6)
    event(directory, "failed", time=clock(20), rank=1, node="n0", cause="hung", error="a rank that ended late")
    ended(directory, time=clock(50))
    event(directory, "failed", time=clock(70), stage="evaluate", node="n0", cause="killed", error="not its own")
    assert only(tmp_path).values[m.RUN_TIME] == 50


def test_a_rank_that_lost_another_one_is_not_the_cause(tmp_path: Path) -> None:
    directory = prepared(tmp_path, a_run(steps=6))
    meet(directory, 4, startup=4)
    for cause in ("lost_peer", "out_of_memory", "lost_peer"):
        event(directory, "failed", time=clock(10), cause=cause, rank=0, node="n0", error="gone")
    meet(directory, 104, startup=4, attempt=2)
    compute(directory, 1, 6, attempt=2)
    ended(directory, attempt=2, time=clock(130))
    assert only(tmp_path).lost_to == [Loss("out_of_memory", 1, 6 + 90 + 4)]


def test_the_time_for_which_a_run_was_suspended_is_neither_useful_nor_lost(tmp_path: Path) -> None:
    directory = prepared(tmp_path, a_run(steps=6))
    submit(directory, 0)
    event(directory, "suspended", time=clock(13), suspended_time_s=2.0)  # in start-up, from 10 to 14
    meet(directory, 14, startup=4, restart=0)
    compute(directory, 1, 6)  # until 30
    step(directory, 7, attempt=1, step_time_s=102.0, elapsed_s=118.5)
    event(directory, "suspended", time=clock(131), suspended_time_s=100.0)
    # After its last record.
    event(directory, "suspended", time=clock(160), suspended_time_s=20.0)
    event(directory, "failed", time=clock(165), restart=0, cause="killed", rank=0, node="n0", error="Killed")
    meet(directory, 175, startup=5, attempt=2, from_step=6, restart=1)
    compute(directory, 7, 8, attempt=2)  # until 181
    ended(directory, attempt=2, time=clock(182))
    run = only(tmp_path)
    assert parts(run) == {
        "queue_time_s": 10,
        "startups_time_s": 4 - 2 + 5,
        "useful_time_s": 6 * 2 + 2 * 2,
        # Step 7, and the time from its record to the failure, without what the run was suspended for.
        "lost_time_s": 2 + 32.5 - 20,
        "checkpoints_time_s": 2,
        "requeue_time_s": 5,
        "unsubmitted_time_s": 0,
        "suspended_time_s": 2 + 100 + 20,
        "rest_time_s": 7 * 0.5 + 2 * 0.5 + 1,
    }
    assert run.values[m.RUN_TIME] == 182


def test_records_of_an_older_version_give_a_goodput_only_where_they_report_enough(tmp_path: Path) -> None:
    whole, torn = (prepared(tmp_path, a_run(name, steps=6)) for name in ("whole", "torn"))
    # The start-up of an attempt that was killed was not recorded.
    started(torn, a_run(), time=clock(1))
    for directory, attempt in ((whole, 1), (torn, 2)):
        started(directory, a_run(), attempt=attempt, time=clock(14))
        compute(directory, 1, 6, attempt=attempt, elapsed_s=None)
        ended(directory, attempt=attempt, time=clock(40), startup_time_s=4.0)
    found = {run.name: run for run in read_runs([tmp_path])}
    assert m.GOODPUT not in found["torn"].values
    assert found["torn"].used
    assert found["whole"].values[m.GOODPUT] == pytest.approx(12 / 30)
    assert parts(found["whole"])["rest_time_s"] == 26 - 12 - 1


def test_a_run_that_goes_on_or_was_lost_has_no_goodput(tmp_path: Path) -> None:
    directory = prepared(tmp_path, a_run(steps=6))
    meet(directory, 14, startup=4)
    compute(directory, 1, 5)
    (run,) = read_runs([tmp_path])
    assert not run.values


@pytest.mark.parametrize("time", [None, "yesterday", 7])
def test_a_time_that_is_none_is_not_believed(tmp_path: Path, time: Any) -> None:
    directory = prepared(tmp_path, a_run(steps=6))
    meet(directory, 14, startup=4)
    compute(directory, 1, 6)
    ended(directory, time=time)
    # The end is then that of the last record.
    assert only(tmp_path).values[m.RUN_TIME] == 4 + 6 * 2.5 + 1


# --- what a reader sees ----------------------------------------------------------------------------------------


def undisturbed(directory: RunDir) -> None:
    """Ten steps in one start, at once."""
    meet(directory, 4, startup=4)
    compute(directory, 1, 10)
    ended(directory, time=clock(31))


def goodput_plot(path: Path) -> go.Figure:
    """The figure of goodput."""
    (figure,) = [each for each in figures(Digest(groups=scaling_groups(read_runs([path])))) if each.name == "goodput"]
    assert figure.plot is not None
    assert figure.caption.startswith("CPU: From the submission")
    return figure.plot


def test_a_report_with_a_restarted_run_reports_goodput_and_its_losses_in_page_table_and_spreadsheet(
    tmp_path: Path,
) -> None:
    killed_once(prepared(tmp_path, a_run("disturbed", steps=10)))
    undisturbed(prepared(tmp_path, a_run("calm", steps=10, repeat=2)))
    page = report([tmp_path], None).read_text()
    assert ">Goodput and lost time</h2>" in page
    assert "killed: 1 start, 49.0 s" in page
    text = (tmp_path / "report.md").read_text()
    section = text[text.index("## Goodput and lost time") :].splitlines()
    assert section[2] == (
        "| Run | Starts | Goodput (%) | Run time (s) | Queue time (s) | Startups time (s) | Useful time (s) | "
        "Lost time (s) | Checkpoints time (s) | Requeue time (s) | Rest time (s) | Lost to |"
    )
    assert section[4] == (
        "| disturbed | 2 | 20.0 | 100.0 | 10.0 | 9.00 | 20.00 | 7.00 | 2.00 | 37.0 | 15.0 | killed: 1 start, 49.0 s |"
    )
    assert section[5] == "| calm | 1 | 64.5 | 31.00 | — | 4.00 | 20.00 | 0 | 2.00 | 0 | 5.00 | nothing |"
    calm, disturbed = csv.DictReader((tmp_path / "runs.csv").read_text().splitlines())
    assert (calm["queue_time_s"], calm["lost_to"]) == ("", "")
    assert (disturbed["queue_time_s"], disturbed["lost_to"]) == ("10.0", "killed: 1 start, 49.0 s")
    assert (disturbed["goodput"], disturbed["unsubmitted_time_s"]) == ("0.2", "0.0")


def test_the_bars_of_goodput_hold_the_numbers_of_the_table(tmp_path: Path) -> None:
    killed_once(prepared(tmp_path, a_run("disturbed", steps=10)))
    undisturbed(prepared(tmp_path, a_run("calm", steps=10, repeat=2)))
    plot = goodput_plot(tmp_path)
    assert list(plot.layout.yaxis.ticktext) == ["calm, 1 start", "disturbed, 2 starts"]
    assert {bar.name: bar.x for bar in plot.data} == {
        "queue": (0, 10),
        "start-up": (4, 9),
        "useful steps": (20, 20),
        "lost work": (0, 7),
        "checkpoints": (2, 2),
        "requeue": (0, 37),
        "rest": (5, 15),
    }


def test_a_run_that_was_suspended_has_its_time_in_table_and_bars_without_a_restart(tmp_path: Path) -> None:
    directory = prepared(tmp_path, a_run(steps=6))
    meet(directory, 4, startup=4)
    compute(directory, 1, 6)  # until 20
    event(directory, "suspended", time=clock(90), suspended_time_s=60.0)
    ended(directory, time=clock(100))
    report([tmp_path], None)
    text = (tmp_path / "report.md").read_text()
    header, _, row = text[text.index("## Goodput and lost time") :].splitlines()[2:5]
    assert "| Suspended time (s) |" in header
    assert "| 60.0 |" in row
    assert ("suspended", (60.0,)) in {(bar.name, tuple(bar.x)) for bar in goodput_plot(tmp_path).data}


def test_where_no_run_was_started_twice_goodput_is_a_column_only(tmp_path: Path) -> None:
    undisturbed(prepared(tmp_path, a_run("calm", steps=10)))
    page = report([tmp_path], None).read_text()
    assert ">Goodput and lost time</h2>" not in page
    assert "Goodput (%)" in page
    assert "64.5" in page


def test_names_and_causes_from_files_are_text(tmp_path: Path) -> None:
    directory = prepared(tmp_path, a_run("<img src=x>", steps=10))
    killed_once(directory)
    directory.status.write_text(directory.status.read_text().replace('"killed"', '"<script>alert(1)</script>"'))
    page = report([tmp_path], None).read_text()
    assert "&lt;script&gt;alert(1)&lt;/script&gt;: 1 start, 49.0 s" in page
    assert "<script>alert" not in page
    assert "<img" not in page
    assert list(goodput_plot(tmp_path).layout.yaxis.ticktext) == ["&lt;img src=x&gt;, 2 starts"]


# --- any records -----------------------------------------------------------------------------------------------

SECONDS = st.floats(0, 1e6)
STEPS = st.builds(Step, st.integers(1, 20), SECONDS, SECONDS, st.none() | SECONDS)


@st.composite
def starts(draw: st.DrawFn) -> list[Start]:
    """Starts of a run in any order of their clocks."""
    return draw(
        st.lists(
            st.builds(
                Start,
                met=SECONDS,
                startup_s=SECONDS,
                from_step=st.integers(0, 20),
                steps=st.lists(STEPS, max_size=5),
                ended=st.none() | SECONDS,
                died=st.booleans(),
                cause=st.sampled_from(["killed", "hung"]),
                resubmitted=st.booleans(),
                submitted=st.none() | SECONDS,
            ),
            min_size=1,
            max_size=4,
        )
    )


def moments(history: list[Start]) -> Iterator[float]:
    """Every moment of a history that its account may rest on."""
    for start in history:
        yield from (at for at in (start.submitted, start.process_started, start.met, start.ended) if at is not None)


@given(starts(), st.lists(st.tuples(SECONDS, SECONDS), max_size=3))
def test_parts_are_not_negative_and_sum_to_the_whole(
    history: list[Start], suspended: list[tuple[float, float]]
) -> None:
    found = account(history, suspended)
    assert set(found.parts) | {m.QUEUE_TIME} == PARTS
    assert all(part_s >= 0 for part_s in found.parts.values())
    total_s = found.values[m.RUN_TIME]
    assert math.isclose(sum(found.parts.values()), total_s)
    begin = history[0].process_started if history[0].submitted is None else history[0].submitted
    # Each second once: the sum covers at least the time from the beginning to the last known moment.
    assert total_s >= max(moments(history)) - begin - 1e-6
    if all(start.ended is not None for start in history):
        assert total_s == pytest.approx(max(begin, *moments(history)) - begin, abs=1e-6)
    if total_s:
        assert 0 <= found.values[m.GOODPUT] <= 1
    assert sum(loss.time_s for loss in found.losses) <= total_s + 1e-6
    assert sum(loss.starts for loss in found.losses) == len(history) - 1


@given(starts())
def test_a_run_that_never_had_to_do_steps_again_lost_no_step(history: list[Start]) -> None:
    calm = [Start(start.met, start.startup_s, 20, start.steps, start.ended) for start in history]
    assert account(calm).parts[m.LOST_TIME] == 0
    assert account(calm).lost_steps == 0
