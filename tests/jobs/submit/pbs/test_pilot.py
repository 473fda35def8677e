"""launcher=pbs_pilot on the stand-in for PBS: real processes from one qsub to the records of all runs."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path

import pytest

from jobs.cli import main
from jobs.failure_causes import FailureCause, record_failure
from jobs.plan.compose import compose
from jobs.rundir import RunDir, SweepDir, append_record, now, read_records
from jobs.submit.allocations.pbs import PbsAllocation
from jobs.submit.allocations.pilot import Pilot
from jobs.submit.launchers.pbs_pilot import job_script
from jobs.submit.states import State, states
from jobs.submit.trust.integrity import submitted_as
from tests.support.cli import files, printed, printed_words, small
from tests.support.fake_runs import a_run, prepared
from tests.support.interrupted import dying_shell
from tests.support.pbs.fixture import PbsStandIn
from tests.support.real_run import events, losses
from tests.support.waiting import limit_s, wait_until

ENDLESS = ("job.steps=100000", "job.checkpoint_every_steps=20", "data.max_samples=64")


def given(where: Path, *more: str, minutes: int = 60) -> list[str]:
    size = ("launcher.pilot_nodes=2", f"launcher.pilot_wall_time_min={minutes}")
    chosen = ("cluster=generic_slurm", "launcher=pbs_pilot", "wall_time_min=15", "name=r${repeat}", *size)
    return [*small(where), *chosen, *more]


def details(sweep: SweepDir) -> dict[str, tuple[State, str]]:
    return {item.run.name: (item.state, item.detail) for item in states(sweep)}


def stays(sweep: SweepDir) -> list[tuple[str, str, str]]:
    """From when to when each run had which node, by the ledger."""
    records = [record for record in read_records(sweep.submissions) if record["event"] in {"launched", "ended"}]
    ends = {record["run"]: record["time"] for record in records if record["event"] == "ended"}
    return [(each["time"], ends[each["run"]], each["place"]) for each in records if each["event"] == "launched"]


# --- from qsub to the end


@pytest.mark.slow
def test_three_runs_take_turns_on_the_two_nodes_of_one_job(
    pbs: PbsStandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (pbs.directory / "distinct").touch()
    (pbs.directory / "hold").touch()
    assert main(["submit", "-m", *given(tmp_path, "repeat=1,2,3")]) == 0
    assert "submitted 3 runs as pilot 1: 2 nodes for 1:00:00 at most" in printed(capsys)
    sweep = SweepDir(tmp_path / "s")
    wait_until(lambda: details(sweep)["r1"] == (State.queued, "Not Running: Not enough free nodes available"))
    asked = pbs.job("1")["Resource_List"]
    assert (asked["select"], asked["place"], asked["walltime"]) == ("2:mpiprocs=1", "scatter:excl", "01:00:00")
    (pbs.directory / "hold").unlink()

    def both_run() -> bool:
        found = details(sweep)
        waits = found["r3"] == (State.queued, "waits for 1 free node of pilot 1")
        return waits and found["r2"][1].endswith("on 127.0.0.2 of pilot 1")

    wait_until(both_run)
    assert main(["resume", "--wait", str(sweep.path)]) == 0, printed(capsys)
    assert {state for state, _ in details(sweep).values()} == {State.finished}
    wait_until(lambda: not pbs.alive())
    assert pbs.job("1")["Exit_status"] == 0
    assert len(pbs.calls("qsub")) == 1
    assert [len(events(run, "started")) for run in sweep.runs()] == [1, 1, 1]
    assert {node for _, _, node in stays(sweep)} == {"localhost", "127.0.0.2"}
    for (begin, end, node), (other_begin, other_end, other) in combinations(stays(sweep), 2):
        assert node != other or end <= other_begin or other_end <= begin
    assert all(losses(run) == pytest.approx(losses(sweep.run("r1")), abs=1e-5) for run in sweep.runs())
    assert main(["logs", str(sweep.run("r3").path)]) == 0
    assert "r3: finished at step 4 of 4" in printed(capsys)


@pytest.mark.slow
@pytest.mark.long
def test_a_pilot_that_pbs_runs_again_goes_on_and_is_cancelled_run_by_run_or_as_a_whole(
    pbs: PbsStandIn, tmp_path: Path
) -> None:
    (pbs.directory / "distinct").touch()
    assert main(["submit", "-m", *given(tmp_path, *ENDLESS, "repeat=1,2,3")]) == 0
    sweep = SweepDir(tmp_path / "s")
    first, second, _ = sweep.runs()
    wait_until(lambda: events(first, "checkpoint") and events(second, "checkpoint"))
    assert details(sweep) == {
        "r1": (State.running, "on localhost of pilot 1"),
        "r2": (State.running, "on 127.0.0.2 of pilot 1"),
        "r3": (State.queued, "waits for 1 free node of pilot 1"),
    }
    # An operator, or the server after it has lost a node.
    pbs.does("qrerun", "1")
    wait_until(lambda: len(events(first, "started")) == len(events(second, "started")) == 2)
    assert pbs.job("1")["run_count"] == 2
    for run in (first, second):
        assert [(each["restart"], each["job_id"]) for each in events(run, "started")] == [(0, "1"), (1, "1")]
        assert int(str(events(run, "started")[1]["from_step"])) >= 20
    assert details(sweep)["r1"] == (State.running, "restart 1, after preempted; on localhost of pilot 1")
    assert main(["cancel", str(second.path)]) == 0
    wait_until(lambda: details(sweep)["r3"][1].endswith("on 127.0.0.2 of pilot 1"))
    assert details(sweep)["r2"] == (State.cancelled, "")
    assert len(events(second, "stopped")) == 1, "with a checkpoint"
    assert pbs.calls("qdel") == []
    assert main(["cancel", str(sweep.path)]) == 0
    assert pbs.calls("qdel") == ["qdel 1"]
    wait_until(lambda: not pbs.alive())
    assert {state for state, _ in details(sweep).values()} == {State.cancelled}


@pytest.mark.slow
@pytest.mark.long
def test_what_the_walltime_of_a_pilot_leaves_goes_to_the_next_one(
    pbs: PbsStandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (pbs.directory / "distinct").touch()
    assert main(["submit", "-m", *given(tmp_path, *ENDLESS, "repeat=1,2,3", "wall_time_min=2", minutes=3)]) == 0
    sweep = SweepDir(tmp_path / "s")
    wait_until(lambda: not pbs.alive())
    assert pbs.job("1")["Exit_status"] == 0, "it ends before PBS ends it"
    # A run is asked to stop 90 s after its start, the pilot 135 s after its own: no time is left for another turn.
    another = "pilot 1 ended before its turn; `slurmscale resume` submits another"
    assert details(sweep)["r3"] == (State.prepared, another)
    steps = []
    for run in sweep.runs()[:2]:
        assert details(sweep)[run.name][0] is State.stopped
        (stopped,) = events(run, "stopped")
        assert stopped["cause"] == "time_limit"
        steps.append(stopped["step"])
    printed(capsys)
    assert main(["resume", str(sweep.path)]) == 0
    assert "submitted 3 runs as pilot 2" in printed(capsys)
    wait_until(lambda: all(len(events(run, "started")) == 2 for run in sweep.runs()[:2]))
    assert [events(run, "started")[1]["from_step"] for run in sweep.runs()[:2]] == steps
    assert main(["cancel", str(sweep.path)]) == 0


@pytest.mark.slow
@pytest.mark.long
def test_the_pairs_of_a_campaign_take_turns_in_one_job_for_each_attempt(
    pbs: PbsStandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (pbs.directory / "distinct").touch()
    words = [each for each in given(tmp_path) if not each.startswith("name=")]
    assert main(["attempt", "baseline", *words, "--repeats", "2", "--wait"]) == 0, printed(capsys)
    pilot = [each for each in words if each.startswith("launcher")]
    named = ["--campaign", str(tmp_path / "s")]
    assert main(["attempt", "slow", "job.learning_rate=1e-3", *pilot, "--repeats", "2", *named, "--wait"]) == 0
    shown = printed_words(capsys)
    sweep = SweepDir(tmp_path / "s")
    assert {state for state, _ in details(sweep).values()} == {State.finished}
    assert len(pbs.calls("qsub")) == 2
    wait_until(lambda: not pbs.alive())
    assert [pbs.job(each)["Exit_status"] for each in pbs.jobs()] == [0, 0]
    # One run at a time, also where nodes are free, and in alternating order.
    begins = [each["run"] for each in read_records(sweep.submissions) if each["event"] == "launched"]
    assert begins == ["baseline-r1", "baseline-r2", "slow-baseline-r1", "slow-r1", "slow-r2", "slow-baseline-r2"]
    for (_, end, _), (begin, _, _) in pairwise(stays(sweep)):
        assert end <= begin
    assert "slow" in shown, "the leaderboard"


def test_a_job_of_a_shell_that_was_killed_is_adopted(
    pbs: PbsStandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (pbs.directory / "hold").touch()
    sweep = SweepDir(tmp_path / "s")
    shell = dying_shell(tmp_path, "after", "KILL", "submit", "-m", *given(tmp_path, "repeat=1,2"), program="qsub")
    shell.communicate(timeout=limit_s(180))
    assert shell.returncode == -signal.SIGKILL
    wait_until(pbs.alive)
    assert main(["resume", str(sweep.path)]) == 0
    shown = printed_words(capsys)
    assert "adopted job 1, whose submission was interrupted" in shown
    assert "2 runs: 2 queued; 0 to resume" in shown
    assert {item.job_id for item in states(sweep)} == {"1"}
    for name, calls in (("r1", []), ("r2", ["qdel 1"])):
        assert main(["cancel", str(sweep.run(name).path)]) == 0
        assert pbs.calls("qdel") == calls, "the last run ends the job"
        assert details(sweep)[name][0] is State.cancelled


# --- refusals


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["launcher.pilot_nodes=null"], "launcher=pbs_pilot needs the size of its one job. Set launcher.pilot_nodes="),
        (["nodes=3"], "nodes=3, but launcher.pilot_nodes=2. Set launcher.pilot_nodes=3 or more."),
        (["cluster.partition=gpu"], "cluster.partition=gpu does not exist here; the queues are normal, workq."),
        (["cluster.partition=normal", "launcher.pilot_wall_time_min=1500"],
         "launcher.pilot_wall_time_min=1500, but queue normal allows 1440 (resources_max.walltime=24:00:00). Set "
         "launcher.pilot_wall_time_min=1440 or less."),
        (["cluster.qos=high"], "cluster.qos is an option of Slurm, and launcher=pbs_pilot writes for PBS."),
        (["-m", "cluster.partition=workq,normal", "name=${cluster.partition}"],
         "launcher=pbs_pilot runs all points in one job, but cluster.partition is workq for workq and normal for "),
        (["launcher.spare_nodes=1"], "which launcher=pbs_pilot does not submit; the other nodes of its job are spares"),
    ],
)  # fmt: skip
def test_a_pilot_that_can_never_run_is_refused_before_anything_is_prepared(
    more: Sequence[str], words: str, pbs: PbsStandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["submit", *given(tmp_path, *more)]) == 2
    assert words in printed_words(capsys)
    assert files(tmp_path) <= {"cache"}
    assert pbs.jobs() == {}


# --- the nodes


def test_nodes_on_which_runs_failed_twice_are_left_out_whatever_their_domain(tmp_path: Path) -> None:
    launcher = replace(a_run().launcher, pilot_nodes=2, pilot_wall_time_min=60)
    run = prepared(tmp_path, replace(a_run(), launcher=launcher))
    submitted = {"event": "submitted", "run": run.name, "launcher": "pbs_pilot", "job_id": "7", "time": now()}
    append_record(SweepDir(tmp_path).submissions, submitted | {"events_before": 1, "host": "login", "nodes": 1})
    for restart, node in enumerate(("pn02", "pn01", "pn02")):
        record_failure(run, FailureCause.hardware, rank=0, node=node, error="lost", restart=restart)
    (tmp_path / "nodes").write_text("pn01.cluster\npn01.cluster\npn02.cluster\n")
    allocation = PbsAllocation("7", tmp_path / "nodes", 3600.0)
    assert allocation.places == {"pn01.cluster": 0, "pn02.cluster": 2}
    assert Pilot(SweepDir(tmp_path), allocation, submitted_as([run])).bad_nodes == {"pn02.cluster"}


# --- the script


def test_the_script_is_valid_shell_and_shellcheck_finds_nothing(tmp_path: Path) -> None:
    run = compose(given(tmp_path, "cluster.cpus_per_rank=4", "cluster.modules=[cuda]"), multirun=False)[0].run
    sweep = SweepDir(tmp_path / "s")
    directory = RunDir(sweep.path / "r1")
    directory.path.mkdir(parents=True)
    directory.code.symlink_to(sweep.code("0" * 32))
    directory.config.touch()
    file = tmp_path / "script"
    file.write_text(job_script(sweep, [(run, directory)], "s-0"))
    assert "#PBS -N s-0\n" in file.read_text()
    assert " $((3600 - SECONDS)) <<< " in file.read_text()
    for command in (("bash", "-n"), (Path(sys.executable).parent / "shellcheck", "--exclude=SC1091")):
        checked = subprocess.run([*command, file], capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stdout + checked.stderr
