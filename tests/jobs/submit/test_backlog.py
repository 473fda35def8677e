"""The backlog of a sweep: runs that Slurm does not accept now are submitted later, once, whoever submits them."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.cli import main
from jobs.rundir import SweepDir, read_records
from jobs.submit.states import State, states
from tests.support.cli import printed_words
from tests.support.paths import ROOT
from tests.support.real_run import SMALL
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("empty_queue")]


@pytest.fixture
def at_most() -> Iterator[None]:
    """Slurm takes two jobs of this user, as one that a busy site limits."""
    limit_jobs(2)
    yield
    limit_jobs(-1)


def limit_jobs(most: int) -> None:
    subprocess.run(["sacctmgr", "-i", "modify", "account", "research", "set", f"GrpSubmitJobs={most}"],
                   check=True, capture_output=True)  # fmt: skip


def sweep_of(count: int, where: Path, *more: str) -> list[str]:
    return ["submit", "-m", *SMALL, "cluster=generic_slurm", f"runs_dir={where}", "sweep=s", "job.steps=4",
            f"data.cache_dir={where}/cache", f"repeat=range(1,{count + 1})", *more]  # fmt: skip


LATER = "cluster.sbatch={begin: now+1hour}"


def submitted(sweep: SweepDir) -> Counter[str]:
    return Counter(record["run"] for record in read_records(sweep.submissions) if record["event"] == "submitted")


def squeue() -> list[str]:
    return subprocess.run(["squeue", "-h", "-r", "-o", "%i"], check=True, capture_output=True, text=True).stdout.split()


@pytest.mark.usefixtures("at_most")
def test_what_slurm_does_not_take_waits_and_each_look_moves_it_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = SweepDir(tmp_path / "s")
    assert main(sweep_of(5, tmp_path, LATER)) == 0
    message = printed_words(capsys)
    assert "submitted 2 runs: " in message
    assert (
        "3 runs wait in the backlog of the sweep: Slurm accepts no more of your jobs now (AssocGrpSubmitJobsLimit). "
        "They are submitted when jobs of this sweep end, and by every `slurmscale status`, `watch` and `resume`."
    ) in message
    assert len(squeue()) == 2

    assert main(["doctor", "cluster=generic_slurm", "--no-job"]) == 0
    message = printed_words(capsys)
    assert "your queue is full now (AssocGrpSubmitJobsLimit)" in message
    assert "`submit` keeps the runs that Slurm does not accept yet" in message

    assert main(["status", str(sweep.path)]) == 0
    message = printed_words(capsys)
    assert "tiny-ddp-n1x1-r5 waiting - - Slurm accepts no more jobs now (AssocGrpSubmitJobsLimit)" in message
    assert "5 runs: 3 waiting, 2 queued" in message
    assert "are submitted when" not in message, "it is printed once"
    assert len(list(read_records(sweep.submissions))) == 7, "a look that changes nothing writes nothing"

    subprocess.run(["scancel", squeue()[0]], check=True)
    wait_until(lambda: len(squeue()) == 1)
    assert main(["status", str(sweep.path)]) == 0
    message = printed_words(capsys)
    assert "submitted 1 run: " in message
    assert "5 runs: 2 waiting, 2 queued, 1 " in message
    assert submitted(sweep) == {f"tiny-ddp-n1x1-r{repeat}": 1 for repeat in (1, 2, 3)}

    assert main(["cancel", str(sweep.path)]) == 0
    assert "cancelled 4 runs of" in printed_words(capsys)
    wait_until(lambda: all(item.state is State.cancelled for item in states(sweep)))
    assert main(["resume", str(sweep.path)]) == 0
    assert "3 runs wait in the backlog of the sweep" in printed_words(capsys), "what was cancelled there can be resumed"


@pytest.mark.slow
@pytest.mark.usefixtures("at_most")
@pytest.mark.long
def test_jobs_that_end_send_what_waits_though_nobody_looks(tmp_path: Path) -> None:
    sweep = SweepDir(tmp_path / "s")
    assert main(sweep_of(5, tmp_path)) == 0
    # Slurm may still count a job that ended a moment ago, and then takes one less.
    assert Counter(item.state for item in states(sweep))[State.waiting] >= 3
    wait_until(lambda: all(item.state is State.finished for item in states(sweep)), 240)
    assert submitted(sweep) == {f"tiny-ddp-n1x1-r{repeat}": 1 for repeat in range(1, 6)}


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.usefixtures("at_most")
def test_shells_that_submit_one_backlog_at_once_submit_each_run_once(tmp_path: Path) -> None:
    sweep = SweepDir(tmp_path / "s")
    assert main(sweep_of(12, tmp_path, LATER)) == 0
    limit_jobs(-1)
    command = [sys.executable, "-m", "jobs.cli"]
    shells = [subprocess.Popen([*command, verb, str(sweep.path)], cwd=ROOT, stdout=subprocess.DEVNULL)
              for verb in ("status", "resume", "status", "resume")]  # fmt: skip
    assert [shell.wait() for shell in shells] == [0, 0, 0, 0]
    assert submitted(sweep) == {f"tiny-ddp-n1x1-r{repeat}": 1 for repeat in range(1, 13)}
    assert len(squeue()) == 12


@pytest.mark.slow
@pytest.mark.long
def test_of_shells_that_submit_the_same_sweep_at_once_one_does(tmp_path: Path) -> None:
    sweep = SweepDir(tmp_path / "s")
    assert main([*sweep_of(1, tmp_path, LATER), "sweep=other"]) == 0, "the text is tokenized once"
    before = len(squeue())
    command = [sys.executable, "-m", "jobs.cli", *sweep_of(4, tmp_path, LATER)]
    shells = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
              for _ in range(3)]  # fmt: skip
    outputs = [shell.communicate() for shell in shells]
    assert sorted(shell.returncode for shell in shells) == [0, 2, 2]
    assert all("exists, and a run is never overwritten" in err for (_, err), shell in zip(outputs, shells, strict=True)
               if shell.returncode)  # fmt: skip
    assert submitted(sweep) == {f"tiny-ddp-n1x1-r{repeat}": 1 for repeat in range(1, 5)}
    assert len(squeue()) == before + 4
    assert [item.state for item in states(sweep)] == [State.queued] * 4
