"""launcher=pilot: many points inside one allocation, on a real Slurm where it matters."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import psutil
import pytest

from jobs.cli import main
from jobs.ranks import hosts
from jobs.rundir import RunDir, SweepDir, append_record, load_run, now, read_records
from jobs.submit.allocations.allocation import SlurmAllocation
from jobs.submit.allocations.allocation import Turn as Start
from jobs.submit.allocations.pilot import Turn, unfinished
from jobs.submit.job_state import JobState
from jobs.submit.launchers.pilot import job_script
from jobs.submit.states import State, decide, states
from jobs.submit.sweeps.history import History
from jobs.submit.sweeps.submissions import Submission
from jobs.submit.trust.integrity import submitted_as
from tests.support.cli import printed
from tests.support.fake_runs import a_run, event, prepared
from tests.support.real_run import SMALL, events, losses
from tests.support.waiting import wait_until

GENERIC = ["cluster=generic_slurm", "launcher=pilot", "wall_time_min=5"]


def a_pilot(where: Path, *overrides: str, nodes: int = 4, minutes: int = 20) -> list[str]:
    size = [f"launcher.pilot_nodes={nodes}", f"launcher.pilot_wall_time_min={minutes}"]
    return [*SMALL, *GENERIC, *size, f"runs_dir={where}", "sweep=s", f"data.cache_dir={where}/cache", *overrides]


def queue() -> list[str]:
    return subprocess.run(["squeue", "-h", "-o", "%i"], capture_output=True, text=True, check=True).stdout.split()


def details(sweep: SweepDir) -> dict[str, tuple[State, str]]:
    return {item.run.name: (item.state, item.detail) for item in states(sweep)}


# --- what is refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["launcher.pilot_nodes=null"],
         "launcher=pilot needs the size of its one job. Set launcher.pilot_nodes=NODES "
         "launcher.pilot_wall_time_min=MINUTES."),
        (["nodes=8"], "nodes=8, but launcher.pilot_nodes=4. Set launcher.pilot_nodes=8 or more."),
        (["wall_time_min=20"],
         "wall_time_min=20 leaves launcher.pilot_wall_time_min=20 no time to start. Set wall_time_min=19 or less, or "
         "launcher.pilot_wall_time_min=21 or more."),
        (["cluster.max_nodes=3"],
         "launcher.pilot_nodes=4, but generic_slurm allows 3 (cluster.max_nodes). Set launcher.pilot_nodes=3 or "
         "less."),
        (["cluster.max_wall_time_min=10"],
         "launcher.pilot_wall_time_min=20, but generic_slurm allows 10 (cluster.max_wall_time_min). Set "
         "launcher.pilot_wall_time_min=10 or less."),
        (["launcher.pilot_nodes=0"], "launcher.pilot_nodes=0 is not a positive number."),
    ],
)  # fmt: skip
def test_a_point_that_does_not_fit_the_pilot_is_refused_in_words(
    overrides: Sequence[str], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["submit", *a_pilot(tmp_path, *overrides)]) == 2
    assert expected in printed(capsys)
    assert not (tmp_path / "s").exists()


def test_points_that_cannot_share_one_job_are_refused_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["submit", "-m", *a_pilot(tmp_path, "cluster.partition=gpu,debug", "name=${cluster.partition}")]) == 2
    assert (
        "launcher=pilot runs all points in one job, but cluster.partition is gpu for gpu and debug for debug. "
        "Submit them as separate sweeps, one after the other."
    ) in printed(capsys)
    assert not (tmp_path / "s").exists()


@pytest.mark.slurm
@pytest.mark.usefixtures("empty_queue")
def test_a_pilot_that_its_partition_can_never_run_is_refused_and_not_queued(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["submit", *a_pilot(tmp_path, nodes=40)]) == 2
    assert "launcher.pilot_nodes=40, but partition gpu gives a job at most 4." in printed(capsys)
    assert main(["submit", *a_pilot(tmp_path, minutes=600)]) == 2
    assert "launcher.pilot_wall_time_min=600, but partition gpu allows 120" in printed(capsys)
    assert main(["submit", *a_pilot(tmp_path, "cluster.constraint=nosuch")]) == 2
    assert "sbatch refused a pilot of 4 nodes for 1 run: " in printed(capsys)
    assert queue() == []
    assert not (tmp_path / "s").exists()


# --- requests to Slurm ---------------------------------------------------------------------------------------


def test_the_job_has_whole_nodes_and_a_step_what_its_run_was_planned_for(tmp_path: Path) -> None:
    overrides = ["cluster.gpus=true", "cluster.ranks_per_node=8", "cluster.cpus_per_rank=4", "cluster.container=img"]
    points = a_pilot(tmp_path, *overrides, "nodes=2", "ranks_per_node=2", "launcher=dry", "name=r")
    assert main(["submit", *points]) == 0
    directory = SweepDir(tmp_path / "s").run("r")
    run = load_run(directory.config)
    text = job_script(SweepDir(tmp_path / "s"), [(run, directory)], "s")
    for option in ("nodes=4", "ntasks-per-node=8", "gpus-per-node=8", "cpus-per-task=4", "exclusive", "time=20",
                   "signal=B:USR2@90", "no-kill"):  # fmt: skip
        assert f"#SBATCH --{option}\n" in text
    assert "\nrefuse_changed ''" in text
    assert "trap requeue" not in text
    start = Start(SweepDir(tmp_path / "s"), run, directory, directory.code.resolve(), ["n3", "n5"], "1-1", 0)
    step = SlurmAllocation("1", ["n3", "n5"]).command(start)
    for option in ("nodes=2", "nodelist=n3,n5", "ntasks=4", "ntasks-per-node=2", "gpus-per-node=2", "cpus-per-task=4",
                   "container-image=img", "kill-on-bad-exit=1", "distribution=block", "time=5", "overlap"):  # fmt: skip
        assert f" --{option} " in step


# --- what is left --------------------------------------------------------------------------------------------


def test_a_point_is_started_only_where_it_has_all_the_time_that_it_was_promised(tmp_path: Path) -> None:
    run = replace(a_run(), wall_time_min=10)
    turn = Turn(run, RunDir(tmp_path), 0)
    # It is asked to stop 90 s before its ten minutes are over.
    assert turn.has_time(1000.0, 1510.0)
    assert not turn.has_time(1000.1, 1510.0)
    turn.not_before = 1030.0
    assert not turn.has_time(1000.0, 1510.0), "it has to pause first"


def test_a_pilot_starts_its_own_points_that_have_not_ended(tmp_path: Path) -> None:
    runs = []
    for name, job_id in {"before": "11", "mine": "12", "next": "13", "done": "12"}.items():
        run = prepared(tmp_path, a_run(name))
        runs.append(run)
        submitted = {"event": "submitted", "run": name, "launcher": "pilot", "job_id": job_id, "time": now()}
        append_record(SweepDir(tmp_path).submissions, submitted | {"events_before": 1, "host": "login"})
        if name == "done":
            event(run, "finished")
    assert [turn.directory.name for turn in unfinished(SweepDir(tmp_path), "12", submitted_as(runs))] == ["mine"]


def test_what_a_pilot_did_not_come_to_reads_so_and_can_be_resumed(tmp_path: Path) -> None:
    run = prepared(tmp_path, a_run())
    over = JobState("COMPLETED")
    words = "pilot 12 ended before its turn; `slurmscale resume` submits another"
    never = Submission(run.name, "pilot", "12", 1, nodes=1)
    assert decide(History(run, never), over) == (State.prepared, words)
    waits_again = replace(never, launches=1, log_id="12-1")
    assert decide(History(run, waits_again), over) == (State.stopped, words)
    cut_off = replace(waits_again, place="node01")
    assert decide(History(run, cut_off), JobState("TIMEOUT")) == (State.failed, "Slurm reports TIMEOUT")
    assert decide(History(run, replace(never, cancelled=True)), over) == (State.cancelled, "")


# --- a real Slurm --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.slurm
@pytest.mark.usefixtures("empty_queue")
@pytest.mark.long
def test_points_of_all_sizes_share_one_job_and_no_node_at_a_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["submit", "-m", *a_pilot(tmp_path, "nodes=1,2,4", "scaling.global_batch_size=4")]) == 0
    assert "submitted 3 runs as pilot" in printed(capsys)
    sweep = SweepDir(tmp_path / "s")
    (job_id,) = queue()
    wait_until(lambda: (State.queued, f"starting on node[01-04] of pilot {job_id}") in details(sweep).values())
    found = details(sweep)
    assert found["tiny-ddp-n1x1"] == (State.queued, f"waits for 1 free node of pilot {job_id}")
    assert found["tiny-ddp-n2x1"] == (State.queued, f"waits for 2 free nodes of pilot {job_id}")
    assert main(["logs", str(sweep.run("tiny-ddp-n1x1").path)]) == 2
    assert "waits for its turn and has not printed anything yet" in printed(capsys)
    assert main(["resume", "--wait", str(sweep.path)]) == 0, printed(capsys)
    assert "3 queued; 0 to resume" in printed(capsys)
    first = losses(sweep.run("tiny-ddp-n1x1"))
    assert all(losses(run) == pytest.approx(first, abs=1e-5) for run in sweep.runs())
    assert main(["logs", "--rank", "1", str(sweep.run("tiny-ddp-n2x1").path)]) == 0
    assert main(["logs", str(sweep.run("tiny-ddp-n2x1").path)]) == 0
    shown = printed(capsys)
    assert "tiny-ddp-n2x1: finished at step 6 of 6" in shown
    assert "tiny-ddp-n1x1: " not in shown, "each point has logs of its own"
    wait_until(lambda: not queue())
    for (start, end, nodes), (other_start, other_end, others) in combinations(stays(sweep), 2):
        assert not nodes & others or end <= other_start or other_end <= start
    launched = [record["run"] for record in read_records(sweep.submissions) if record["event"] == "launched"]
    assert launched == ["tiny-ddp-n4x1", "tiny-ddp-n2x1", "tiny-ddp-n1x1"]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.slurm
@pytest.mark.usefixtures("empty_queue")
def test_a_killed_point_goes_on_elsewhere_a_requeued_pilot_goes_on_and_what_a_pilot_leaves_goes_to_the_next_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long = ["job.steps=100000", "job.checkpoint_every_steps=20", "launcher.requeue_pause_s=1", "repeat=1,2"]
    assert main(["submit", "-m", *a_pilot(tmp_path, *long, nodes=3)]) == 0
    sweep = SweepDir(tmp_path / "s")
    first, second = sweep.runs()
    wait_until(lambda: events(first, "checkpoint") and events(second, "checkpoint"))
    (job_id,) = queue()
    rank_of(first).kill()
    wait_until(lambda: len(events(first, "started")) == 2)
    assert [event["cause"] for event in events(first, "requeued")] == ["killed"]
    assert details(sweep) == {
        first.name: (
            State.running,
            f"restart 1, after killed (rank 0 on node01); on node03 of pilot {job_id}",
        ),
        second.name: (State.running, f"on node02 of pilot {job_id}"),
    }
    assert [event["restart"] for event in events(first, "started")] == [0, 1]
    subprocess.run(["scontrol", "requeue", job_id], check=True)
    wait_until(lambda: len(events(first, "started")) == 3 and len(events(second, "started")) == 2)
    assert [event["cause"] for event in events(first, "requeued")] == ["killed", "preempted"]
    for run in (first, second):
        assert events(run, "started")[-1]["from_step"] == events(run, "stopped")[-1]["step"]
    subprocess.run(["scancel", "--batch", "--signal=USR2", job_id], check=True)
    wait_until(lambda: not queue())
    assert [events(run, "stopped")[-1]["cause"] for run in (first, second)] == ["time_limit"] * 2
    assert {state for state, _ in details(sweep).values()} == {State.stopped}
    steps = [events(run, "stopped")[-1]["step"] for run in (first, second)]
    printed(capsys)
    assert main(["resume", str(sweep.path)]) == 0
    assert "submitted 2 runs as pilot" in printed(capsys)
    wait_until(lambda: len(events(first, "started")) == 4 and len(events(second, "started")) == 3)
    assert [events(run, "started")[-1]["from_step"] for run in (first, second)] == steps
    assert main(["cancel", str(sweep.path)]) == 0
    wait_until(lambda: not queue())
    assert {state for state, _ in details(sweep).values()} == {State.cancelled}


def rank_of(run: RunDir) -> psutil.Process:
    """The process of the run's one rank."""
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process.cmdline()[-1:] == [str(run.path)] and "python" in process.name():
                return process
    raise AssertionError(f"{run.name} has no process")


def stays(sweep: SweepDir) -> list[tuple[str, str, set[str]]]:
    """From when to when each run had which nodes, by the ledger; nodes are those that the ranks met on."""
    found = []
    for run in sweep.runs():
        mine = {r["event"]: r for r in read_records(sweep.submissions) if r.get("run") == run.name}
        (started,) = [event for event in read_records(run.status) if event["event"] == "started"]
        assert started["nodes"] == hosts(mine["launched"]["place"])
        assert len(started["nodes"]) == load_run(run.config).nodes
        found.append((mine["launched"]["time"], mine["ended"]["time"], set(started["nodes"])))
    return found
