"""`slurmscale cancel` ends what Slurm's own record proves to be the sweep's, and names what it cannot end."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from jobs.cli import main
from jobs.rundir import SweepDir, append_record, now
from jobs.submit.states import State, states
from jobs.submit.trust.own_sweeps import own
from tests.support.cli import printed_words, small
from tests.support.fake_runs import a_run, prepared, started
from tests.support.paths import ROOT
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("empty_queue")]

LATER = "cluster.sbatch={begin: now+1hour}"


def slurm(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def queue() -> list[str]:
    return sorted(slurm("squeue", "-h", "-r", "-o", "%i").split())


def waiting_sweep(where: Path) -> tuple[SweepDir, list[str]]:
    """Three runs that wait in the queue, and their jobs."""
    given = [*small(where), "launcher=slurm", "cluster=generic_slurm", "repeat=1,2,3", LATER]
    assert main(["submit", "-m", *given]) == 0
    return SweepDir(where / "s"), queue()


def foreign_job(where: Path) -> str:
    """A waiting job that has nothing to do with slurmscale."""
    (where / "mine.sh").write_text("#!/bin/sh\nsleep 600\n")
    return slurm("sbatch", "--parsable", "--begin=now+1hour", str(where / "mine.sh"))


def renamed(sweep: SweepDir, jobs: list[str]) -> SweepDir:
    slurm("scontrol", "update", f"jobid={jobs[0]}", "JobName=mine")
    return sweep


def one_directory_moved(sweep: SweepDir, _jobs: list[str]) -> SweepDir:
    sweep.runs()[0].path.rename(sweep.path.parent / "elsewhere")
    return sweep


def one_directory_removed(sweep: SweepDir, _jobs: list[str]) -> SweepDir:
    shutil.rmtree(sweep.runs()[1].path)
    return sweep


def sweep_moved(sweep: SweepDir, jobs: list[str]) -> SweepDir:
    renamed(sweep, jobs)
    return SweepDir(sweep.path.rename(sweep.path.parent / "new place"))


def reached_by_a_link(sweep: SweepDir, _jobs: list[str]) -> SweepDir:
    link = sweep.path.parent / "link"
    link.symlink_to(sweep.path)
    return SweepDir(link)


@pytest.mark.parametrize(
    "change", [renamed, one_directory_moved, one_directory_removed, sweep_moved, reached_by_a_link]
)
def test_every_job_of_a_sweep_ends_and_another_one_that_its_ledger_names_is_named(
    change: Callable[[SweepDir, list[str]], SweepDir], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep, jobs = waiting_sweep(tmp_path)
    foreign = foreign_job(tmp_path)
    sweep = change(sweep, jobs)
    prepared(sweep.path, a_run("not-ours"))
    record = {"time": now(), "event": "submitted", "run": "not-ours", "launcher": "slurm", "job_id": foreign,
              "host": "h", "events_before": 0}  # fmt: skip
    append_record(sweep.submissions, record)
    assert {item.state for item in states(sweep)} == {State.queued}
    assert len(states(sweep)) == 4, "a run whose directory was moved is shown while its job waits"
    printed_words(capsys)
    assert main(["cancel", str(sweep.path)]) == 2
    shown = printed_words(capsys)
    assert f"names job {foreign}, but Slurm has {tmp_path}/mine.sh as the script" in shown
    assert f"It was not cancelled. If you want to end it, run `scancel {foreign}`." in shown
    assert "cancelled 3 runs" in shown
    wait_until(lambda: queue() == [foreign])


def test_a_copy_of_a_sweep_ends_no_job_of_the_original(tmp_path: Path) -> None:
    sweep, jobs = waiting_sweep(tmp_path)
    shutil.copytree(sweep.path, tmp_path / "copy", symlinks=True)
    assert main(["cancel", str(tmp_path / "copy")]) == 2
    assert queue() == jobs


def test_a_run_of_train_sbatch_is_ended_and_the_same_script_elsewhere_is_not(tmp_path: Path) -> None:
    job_ids = {}
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        job_ids[name] = slurm(
            "sbatch", "--parsable", "--begin=now+1hour", f"--chdir={tmp_path}/{name}", "--job-name=my name",
            str(ROOT / "sbatch/train.sbatch"), "model=tiny", "data.path=a b.sbatch c",
        )  # fmt: skip
    sweep = SweepDir(tmp_path / "here/runs/sbatch")
    for job_id in job_ids.values():
        # The ranks write what the ledger of other launchers contains.
        started(prepared(sweep.path, a_run(f"job-{job_id}")), a_run(), job_id=job_id)
    own(sweep)  # as the first of its runs does
    assert main(["cancel", str(sweep.path)]) == 2
    wait_until(lambda: queue() == [job_ids["there"]])
