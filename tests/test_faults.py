"""Faults made for real on a real Slurm: what status says of them, and that the run goes on with the same losses."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from jobs.cli import main
from jobs.rundir import RunDir, SweepDir, read_records
from jobs.submit.states import State, states
from tests.real_run import SMALL, events, losses, make_run, train

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.usefixtures("slurm")]

EVERY = 20
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


def kill_a_rank(run: RunDir) -> None:
    process_of(run, 1).send_signal(signal.SIGKILL)


def stop_a_rank(run: RunDir) -> None:
    process_of(run, 1).send_signal(signal.SIGSTOP)


def warn_of_the_limit(run: RunDir) -> None:
    shell("scancel", "--signal=USR2", job_id(run))


def requeue_by_hand(run: RunDir) -> None:
    shell("scontrol", "requeue", job_id(run))


def take_a_node_down(run: RunDir) -> None:
    node = str(events(run, "started")[-1]["nodes"][1])  # type: ignore[index]
    shell("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=a test")
    wait_until(lambda: state(run) is State.queued)
    # Its slurmd lives, and may have told Slurm so already.
    subprocess.run(["scontrol", "update", f"NodeName={node}", "State=RESUME"], capture_output=True, check=False)


@pytest.mark.parametrize(
    ("fault", "overrides", "requeued"),
    [
        (kill_a_rank, [], [("killed", "rank 1 ended without a word of its own; srun says: Killed")]),
        (stop_a_rank, ["engine.hang_timeout_s=8"], [("hung", "gave no sign of life for")]),
        (warn_of_the_limit, [], [("time_limit", None)]),
        # Slurm itself starts these again.
        (requeue_by_hand, [], []),
        (take_a_node_down, [], []),
    ],
    ids=["kill_a_rank", "stop_a_rank", "warn_of_the_limit", "requeue_by_hand", "take_a_node_down"],
)
def test_a_disturbed_run_goes_on_by_itself_with_the_losses_of_an_undisturbed_one(
    fault: Callable[[RunDir], None], overrides: list[str], requeued: list[tuple[str, str | None]],
    undisturbed: list[float], tmp_path: Path,
) -> None:  # fmt: skip
    run = under_way(tmp_path, *overrides)
    fault(run)
    finished(run)
    assert losses(run) == pytest.approx(undisturbed, abs=1e-5)
    assert [event["cause"] for event in events(run, "requeued")] == [cause for cause, _ in requeued]
    for _, words in requeued:
        assert words is None or words in "".join(str(event["error"]) for event in events(run, "failed"))
    first, second = events(run, "started")
    assert (first["restart"], second["restart"]) == (0, 1)
    # At most what came after the last checkpoint is computed again.
    rows = [row["step"] for row in read_records(run.metrics) if "step" in row]
    assert len(rows) - len(set(rows)) < 2 * EVERY
    assert not list(run.checkpoints.glob(".*"))
    wait_until(lambda: not any(ours(process, run) for process in psutil.process_iter()), 30)


def ours(process: psutil.Process, run: RunDir) -> bool:
    try:
        return str(run.path.parent) in " ".join(process.cmdline()) and process.pid != os.getpid()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


# --- it does not ---------------------------------------------------------------------------------------------


def test_a_wrong_configuration_is_never_requeued(tmp_path: Path) -> None:
    run = submitted(tmp_path, "job.init_from=/nowhere")
    wait_until(lambda: state(run) is State.failed)
    assert not shell("squeue", "-h", "-r")
    assert events(run, "requeued") == []
    assert "no lit_model.pth" in detail(run)


def test_a_run_that_may_not_go_on_names_the_killed_rank(tmp_path: Path) -> None:
    run = under_way(tmp_path, "launcher.requeues=0")
    kill_a_rank(run)
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
