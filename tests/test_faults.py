"""Faults made for real on a real Slurm: what status says of them, and that the run goes on with the same losses."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest

from jobs.cli import main
from jobs.rundir import RunDir, SweepDir, read_records
from jobs.submit.states import State, states
from tests.real_run import SMALL, events, losses, make_run, train
from tests.slurm.cluster import SlurmCluster

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.faults,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("slurm"),
]

EVERY = 20
# `make fault-table` sets it: a file that gets a line a fault.
TABLE = os.environ.get("SLURMSCALE_FAULT_TABLE")
TRAINING = [*SMALL, "job.steps=200", f"job.checkpoint_every_steps={EVERY}"]


@pytest.fixture(autouse=True)
def _leaves_nothing_queued() -> Iterator[None]:
    yield
    subprocess.run(["scancel", "--me"], check=True)
    wait_until(lambda: not shell("squeue", "-h", "-r"))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    run = make_run(tmp_path_factory.mktemp("undisturbed"), *TRAINING, "ranks_per_node=2", small=False)
    assert train(run) == [0, 0]
    return losses(run)


def shell(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def wait_until(condition: Callable[[], object], seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.2)


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


def job_id(run: RunDir) -> str:
    (record,) = [r for r in read_records(SweepDir(run.path.parent).submissions) if r["event"] == "submitted"]
    return str(record["job_id"])


def state(run: RunDir) -> State:
    return states(SweepDir(run.path.parent))[0].state


def detail(run: RunDir) -> str:
    return states(SweepDir(run.path.parent))[0].detail


def process_of(run: RunDir, rank: int) -> psutil.Process:
    """The process of a rank of this run: Slurm told it its number, and its command line names the sweep."""
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            number = process.environ().get("SLURM_PROCID")
            if ours(process, run) and number == str(rank) and "python" in process.name():
                return process
    raise AssertionError(f"no process of rank {rank}")


def finished(run: RunDir) -> None:
    wait_until(lambda: state(run) is State.finished, 150)


# --- it goes on ----------------------------------------------------------------------------------------------


def kill_a_rank(run: RunDir, _slurm: SlurmCluster) -> None:
    process_of(run, 1).send_signal(signal.SIGKILL)


def stop_a_rank(run: RunDir, _slurm: SlurmCluster) -> None:
    process_of(run, 1).send_signal(signal.SIGSTOP)


def warn_of_the_limit(run: RunDir, _slurm: SlurmCluster) -> None:
    shell("scancel", "--signal=USR2", job_id(run))


def requeue_by_hand(run: RunDir, _slurm: SlurmCluster) -> None:
    shell("scontrol", "requeue", job_id(run))


def preempt(run: RunDir, _slurm: SlurmCluster) -> None:
    shell("sbatch", "--nodes=4", "--exclusive", "--output=/dev/null", "--wrap=sleep 2")
    wait_until(lambda: state(run) is State.queued)


def crash_a_node(run: RunDir, slurm: SlurmCluster) -> None:
    node = second_node(run)
    slurm.crash(node)
    wait_until(lambda: state(run) is State.queued)
    slurm.start_again(node)
    wait_until(lambda: "State=IDLE " in shell("scontrol", "show", "node", node))


def second_node(run: RunDir) -> str:
    nodes = events(run, "started")[-1]["nodes"]
    assert isinstance(nodes, list)
    return str(nodes[1])


@pytest.mark.parametrize(
    ("fault", "overrides", "requeued"),
    [
        (kill_a_rank, [], [("killed", "rank 1 ended without a word of its own; srun says: Killed")]),
        (stop_a_rank, ["engine.hang_timeout_s=8"], [("hung", "gave no sign of life for")]),
        (warn_of_the_limit, [], [("time_limit", None)]),
        (preempt, ["cluster.partition=spare"], [("preempted", None)]),
        # Slurm itself starts these again.
        (requeue_by_hand, [], []),
        (crash_a_node, [], []),
    ],
    ids=["kill_a_rank", "stop_a_rank", "warn_of_the_limit", "preempt", "requeue_by_hand", "crash_a_node"],
)
def test_a_disturbed_run_goes_on_by_itself_with_the_losses_of_an_undisturbed_one(
    fault: Callable[[RunDir, SlurmCluster], None], overrides: list[str], requeued: list[tuple[str, str | None]],
    undisturbed: list[float], slurm: SlurmCluster, tmp_path: Path,
) -> None:  # fmt: skip
    run = under_way(tmp_path, *overrides)
    made = datetime.now(UTC)
    fault(run, slurm)
    finished(run)
    assert losses(run) == pytest.approx(undisturbed, abs=1e-5)
    assert [event["cause"] for event in events(run, "requeued")] == [cause for cause, _ in requeued]
    for _, words in requeued:
        assert words is None or words in "".join(str(event["error"]) for event in events(run, "failed"))
    first, second = events(run, "started")
    assert (first["restart"], second["restart"]) == (0, 1)
    # At most what came after the last checkpoint that was written is computed again.
    rows = [row["step"] for row in read_records(run.metrics) if "step" in row]
    lost_steps = len(rows) - len(set(rows))
    assert lost_steps < 2 * EVERY
    if TABLE is not None:
        back_s = (datetime.fromisoformat(str(second["time"])) - made).total_seconds()
        with Path(TABLE).open("a") as table:
            table.write(f"{fault.__name__},{back_s:.1f},{lost_steps},{EVERY}\n")
    assert not list(run.checkpoints.glob(".*"))
    wait_until(lambda: not any(ours(process, run) for process in psutil.process_iter()), 30)


def ours(process: psutil.Process, run: RunDir) -> bool:
    try:
        return str(run.path.parent) in " ".join(process.cmdline()) and process.pid != os.getpid()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


@pytest.mark.parametrize("daemon", ["slurmctld", "slurmdbd"])
def test_a_run_does_not_notice_that_a_daemon_of_slurm_was_away(
    daemon: str, undisturbed: list[float], slurm: SlurmCluster, tmp_path: Path
) -> None:
    run = under_way(tmp_path)
    slurm.kill(daemon)
    try:
        # Without its controller Slurm knows nothing, which takes it a while to say; the run has its own word.
        assert state(run) in {State.running, State.finished}
        wait_until(lambda: events(run, "finished"))
        assert state(run) is State.finished
    finally:
        slurm.start_again(daemon)
    wait_until(lambda: subprocess.run(["sacctmgr", "-n", "show", "cluster"], check=False).returncode == 0)
    wait_until(lambda: subprocess.run(["scontrol", "ping"], check=False, capture_output=True).returncode == 0)
    assert losses(run) == pytest.approx(undisturbed, abs=1e-5)
    assert len(events(run, "started")) == 1


# --- it does not ---------------------------------------------------------------------------------------------


def test_a_wrong_configuration_is_never_requeued(tmp_path: Path) -> None:
    run = submitted(tmp_path, "job.init_from=/nowhere")
    wait_until(lambda: state(run) is State.failed)
    assert not shell("squeue", "-h", "-r")
    assert events(run, "requeued") == []
    assert "no lit_model.pth" in detail(run)


def test_a_run_that_may_not_go_on_names_the_killed_rank(tmp_path: Path) -> None:
    run = under_way(tmp_path, "launcher.requeues=0")
    process_of(run, 1).kill()
    wait_until(lambda: state(run) is State.failed, 60)
    assert detail(run).startswith("rank 1 on node")
    assert "srun says: Killed" in detail(run)
    assert not shell("squeue", "-h", "-r")


def test_a_cancelled_run_is_not_brought_back(tmp_path: Path) -> None:
    run = under_way(tmp_path)
    shell("scancel", job_id(run))
    wait_until(lambda: not shell("squeue", "-h", "-r"))
    assert state(run) in {State.stopped, State.cancelled}
    assert events(run, "requeued") == []
