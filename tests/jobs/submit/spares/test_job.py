"""Spare nodes: what the job asks for, what it costs, and the records of a node that was replaced."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from analysis.metrics.goodput import replacements
from jobs.cli import main
from jobs.failure_causes import FailureCause, record_failure
from jobs.plan.cost import gpu_hours_limit
from jobs.rundir import RunDir, SweepDir, append_event, append_record, load_run, now
from jobs.schema import LauncherKind
from jobs.submit.allowance import most_node_hours
from jobs.submit.job_state import JobState
from jobs.submit.requeue import Restart, record_silent_end, restarts_before
from jobs.submit.slurm.batch_script import script_text
from jobs.submit.states import State, decide
from jobs.submit.sweeps.history import History
from jobs.submit.sweeps.submissions import latest_submissions, own_end
from tests.support.cli import printed
from tests.support.real_run import make_run

SLURM = ("cluster=generic_slurm", "launcher=slurm", "nodes=2", "launcher.spare_nodes=1")


def a_run(where: Path, *overrides: str) -> RunDir:
    """A run on record as submitted to Slurm."""
    run = make_run(where, *SLURM, *overrides)
    submitted = {"time": now(), "event": "submitted", "run": run.name, "launcher": "slurm", "job_id": "7", "host": "h"}
    append_record(SweepDir(run.path.parent).submissions, submitted | {"events_before": 0})
    return run


def test_a_job_asks_and_pays_for_its_spare_nodes_and_outlives_a_lost_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gpus = ("cluster.gpus=true", "cluster.price_per_gpu_hour=2", "cluster.currency=EUR", "wall_time_min=60")
    directory = a_run(tmp_path, *gpus)
    run = load_run(directory.config)
    text = script_text(run, directory, SweepDir(directory.path.parent))
    for line in ("#SBATCH --nodes=3\n", "#SBATCH --no-kill\n", "\ntrap requeue EXIT\n"):
        assert line in text
    assert f" -m jobs.submit.spares.job {directory.path}\n" in text
    assert "srun" not in text, "the program in the job starts the ranks"
    assert gpu_hours_limit(run) == 3 * run.ranks_per_node
    assert most_node_hours([run], LauncherKind.slurm) == 3 * (1 + run.launcher.requeues)
    without = replace(run, launcher=replace(run.launcher, spare_nodes=0))
    assert gpu_hours_limit(without) == 2 * run.ranks_per_node
    assert main(["plan", *SLURM, *gpus, "data=random", "job.steps=6", "job.checkpoint_every_steps=2"]) == 0
    shown = printed(capsys)
    assert " 2 + 1 " in shown
    where = "a spare one takes its place in the same job, and the run goes on from its last checkpoint"
    assert f"the job asks for 3 nodes and pays for all of them; when one of its 2 fails, {where}" in shown
    assert main(["plan", *SLURM, *gpus, "data=random", "job.steps=6"]) == 0
    assert "and the run begins again: it saves no checkpoint" in printed(capsys)


def test_the_exit_of_a_rank_that_lost_its_peer_is_not_the_cause(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    append_event(run, "started", attempt=1, restart=0)
    record_failure(run, FailureCause.lost_peer, rank=0, node="node01", error="Connection reset", restart=0)
    (submission,) = latest_submissions(SweepDir(run.path.parent)).values()
    record_silent_end(run, submission, "srun: error: node01: task 0: Exited with exit code 1\n", restart=0)
    end = own_end(run, submission)
    assert end is not None
    assert end["cause"] == "lost_peer"
    both = "srun: error: node01: task 0: Exited with exit code 1\nsrun: error: node02: task 1: Killed\n"
    record_silent_end(run, submission, both, restart=0)
    end = own_end(run, submission)
    assert end is not None
    assert (end["cause"], end["rank"], end["node"]) == ("killed", 1, "node02")


def test_a_replaced_node_is_counted_in_its_job_and_shown_with_the_time_until_the_run_was_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = a_run(tmp_path)
    append_event(run, "started", attempt=1, restart=0)
    record_failure(run, FailureCause.killed, rank=1, node="node02", error="it was", restart=0)
    Restart(FailureCause.killed, 0, [], fault_time=now(), in_job="7", left_out=["node02"], instead=["node03"]).record(
        run
    )
    (submission,) = latest_submissions(SweepDir(run.path.parent)).values()
    words = "killed (rank 1 on node02), node03 instead of node02"
    assert decide(History(run, submission), JobState("RUNNING")) == (
        State.queued,
        f"restart 1, after {words}; starting",
    )
    append_event(run, "started", attempt=2, restart=1)
    append_event(run, "recovered", attempt=2, step=21, recovery_time_s=17.2)
    words += ", back after 17 s"
    history = History(run, submission)
    assert decide(history, JobState("RUNNING")) == (State.running, f"restart 1, after {words}")
    assert list(replacements(history.events)) == ["node03 instead of node02, back after 17 s"]
    # A number for every start: Slurm counts its own restarts only.
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert restarts_before(run, "7") == 2
    assert restarts_before(run, "8") == 1
