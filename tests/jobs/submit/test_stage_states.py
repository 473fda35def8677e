"""The state of a stage from its events, its submission and what the scheduler reports of its job."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jobs.cli import main
from jobs.rundir import SweepDir, append_record
from jobs.submit.allocations.pilot import Turn
from jobs.submit.job_state import GONE, UNKNOWN, JobState
from jobs.submit.stage_states import StageOf, StageState, counted_states, decide, latest_stages
from jobs.submit.states import State
from jobs.submit.sweeps.submissions import Submission
from tests.support.composing import one
from tests.support.fake_runs import a_run, event, finished_run, prepared

BEGAN = [{"event": "report_started"}]
FAILED = [*BEGAN, {"event": "report_failed", "error": "no run\nin it"}]
DONE = [*BEGAN, {"event": "reported"}]


@pytest.mark.parametrize(
    ("events", "job", "launcher", "cancelled", "expected"),
    [
        (DONE, JobState("FAILED"), "slurm", True, (State.finished, "")),
        (FAILED, None, "slurm", False, (State.failed, "no run")),
        (FAILED, None, "slurm", True, (State.cancelled, "no run")),
        # Slurm may start it again, a process of this machine is not.
        (FAILED, JobState("PENDING", "BeginTime"), "slurm", False, (State.queued, "BeginTime")),
        (FAILED, JobState("RUNNING"), "local", False, (State.failed, "no run")),
        ([], JobState("PENDING", "Dependency"), "slurm", False, (State.queued, "Dependency")),
        ([], JobState("RUNNING"), "slurm", False, (State.queued, "starting")),
        ([], JobState(UNKNOWN, "sacct does not answer"), "slurm", False, (State.queued, "sacct does not answer")),
        (BEGAN, JobState("RUNNING"), "slurm", False, (State.running, "")),
        (BEGAN, JobState("REQUEUED", "launch failed"), "slurm", False, (State.queued, "launch failed")),
        (BEGAN, JobState("PENDING"), "local", False, (State.running, "")),
        ([], None, "slurm", True, (State.cancelled, "")),
        ([], JobState("CANCELLED"), "slurm", False, (State.cancelled, "its dependency failed")),
        ([], JobState("CANCELLED", "by user me with scancel"), "slurm", False,
         (State.cancelled, "by user me with scancel")),
        (BEGAN, JobState("SUSPENDED"), "slurm", False, (State.suspended, "")),
        (BEGAN, JobState("CANCELLED"), "slurm", False, (State.cancelled, "")),
        (BEGAN, JobState("TIMEOUT"), "slurm", False, (State.failed, "Slurm reports TIMEOUT")),
        (BEGAN, None, "slurm", False, (State.lost, "its job is gone and recorded no end")),
        (BEGAN, JobState(GONE), "slurm", False,
         (State.lost, "its job is gone and recorded no end (Slurm reports GONE)")),
        (BEGAN, JobState(GONE, "purged"), "local", False, (State.lost, "its job is gone and recorded no end (purged)")),
    ],
)  # fmt: skip
def test_a_stage_is_in_the_state_that_its_events_and_its_job_prove(
    events: list[dict[str, str]], job: JobState | None, launcher: str, cancelled: bool,
    expected: tuple[State, str], tmp_path: Path,
) -> None:  # fmt: skip
    sweep = SweepDir(tmp_path)
    sweep.submissions.write_text("")
    os.utime(sweep.submissions, (0, 0))
    submission = Submission("report", launcher, "7", 0, cancelled=cancelled)
    assert decide(sweep, StageOf("report", None), submission, events, job) == expected


def test_an_evaluation_that_was_cancelled_after_its_run_had_finished_lacked_no_dependency(tmp_path: Path) -> None:
    sweep = SweepDir(tmp_path)
    event(prepared(tmp_path, a_run("r")), "finished", step=4)
    submission = Submission("evaluate r", "slurm", "7", 0)
    for reason, detail in (("by user me with scancel", "by user me with scancel"), (None, "")):
        found = decide(sweep, StageOf("evaluate", "r"), submission, [], JobState("CANCELLED", reason))
        assert found == (State.cancelled, detail)


def test_a_stage_whose_job_has_just_left_the_queue_is_not_yet_lost(tmp_path: Path) -> None:
    sweep = SweepDir(tmp_path)
    sweep.submissions.write_text("")
    found = [
        decide(sweep, StageOf("report", None), Submission("report", launcher, "7", 0), BEGAN, None)
        for launcher in ("slurm", "local")
    ]
    assert found[0] == (State.ended, "its job left the queue; its end is not known yet")
    assert found[1][0] is State.lost


def test_only_a_cancellation_cancels_a_stage(tmp_path: Path) -> None:
    sweep = SweepDir(tmp_path)
    given = {"stage": "report", "launcher": "slurm", "job_id": "7", "events_before": 0, "host": "login"}
    append_record(sweep.submissions, {"event": "stage_submitted"} | given)
    append_record(sweep.submissions, {"event": "adopted", "mark": "m", "job_id": "7"})
    (stage,) = latest_stages(sweep).values()
    assert not stage.cancelled
    append_record(sweep.submissions, {"event": "cancelled", "job_id": "7"})
    (stage,) = latest_stages(sweep).values()
    assert stage.cancelled


def test_the_states_of_tasks_are_counted_with_their_most_frequent_reasons() -> None:
    def tasks(state: State, *details: str, run: str | None = "r") -> list[StageState]:
        return [StageState("evaluate", run, state, detail, "7", "slurm", None) for detail in details]

    several = [*tasks(State.failed, "a", "b", "b", "c", "d", "d"), *tasks(State.running, "")]
    assert counted_states(several) == ["1 running", "6 failed (b; d; a)"]
    assert counted_states(tasks(State.queued, "Priority", run=None)) == ["queued (Priority)"]


def test_the_states_of_one_run_are_without_the_stages_of_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = SweepDir(tmp_path / "s")
    for name, error in (("good", None), ("bad", "boom")):
        run = finished_run(sweep.path, a_run(name, steps=1))
        record = {"event": "stage_submitted", "stage": "evaluate", "run": name, "launcher": "slurm", "job_id": "8",
                  "events_before": 0, "host": "h"}  # fmt: skip
        append_record(sweep.submissions, record)
        event(run, "evaluated" if error is None else "evaluate_failed", **({} if error is None else {"error": error}))
    assert main(["status", "--check", str(sweep.path / "good")]) == 0
    assert "boom" not in capsys.readouterr().out
    assert main(["status", "--check", str(sweep.path)]) == 1
    assert "boom" in capsys.readouterr().out


def test_a_run_starts_in_a_pilot_only_if_its_whole_time_fits_before_the_stop() -> None:
    turn = Turn(one("wall_time_min=10").run, SweepDir(Path("s")).run("r"), launches=0)
    needed_s = turn.until_stop_s
    assert 0 < needed_s < 600
    assert turn.has_time(now=100.0, stop_at=100.0 + needed_s)
    assert not turn.has_time(now=100.0, stop_at=99.0 + needed_s)
    turn.not_before = 150.0
    assert not turn.has_time(now=100.0, stop_at=149.0 + needed_s)
    assert turn.has_time(now=100.0, stop_at=150.0 + needed_s)
