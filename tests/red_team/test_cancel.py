"""A ledger that names the jobs and processes of somebody else: `cancel` ends none of them."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from jobs.cli import main
from jobs.ranks import started_after_boot_s
from jobs.rundir import SweepDir, append_record, now
from tests.support.cli import printed_words, small
from tests.support.paths import ROOT
from tests.support.waiting import wait_until

pytestmark = pytest.mark.red_team


def sweep_naming(where: Path, launcher: str, job_id: str, **more: object) -> SweepDir:
    """A sweep whose ledger claims that its only run is this job."""
    assert main(["submit", "launcher=script", *small(where), "cluster=generic_slurm", "name=r"]) == 0
    sweep = SweepDir(where / "s")
    claim = {"event": "submitted", "run": "r", "launcher": launcher, "job_id": job_id, "events_before": 1}
    append_record(sweep.submissions, claim | {"host": socket.gethostname(), "time": now()} | more)
    return sweep


@contextmanager
def leading_a_session(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, start_new_session=True, stdin=subprocess.PIPE, cwd=ROOT)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_cancel_ends_no_process_that_is_not_a_queue_of_the_sweep(tmp_path: Path) -> None:
    # A queue of another sweep waits for the names of its runs.
    queue = (sys.executable, "-m", "jobs.submit.local_queue", str(tmp_path / "mine/s"))
    for number, command in enumerate((("sleep", "600"), queue)):
        with leading_a_session(*command) as theirs:
            began = started_after_boot_s(theirs.pid)
            sweep = sweep_naming(tmp_path / str(number), "local", str(theirs.pid), process_started=began)
            main(["cancel", str(sweep.path)])
            assert theirs.poll() is None


@pytest.mark.parametrize("job_id", ["-1", "0", "--me", "abc", "1e3", "99999999999999999999"])
def test_a_process_id_that_is_none_is_no_process(job_id: str, tmp_path: Path) -> None:
    sweep = sweep_naming(tmp_path, "local", job_id)
    assert main(["status", str(sweep.path)]) == 0
    assert main(["cancel", str(sweep.path)]) == 0


def queue() -> list[str]:
    answer = subprocess.run(["squeue", "-h", "-o", "%i"], capture_output=True, text=True, check=True)
    return answer.stdout.split()


@pytest.fixture
def a_job_of_mine(empty_queue: None, tmp_path: Path) -> str:
    """A job that has nothing to do with slurmscale."""
    script = tmp_path / "mine.sh"
    script.write_text("#!/bin/bash\nsleep 600\n")
    submit = ["sbatch", "--parsable", "--begin=now+1hour", "--job-name=precious-0a1b2c3d", str(script)]
    return subprocess.run(submit, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.slurm
def test_a_foreign_ledger_cancels_no_job_of_slurm(
    a_job_of_mine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = sweep_naming(tmp_path, "slurm", a_job_of_mine)
    assert main(["cancel", str(sweep.path)]) == 2
    assert f"names job {a_job_of_mine}, but Slurm has {tmp_path}/mine.sh" in printed_words(capsys)
    intent = {"event": "intended", "mark": "precious-0a1b2c3d", "launcher": "slurm", "host": "here", "time": now(),
              "tasks": [{"event": "submitted", "run": "r", "events_before": 1}], "array": False}  # fmt: skip
    append_record(sweep.submissions, intent, {"event": "cancelled", "mark": intent["mark"], "time": now()})
    for command in ("status", "cancel"):
        main([command, str(sweep.path)])
    assert queue() == [a_job_of_mine]


@pytest.mark.slurm
@pytest.mark.parametrize("word", ["--me", "--user=root", "-u root", "all", "1,2", "{}; true", "{}_[0-9]", "+{}"])
def test_words_that_are_no_job_id_reach_no_scancel(word: str, a_job_of_mine: str, tmp_path: Path) -> None:
    sweep = sweep_naming(tmp_path, "slurm", word.format(a_job_of_mine))
    main(["cancel", str(sweep.path)])
    assert queue() == [a_job_of_mine]


@pytest.mark.slurm
def test_a_link_to_my_scripts_does_not_make_my_jobs_the_sweeps(a_job_of_mine: str, tmp_path: Path) -> None:
    sweep = sweep_naming(tmp_path, "slurm", a_job_of_mine)
    sweep.logs.rmdir()
    sweep.logs.symlink_to(tmp_path)
    assert main(["cancel", str(sweep.path)]) == 2
    assert queue() == [a_job_of_mine]


@pytest.mark.slurm
@pytest.mark.usefixtures("empty_queue")
def test_cancel_still_ends_the_jobs_of_the_sweep(tmp_path: Path) -> None:
    later = "cluster.sbatch={begin: now+1hour}"
    given = [*small(tmp_path), "launcher=slurm", "cluster=generic_slurm", "repeat=1,2", later]
    assert main(["submit", "-m", *given]) == 0
    assert queue()
    assert main(["cancel", str(tmp_path / "s")]) == 0
    wait_until(lambda: not queue())
