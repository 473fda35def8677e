"""On a real Slurm: one run is never trained by two jobs."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from jobs.cli import main
from jobs.rundir import RunDir, SweepDir, read_records
from jobs.submit.states import State, states
from tests.support.interrupted import dying_shell
from tests.support.paths import ROOT
from tests.support.processes import job_id, process_of
from tests.support.real_run import SMALL, events
from tests.support.slurm.cluster import SlurmCluster
from tests.support.waiting import limit_s, wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.usefixtures("empty_queue")]


def submitted(where: Path, *overrides: str) -> RunDir:
    """A run of two ranks on two nodes that trains until it is stopped."""
    assert main(["submit", *SMALL, "job.steps=1000000", "job.checkpoint_every_steps=20", "cluster=generic_slurm",
                 "nodes=2", f"runs_dir={where}", "sweep=s", "name=r", f"data.cache_dir={where}/cache",
                 *overrides]) == 0  # fmt: skip
    return SweepDir(where / "s").run("r")


def slurm_states() -> list[str]:
    return subprocess.run(["squeue", "-h", "-o", "%T"], capture_output=True, text=True, check=True).stdout.split()


def state(run: RunDir) -> State:
    return states(SweepDir(run.path.parent))[0].state


@pytest.mark.slow
@pytest.mark.long
def test_a_job_that_completes_before_slurm_starts_it_again_is_alive(
    slurm: SlurmCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = submitted(tmp_path)
    sweep = run.path.parent
    wait_until(lambda: events(run, "checkpoint"))
    watching = subprocess.Popen([sys.executable, "-m", "jobs.cli", "watch", str(sweep)], cwd=ROOT,
                                stdout=subprocess.PIPE, text=True)  # fmt: skip
    with slurm.completing():
        subprocess.run(["scontrol", "requeue", job_id(run)], check=True)
        wait_until(lambda: events(run, "stopped") and slurm_states() == ["COMPLETING"])
        capsys.readouterr()
        assert main(["status", str(sweep)]) == 0
        assert "1 run: 1 running" in capsys.readouterr().out
        assert main(["resume", str(sweep)]) == 0
        assert "1 run: 1 running; 0 to resume" in capsys.readouterr().out
        assert slurm_states() == ["COMPLETING"]
    wait_until(lambda: len(events(run, "started")) == 2)
    assert watching.poll() is None
    assert main(["cancel", str(sweep)]) == 0
    assert watching.wait(limit_s(120)) == 1
    assert watching.stdout is not None
    assert "r: stopped" not in watching.stdout.read()
    watching.stdout.close()
    assert state(run) is State.cancelled


@pytest.mark.long
def test_of_two_jobs_that_a_person_started_on_one_run_the_earlier_one_stops(tmp_path: Path) -> None:
    run = submitted(tmp_path, "launcher=script", "launcher.requeues=3")

    def sbatch() -> str:
        command = ["sbatch", "--parsable", str(run.batch_script)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    first = sbatch()
    wait_until(lambda: events(run, "checkpoint"))
    second = sbatch()
    wait_until(lambda: len(events(run, "started")) == 2)
    wait_until(lambda: len(slurm_states()) == 1)
    written = len(events(run, "checkpoint"))
    wait_until(lambda: len(events(run, "checkpoint")) > written)
    assert state(run) is State.running
    assert main(["cancel", str(run.path.parent)]) == 0
    wait_until(lambda: not slurm_states())

    output = (run.path.parent / f"logs/{first}_0_log.out").read_text()
    assert f"slurmscale: job {second} has taken over this run; this job stops" in output
    assert f"slurmscale: job {second} has taken over r; this job neither records nor restarts it" in output
    began, (end,) = events(run, "started")[-1], events(run, "stopped")
    assert (began["job_id"], end["attempt"]) == (second, 2)
    assert not events(run, "failed")
    assert not events(run, "requeued")
    rows = [row for row in read_records(run.metrics) if "step" in row]
    attempts = [row["attempt"] for row in rows]
    assert attempts == sorted(attempts), "nothing of the first job comes after the second has begun"
    assert [row["step"] for row in rows if row["attempt"] == 2] == list(
        range(int(str(began["from_step"])) + 1, int(str(end["step"])) + 1)
    )
    assert not list(run.checkpoints.glob(".*"))


class Shells(RuleBasedStateMachine):
    """A user, an administrator and faults, in any order, on the sweep of one run."""

    @initialize()
    def submit(self) -> None:
        self.where = Path(tempfile.mkdtemp())
        self.run = submitted(self.where, "launcher.requeue_pause_s=1")
        self.sweep = str(self.run.path.parent)

    @rule()
    def status(self) -> None:
        assert main(["status", self.sweep]) == 0

    @rule()
    def resume(self) -> None:
        main(["resume", self.sweep])

    @rule(moment=st.sampled_from(["instead", "after"]), signal_name=st.sampled_from(["KILL", "TERM", "HUP"]))
    def resume_dies(self, moment: str, signal_name: str) -> None:
        dying_shell(self.where, moment, signal_name, "resume", self.sweep).communicate(timeout=limit_s(180))

    @precondition(lambda self: bool(slurm_states()))
    @rule()
    def cancel(self) -> None:
        assert main(["cancel", self.sweep]) == 0

    @precondition(lambda self: bool(slurm_states()))
    @rule(command=st.sampled_from(["scontrol requeue", "scontrol hold", "scontrol release", "scancel"]))
    def by_hand(self, command: str) -> None:
        jobs = subprocess.run(["squeue", "-h", "-o", "%i"], capture_output=True, text=True, check=True).stdout.split()
        subprocess.run([*command.split(), *jobs], check=False)

    @precondition(lambda self: slurm_states() == ["RUNNING"])
    @rule(rank=st.sampled_from([0, 1]))
    def kill_a_rank(self, rank: int) -> None:
        with suppress(AssertionError, psutil.NoSuchProcess):
            process_of(self.run, rank).send_signal(signal.SIGKILL)

    @precondition(lambda self: slurm_states() == ["RUNNING"])
    @rule()
    def train(self) -> None:
        wait_until(lambda: state(self.run) is State.running or slurm_states() != ["RUNNING"])

    @invariant()
    def has_at_most_one_live_job(self) -> None:
        assert len(slurm_states()) <= 1

    def teardown(self) -> None:
        subprocess.run(["scancel", "--me"], check=True)
        wait_until(lambda: not slurm_states())
        shutil.rmtree(self.where)


@pytest.mark.long
def test_no_sequence_of_commands_and_faults_gives_a_run_two_live_jobs(slurm: SlurmCluster) -> None:
    run_state_machine_as_test(
        Shells,
        settings=settings(
            max_examples=6, stateful_step_count=16, deadline=None, phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )  # fmt: skip
