"""On a real Slurm: one run is never trained by two jobs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from jobs.cli import main
from jobs.rundir import RunDir, SweepDir, read_records
from jobs.submit.states import State, states
from tests.support.paths import ROOT
from tests.support.processes import job_id
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
