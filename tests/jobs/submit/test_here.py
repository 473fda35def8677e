"""launcher=here: the runs of a sweep in a job that the user holds, on a real Slurm and on the stand-in for PBS."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from jobs.cli import main
from jobs.rundir import RunDir, SweepDir, read_records
from jobs.submit.states import State, states
from tests.support.cli import files, printed, printed_words, small
from tests.support.paths import ROOT
from tests.support.pbs.fixture import PbsStandIn
from tests.support.real_run import events, losses
from tests.support.slurm.held import held_by_slurm
from tests.support.waiting import limit_s, wait_until

ENDLESS = ("job.steps=100000", "job.checkpoint_every_steps=20", "data.max_samples=64", "launcher.requeue_pause_s=1")


def given(where: Path, *more: str) -> list[str]:
    return [*small(where), "cluster=generic_slurm", "launcher=here", "wall_time_min=10", *more]


def details(sweep: SweepDir) -> dict[str, tuple[State, str]]:
    return {item.run.name: (item.state, item.detail) for item in states(sweep)}


class Shell:
    """A command in a job that a user holds, as he runs it."""

    def __init__(self, where: Path, *command: str, **env: str) -> None:
        self.output = where / f"shell-{len(list(where.glob('shell-*')))}"
        slurmscale = [sys.executable, "-m", "jobs.cli"]
        words = [part for word in command for part in (slurmscale if word == "slurmscale" else [word])]
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                words, stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True,
                env=os.environ | {"PYTHONPATH": str(ROOT)} | env,
            )  # fmt: skip

    def ended(self) -> tuple[int, str]:
        return self.process.wait(limit_s(180)), self.output.read_text()


def rank_of(run: RunDir) -> psutil.Process:
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process.cmdline()[-1:] == [str(run.path)] and "python" in process.name():
                return process
    raise AssertionError(f"{run.name} has no process")


# --- refusals


def test_outside_a_job_the_user_learns_how_to_get_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["submit", *given(tmp_path)]) == 2
    words = printed_words(capsys)
    assert "launcher=here starts runs in the job that runs this command, and this shell is in none." in words
    assert "Run it in `salloc`, in `qsub -I` or in a batch script, or set launcher=slurm, pilot or pbs" in words
    assert main(["doctor", "launcher=here", "cluster=generic_slurm"]) == 2
    assert not (tmp_path / "s").exists()


@pytest.mark.slurm
@pytest.mark.usefixtures("empty_queue")
def test_what_does_not_fit_into_the_job_is_refused_with_what_to_set(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = held_by_slurm(2, "--gpus-per-node=3", "--cpus-per-task=4")
    monkeypatch.setenv("SLURM_JOB_ID", job_id)
    gpus = ("cluster.gpus=true", "gpu=h100_sxm", "cluster.ranks_per_node=8")
    for more, words in (
        (["nodes=3"], f"needs nodes=3, but job {job_id} has 2 (node[01-02]). Set nodes=2 or less, or ask for"),
        ([*gpus, "ranks_per_node=4"], f"needs 4 GPUs on each node (ranks_per_node), but job {job_id} has 3. Set ranks"),
        (["ranks_per_node=2", "cluster.cpus_per_rank=4"], "needs 8 CPUs on each node"),
    ):
        assert main(["submit", *given(tmp_path, *more)]) == 2, printed(capsys)
        assert words in printed_words(capsys)
        assert main(["doctor", *given(tmp_path, *more)]) == 1
        assert words.partition(" Set ")[0] in printed_words(capsys)
    subprocess.run(["scontrol", "update", f"JobId={job_id}", "TimeLimit=1"], check=True)
    assert main(["submit", *given(tmp_path)]) == 2
    assert "and runs are asked to stop 90 s before. Ask for another job." in printed_words(capsys)
    subprocess.run(["scancel", job_id], check=True)
    assert main(["submit", *given(tmp_path)]) == 2
    assert f"this shell was in job {job_id}, which is over" in printed_words(capsys)
    assert files(tmp_path) <= {"cache"}


# --- a job of Slurm


@pytest.mark.slow
@pytest.mark.slurm
@pytest.mark.usefixtures("empty_queue")
@pytest.mark.long
def test_runs_take_turns_in_salloc_restart_after_a_fault_and_are_cancelled_one_by_one(tmp_path: Path) -> None:
    shell = Shell(
        tmp_path, "salloc", "--nodes=2", "--time=20", "slurmscale", "submit", "-m",
        *given(tmp_path, *ENDLESS, "repeat=1,2,3", "wall_time_min=30"),
    )  # fmt: skip
    sweep = SweepDir(tmp_path / "s")
    wait_until(lambda: len(sweep.runs()) == 3 and all(events(run, "checkpoint") for run in sweep.runs()[:2]))
    job_id = next(record["job_id"] for record in read_records(sweep.submissions) if record["event"] == "submitted")
    first, second, third = sweep.runs()
    assert details(sweep) == {
        first.name: (State.running, f"on node01 of job {job_id}"),
        second.name: (State.running, f"on node02 of job {job_id}"),
        third.name: (State.queued, f"waits for 1 free node of job {job_id}"),
    }
    assert main(["logs", str(first.path)]) == 0
    with pytest.MonkeyPatch.context() as patch:
        # As on another login node, which asks Slurm.
        patch.setattr("jobs.submit.launchers.here.socket.gethostname", lambda: "login2")
        assert details(sweep)[third.name] == (State.queued, f"waits for 1 free node of job {job_id}")
    other = Shell(tmp_path, "slurmscale", "submit", *given(tmp_path, "sweep=other"), SLURM_JOB_ID=job_id)
    code, shown = other.ended()
    assert (code, "Another command with launcher=here uses the nodes of job" in shown) == (2, True)
    rank_of(first).kill()
    # In the pause before its restart another run takes its node.
    wait_until(lambda: details(sweep)[third.name] == (State.running, f"on node01 of job {job_id}"))
    waits = f"restarts after killed (rank 0 on node01); waits for 1 free node of job {job_id}"
    assert details(sweep)[first.name] == (State.queued, waits)
    assert main(["cancel", str(second.path)]) == 0
    wait_until(lambda: len(events(first, "started")) == 2)
    assert [event["cause"] for event in events(first, "requeued")] == ["killed"]
    assert details(sweep)[second.name] == (State.cancelled, "")
    assert details(sweep)[third.name][0] is State.running
    assert main(["cancel", str(sweep.path)]) == 0
    code, shown = shell.ended()
    assert code == 1
    assert f"started 3 runs in job {job_id} on node[01-02], which ends in 20 min" in shown
    assert "wall_time_min=30 of 3 runs is longer than that: what runs when" in shown
    assert {state for state, _ in details(sweep).values()} == {State.cancelled}
    assert len(events(third, "stopped")) == 1, "with a checkpoint"


@pytest.mark.slow
@pytest.mark.slurm
@pytest.mark.usefixtures("empty_queue")
@pytest.mark.parametrize("end", ["scancel", "time limit", "Ctrl-C"])
@pytest.mark.long
def test_what_the_end_of_the_job_interrupts_goes_on_in_the_next_one(end: str, tmp_path: Path) -> None:
    job_id = held_by_slurm(1, *(["--time=1"] if end == "time limit" else []))
    run = given(tmp_path, *ENDLESS, "name=r${repeat}", "repeat=1,2", "launcher.stop_before_limit_s=20")
    shell = Shell(tmp_path, "slurmscale", "submit", "-m", *run, SLURM_JOB_ID=job_id)
    sweep = SweepDir(tmp_path / "s")
    first, second = sweep.run("r1"), sweep.run("r2")
    wait_until(lambda: first.status.exists() and events(first, "checkpoint"))
    if end == "scancel":
        subprocess.run(["scancel", job_id], check=True)
    elif end == "Ctrl-C":
        shell.process.send_signal(signal.SIGINT)
    code, shown = shell.ended()
    assert code == (130 if end == "Ctrl-C" else 1)
    assert ("Interrupted. `slurmscale resume` in a job continues them." in shown) == (end == "Ctrl-C")
    step = events(first, "stopped")[-1]["step"]
    assert details(sweep)["r1"][0] is State.stopped
    another = "`slurmscale resume` starts it in another one"
    assert details(sweep)["r2"] == (State.prepared, f"job {job_id} ended before its turn; {another}")
    later = held_by_slurm(2)
    shell = Shell(tmp_path, "slurmscale", "resume", str(sweep.path), SLURM_JOB_ID=later)
    wait_until(lambda: len(events(first, "started")) == 2 and events(second, "started"))
    assert events(first, "started")[-1]["from_step"] == step
    assert main(["cancel", str(sweep.path)]) == 0
    assert shell.ended()[0] == 1


# --- a job of PBS


def in_pbs(pbs: PbsStandIn, where: Path, arguments: list[str], walltime: str = "00:20:00") -> Path:
    """Submit a batch script of the user that runs slurmscale in its job; return its output."""
    output = where / f"output-{len(list(where.glob('output-*')))}"
    script = where / "own.pbs"
    command = shlex.join([sys.executable, "-m", "jobs.cli", *arguments])
    script.write_text(
        f"#!/bin/bash\n#PBS -l select=2:ncpus=2\n#PBS -o {where}/\n#PBS -l walltime={walltime}\n"
        f"export PYTHONPATH={ROOT}\n{command} > {output} 2>&1\necho exit code $? >> {output}\n"
    )
    assert pbs.does("qsub", str(script)).returncode == 0
    return output


@pytest.mark.slow
@pytest.mark.long
def test_runs_take_turns_in_a_pbs_job_and_a_killed_rank_restarts(pbs: PbsStandIn, tmp_path: Path) -> None:
    (pbs.directory / "distinct").touch()
    long_run = ["job.steps=150", "job.checkpoint_every_steps=20", "data.max_samples=64", "launcher.requeue_pause_s=1"]
    arguments = ["submit", "-m", *given(tmp_path, *long_run, "name=n${nodes}", "nodes=1,2", "ranks_per_node=1",
                                        "scaling.global_batch_size=4")]  # fmt: skip
    output = in_pbs(pbs, tmp_path, arguments)
    sweep = SweepDir(tmp_path / "s")
    one, two = sweep.run("n1"), sweep.run("n2")
    wait_until(lambda: two.status.exists() and events(two, "checkpoint"))
    assert details(sweep) == {
        "n1": (State.queued, "waits for 1 free node of job 1"),
        "n2": (State.running, "on localhost,127.0.0.2 of job 1"),
    }
    with pytest.MonkeyPatch.context() as patch:
        # As on another login node, which asks PBS.
        patch.setattr("jobs.submit.launchers.here.socket.gethostname", lambda: "login2")
        assert details(sweep)["n2"] == (State.running, "on localhost,127.0.0.2 of job 1")
    rank_of(two).kill()
    wait_until(lambda: not pbs.alive())
    assert output.read_text().endswith("exit code 0\n"), output.read_text()
    assert [event["cause"] for event in events(two, "requeued")] == ["killed"]
    assert [event["restart"] for event in events(two, "started")] == [0, 1]
    assert len(events(one, "started")) == 1
    assert losses(one) == pytest.approx(losses(two), abs=1e-5)
