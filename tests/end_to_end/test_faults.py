"""Real faults on a real Slurm: status reports them, and the run continues with the same losses."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest

from analysis.failures.runs import Failure, failures
from analysis.load.discover import read_runs
from analysis.run import RunResult
from jobs import metrics as m
from jobs.cli import main
from jobs.failure_causes import FailureCause, record_failure
from jobs.rundir import RunDir, SweepDir, read_records
from jobs.submit.states import State
from jobs.submit.trust.own_sweeps import own
from tests.support.faults import (
    Condition,
    Fault,
    can_cut_off,
    crash_a_node,
    cut_a_node_off,
    detail,
    disturb,
    kill_a_rank,
    preempt,
    requeue_by_hand,
    second_node,
    shell,
    state,
    stop_a_rank,
    warn_of_the_limit,
)
from tests.support.processes import job_id, ours, process_of
from tests.support.real_run import SMALL, events, losses, make_run, train
from tests.support.slurm.cluster import SlurmCluster
from tests.support.training import fill, long, small_disk
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.faults,
    pytest.mark.slow,
    pytest.mark.usefixtures("empty_queue"),
]

EVERY = 20
# `make fault-table` sets it: a file that gets one line per fault.
TABLE = os.environ.get("SLURMSCALE_FAULT_TABLE")
TRAINING = [*SMALL, "job.steps=200", f"job.checkpoint_every_steps={EVERY}"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    run = make_run(tmp_path_factory.mktemp("undisturbed"), *TRAINING, "ranks_per_node=2", small=False)
    assert train(run) == [0, 0]
    return losses(run)


def submitted(where: Path, *overrides: str) -> RunDir:
    """A run of two ranks on two nodes."""
    assert main(["submit", *TRAINING, "cluster=generic_slurm", "nodes=2", f"runs_dir={where}", "sweep=s", "name=r",
                 f"data.cache_dir={where}/cache", "launcher.requeue_pause_s=1", *overrides]) == 0  # fmt: skip
    return SweepDir(where / "s").run("r")


def under_way(where: Path, *overrides: str) -> RunDir:
    """The same, past its first checkpoint."""
    run = submitted(where, *overrides)
    wait_until(lambda: events(run, "checkpoint"))
    return run


def finished(run: RunDir) -> None:
    wait_until(lambda: state(run) is State.finished)


# --- it goes on ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "overrides", "requeued"),
    [
        (kill_a_rank, [], [("killed", "rank 1 ended without recording a cause; srun reports: Killed")]),
        long(stop_a_rank, ["engine.hang_timeout_s=20"], [("hung", "wrote no heartbeat for")]),
        long(warn_of_the_limit, [], [("time_limit", None)]),
        long(preempt, ["cluster.partition=spare"], [("preempted", None)]),
        # Slurm itself starts these again.
        long(requeue_by_hand, [], []),
        long(crash_a_node, [], []),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_disturbed_run_goes_on_by_itself_with_the_losses_of_an_undisturbed_one(
    fault: Fault, overrides: list[str], requeued: list[tuple[str, str | None]],
    undisturbed: list[float], slurm: SlurmCluster, tmp_path: Path,
) -> None:  # fmt: skip
    run = under_way(tmp_path, *overrides)
    made = datetime.now(UTC)
    disturb(fault, run, slurm)
    finished(run)
    assert losses(run) == pytest.approx(undisturbed, abs=1e-5)
    assert [event["cause"] for event in events(run, "requeued")] == [cause for cause, _ in requeued]
    for _, words in requeued:
        assert words is None or words in "".join(str(event["error"]) for event in events(run, "failed"))
    first, second = events(run, "started")
    assert (first["restart"], second["restart"]) == (0, 1)
    result = every_second_of(run)
    assert result.lost_to[0].cause in (
        {cause for cause, _ in requeued} or {"stopped", "lost_peer", "no cause recorded"}
    )
    little_is_lost_and_nothing_left(fault.__name__, run, made)


@pytest.mark.long
def test_after_a_spare_node_took_over_the_other_one_reads_its_copy_of_the_checkpoint(
    undisturbed: list[float], slurm: SlurmCluster, tmp_path: Path
) -> None:
    disk = tmp_path / "local"
    disk.mkdir()
    once = ("job.checkpoint_every_steps=100", f"job.checkpoint_copy_dir={disk}")
    run = submitted(tmp_path, "launcher.spare_nodes=1", *once)
    wait_until(lambda: len(list(disk.glob("*/*/step-00000100"))) == 2)
    disturb(kill_a_rank, run, slurm)
    finished(run)
    assert losses(run) == pytest.approx(undisturbed, abs=1e-5)
    start = events(run, "started")[-1]
    assert (start["from_step"], start["nodes"]) == (100, ["node01", "node03"])
    for source in (m.CHECKPOINT_FROM_COPIES, m.CHECKPOINT_FROM_SHARED):
        assert int(str(start[source.name])) > 0
    # The node that was left out cannot remove its own.
    assert [path.name.rpartition("-")[2] for path in disk.glob("*/*")] == ["node02"]


def lose_a_node(run: RunDir, slurm: SlurmCluster) -> Iterator[Condition]:
    slurm.crash(second_node(run))
    yield from ()


@pytest.mark.parametrize(
    ("fault", "cause"),
    [(kill_a_rank, "killed"), long(lose_a_node, "node_failure")],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_spare_node_takes_the_place_of_the_one_that_failed_in_the_same_job(
    fault: Fault, cause: str, undisturbed: list[float], slurm: SlurmCluster,
    tmp_path: Path,
) -> None:  # fmt: skip
    run = under_way(tmp_path, "launcher.spare_nodes=1")
    made, (gone, spare) = datetime.now(UTC), (second_node(run), "node03")
    try:
        disturb(fault, run, slurm)
        wait_until(lambda: events(run, "recovered"))
        (requeued,), (recovered,) = events(run, "requeued"), events(run, "recovered")
        assert (requeued["cause"], requeued["left_out"], requeued["instead"]) == (cause, [gone], [spare])
        back = f"restart 1, after {cause} (rank 1 on {gone}), {spare} instead of {gone}, back after "
        assert detail(run).startswith(back) or state(run) is State.finished
        finished(run)
        first, second = events(run, "started")
        assert second["nodes"] == ["node01", spare]
        assert (first["job_id"], first["restart"]) == (second["job_id"], 0)
        assert second["restart"] == 1
        assert losses(run) == pytest.approx(undisturbed, abs=1e-5)
        print(f"{fault.__name__}: trained again after {recovered['recovery_time_s']:.1f} s")
        little_is_lost_and_nothing_left(f"{fault.__name__}_with_a_spare", run, made)
    finally:
        if "State=DOWN" in shell("scontrol", "show", "node", gone) or fault is lose_a_node:
            slurm.start_again(gone)


@pytest.mark.long
def test_a_job_with_spares_that_loses_the_node_of_its_batch_script_is_started_again(
    undisturbed: list[float], slurm: SlurmCluster, tmp_path: Path
) -> None:
    run = under_way(tmp_path, "launcher.spare_nodes=1")
    slurm.crash("node01")
    try:
        wait_until(lambda: events(run, "requeued"))
        (died,) = [event for event in events(run, "failed") if event["cause"] == "node_failure"]
        assert (died["node"], died["error"]) == ("node01", "node01, the node of the batch script, died")
        finished(run)
        assert losses(run) == pytest.approx(undisturbed, abs=1e-5)
        assert [event["restart"] for event in events(run, "started")] == [0, 1]
    finally:
        slurm.start_again("node01")


@pytest.mark.long
def test_a_run_goes_on_whose_node_was_cut_off_the_network(
    undisturbed: list[float], slurm: SlurmCluster, tmp_path: Path
) -> None:
    # With less than Slurm needs to find the node, our watchdog would find the silent ranks first.
    run = under_way(tmp_path, "engine.hang_timeout_s=40")
    if not can_cut_off():
        pytest.skip("only root can cut off a network")
    made = datetime.now(UTC)
    disturb(cut_a_node_off, run, slurm)
    finished(run)
    assert losses(run) == pytest.approx(undisturbed, abs=1e-5)
    # Slurm starts it again; a node that comes back may end its part of that start together with the old one.
    assert {event["cause"] for event in events(run, "requeued")} <= {"killed", "lost_peer"}
    little_is_lost_and_nothing_left("cut_a_node_off", run, made)


def little_is_lost_and_nothing_left(fault: str, run: RunDir, made: datetime) -> None:
    """At most what came after the last written checkpoint is computed again, and no process outlives its job."""
    rows = [row["step"] for row in read_records(run.metrics) if "step" in row]
    lost_steps = len(rows) - len(set(rows))
    assert lost_steps < 2 * EVERY
    if TABLE is not None:
        back_s = (datetime.fromisoformat(str(events(run, "started")[-1]["time"])) - made).total_seconds()
        with Path(TABLE).open("a") as table:
            table.write(f"{fault},{back_s:.1f},{lost_steps},{EVERY}\n")
    assert not list(run.checkpoints.glob(".*"))
    wait_until(lambda: not any(ours(process, run) for process in psutil.process_iter()))


def every_second_of(run: RunDir) -> RunResult:
    """Return a run as a report reads it; assert that its parts cover all time from submission to end."""
    (result,) = read_runs([run.path])
    (submitted,) = [r for r in read_records(SweepDir(run.path.parent).submissions) if r["event"] == "submitted"]
    (end,) = events(run, "finished")
    taken_s = (datetime.fromisoformat(str(end["time"])) - datetime.fromisoformat(submitted["time"])).total_seconds()
    # A job may start before the shell that submitted it has written its record; it then had no queue.
    assert taken_s - 0.01 < result.values[m.RUN_TIME] < taken_s + (0.01 if m.QUEUE_TIME in result.values else 1)
    assert sum(result.values[part] for part in m.GOODPUT_PARTS) == pytest.approx(result.values[m.RUN_TIME])
    return result


def why(run: RunDir) -> Failure:
    """Return the failure that a report shows for a run."""
    return failures(read_runs([run.path]))[run.path]


@pytest.mark.long
def test_a_run_that_reaches_its_time_limit_has_saved_and_goes_on_from_there(tmp_path: Path) -> None:
    run = under_way(tmp_path, "wall_time_min=1", "job.steps=1000000")
    wait_until(lambda: len(events(run, "started")) == 2)
    (stopped,) = events(run, "stopped")
    assert [event["cause"] for event in events(run, "requeued")] == ["time_limit"]
    assert events(run, "started")[1]["from_step"] == stopped["step"], "no step is lost"
    assert main(["cancel", str(run.path.parent)]) == 0
    wait_until(lambda: state(run) is State.cancelled)


@pytest.mark.long
@pytest.mark.parametrize("daemon", ["slurmctld", "slurmdbd"])
def test_a_run_does_not_notice_that_a_daemon_of_slurm_was_away(
    daemon: str, undisturbed: list[float], slurm: SlurmCluster, tmp_path: Path
) -> None:
    run = under_way(tmp_path)
    slurm.kill(daemon)
    try:
        # Without its controller Slurm's commands fail after a while; the run's own record remains.
        assert state(run) in {State.running, State.finished}
        wait_until(lambda: events(run, "finished"))
        assert state(run) is State.finished
    finally:
        slurm.start_again(daemon)
    wait_until(lambda: subprocess.run(["sacctmgr", "-n", "show", "cluster"], check=False).returncode == 0)
    wait_until(lambda: subprocess.run(["scontrol", "ping"], check=False, capture_output=True).returncode == 0)
    assert losses(run) == pytest.approx(undisturbed, abs=1e-5)
    assert len(events(run, "started")) == 1


@pytest.mark.long
def test_a_run_with_its_logs_on_a_full_disk_goes_on_after_a_fault(undisturbed: list[float], tmp_path: Path) -> None:
    sweep = SweepDir(tmp_path / "s")
    logs = sweep.logs
    with small_disk(logs, 2**20):
        logs.chmod(0o700)
        own(sweep)  # as a submission of another run would have done
        run = under_way(tmp_path)
        fill(logs)
        process_of(run, 1).kill()
        finished(run)
        wait_until(lambda: not shell("squeue", "-h", "-r"))
        wait_until(lambda: not any(ours(process, run) for process in psutil.process_iter()))
    assert losses(run) == pytest.approx(undisturbed, abs=1e-5)
    assert len(events(run, "requeued")) == 1


# --- it does not ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.long
def test_a_wrong_configuration_is_never_requeued(tmp_path: Path) -> None:
    run = submitted(tmp_path, "job.init_from=/nowhere", "job.init_from_is_remote=true")
    wait_until(lambda: state(run) is State.failed)
    assert not shell("squeue", "-h", "-r")
    assert events(run, "requeued") == []
    assert "has neither lit_model.pth nor" in detail(run)
    assert why(run) == Failure(FailureCause.refused, "failures/: failed, cause refused")


@pytest.mark.long
def test_a_run_that_may_not_go_on_names_the_killed_rank(tmp_path: Path) -> None:
    run = under_way(tmp_path, "launcher.requeues=0")
    process_of(run, 1).kill()
    wait_until(lambda: state(run) is State.failed)
    assert detail(run).startswith("rank 1 on node")
    assert "srun reports: Killed" in detail(run)
    assert not shell("squeue", "-h", "-r")
    assert why(run) == Failure(FailureCause.killed, "failures/: failed, cause killed")


@pytest.mark.slow
@pytest.mark.long
def test_a_requeue_that_slurm_refuses_is_a_failure_with_its_words(tmp_path: Path) -> None:
    run = under_way(tmp_path)
    shell("scontrol", "update", f"JobId={job_id(run)}", "Requeue=0")
    process_of(run, 1).kill()
    wait_until(lambda: not shell("squeue", "-h", "-r"))
    assert state(run) is State.failed
    assert "ended by killed, and Slurm does not requeue its job: " in "".join(
        str(event["error"]) for event in events(run, "failed")
    )


@pytest.mark.long
def test_a_bad_node_that_a_run_cannot_do_without_is_not_avoided(tmp_path: Path) -> None:
    run = under_way(tmp_path, "nodes=4", "scaling.global_batch_size=8")
    for _ in range(2):
        record_failure(run, FailureCause.killed, rank=0, node="node03", error="as if", restart=0)
    process_of(run, 1).kill()
    finished(run)
    assert "node03" in events(run, "started")[-1]["nodes"]  # type: ignore[operator]


@pytest.mark.slow
@pytest.mark.long
def test_a_cancelled_run_is_not_brought_back(tmp_path: Path) -> None:
    run = under_way(tmp_path)
    shell("scancel", job_id(run))
    wait_until(lambda: not shell("squeue", "-h", "-r"))
    wait_until(lambda: state(run) is State.cancelled)
    assert events(run, "requeued") == []
    # As in the README; accounting may lag by seconds.
    account = ("sacct", "--parsable2", "-o", "JobID,State,ExitCode", "-j", job_id(run))
    wait_until(lambda: "CANCELLED" in shell(*account))
    (run.path.parent / "sacct.txt").write_text(shell(*account))
    assert why(run).cause is FailureCause.cancelled
