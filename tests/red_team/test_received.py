"""A stranger's folder: looking at it runs nothing, and running it needs a decision."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from jobs.cli import main
from jobs.rundir import SweepDir, append_record, now
from tests.support.cli import printed_words, small
from tests.support.fake_runs import a_run, finished_run
from tests.support.paths import ROOT
from tests.support.waiting import limit_s

pytestmark = pytest.mark.red_team


def received(where: Path, *overrides: str) -> SweepDir:
    """A folder that somebody else made and this user copied: of the same content, at another place."""
    given = [*small(where / "theirs"), "launcher=script", "cluster=generic_slurm", "name=r", *overrides]
    assert main(["submit", *given]) == 0
    shutil.copytree(where / "theirs/s", where / "copy/s", symlinks=True)
    return SweepDir(where / "copy/s")


def wait_in_backlog(sweep: SweepDir) -> None:
    waiting = {
        "time": now(),
        "event": "waiting",
        "run": "r",
        "limit": "QOSMaxSubmitJobPerUserLimit",
        "events_before": 1,
    }
    append_record(sweep.submissions, waiting)


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with the calls of commands that change something in Slurm."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("sbatch", "scancel", "scontrol"):
        (programs / name).write_text(f'#!/bin/bash\necho {name} "$@" >> {tmp_path}/calls\n')
        (programs / name).chmod(0o755)
    for name in ("squeue", "sacct"):
        (programs / name).write_text("#!/bin/bash\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return tmp_path / "calls"


@pytest.mark.parametrize("command", [["status"], ["status", "--all"], ["logs"], ["report"]])
def test_looking_at_a_received_sweep_submits_nothing_of_it(
    command: list[str], tmp_path: Path, calls: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = received(tmp_path)
    wait_in_backlog(sweep)
    before = sweep.submissions.read_bytes()
    main([*command, str(sweep.run("r").path if command == ["logs"] else sweep.path)])
    assert not calls.exists()
    assert sweep.submissions.read_bytes() == before
    if command == ["status"]:
        assert "not submitted by you, so only shown" in printed_words(capsys)


def test_watching_a_received_sweep_submits_nothing_of_it(tmp_path: Path, calls: Path) -> None:
    sweep = received(tmp_path)
    wait_in_backlog(sweep)
    before = sweep.submissions.read_bytes()
    for command in (["watch"], ["resume", "--wait"]):
        watching = subprocess.Popen(
            [sys.executable, "-c", f"from jobs.cli import main; main({[*command, str(sweep.path)]!r})"],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        assert watching.stdout is not None
        assert watching.stdout.readline()
        watching.kill()
        watching.communicate()
    assert not calls.exists() or calls.read_text().splitlines() == []
    assert sweep.submissions.read_bytes() == before


def test_resume_shows_what_a_received_sweep_would_run_and_asks_for_trust(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["cluster.setup=[source /opt/site.sh]", "cluster.modules=[cuda/12]", "cluster.python=/opt/python",
            "cluster.container=/opt/image.sif"]  # fmt: skip
    sweep = received(tmp_path, *more)
    code = sweep.run("r").code.resolve()
    (code / "jobs/run.py").write_text("")
    capsys.readouterr()
    before = {path: path.read_bytes() for path in sweep.path.rglob("*") if path.is_file() and path != sweep.lock}
    assert main(["resume", str(sweep.path)]) == 2
    shown = printed_words(capsys)
    for words in (
        "/opt/python -u -m jobs.run", "not the installed code: 1 files differ (jobs/run.py)",
        "set-up line: source /opt/site.sh", "module: cuda/12", "container: /opt/image.sif",
        f"run `slurmscale resume --trust {sweep.path}`",
    ):  # fmt: skip
        assert words in shown
    assert {path: path.read_bytes() for path in before} == before
    assert main(["resume", "--trust", str(sweep.path)]) == 2
    assert "is not the code that was submitted" in printed_words(capsys), "trust is no reason to run changed code"


def test_trust_is_remembered_and_a_replaced_folder_is_not_trusted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = received(tmp_path)
    assert main(["resume", str(sweep.path)]) == 2
    assert "equal to the installed code" in printed_words(capsys)
    assert main(["resume", "--trust", str(sweep.path)]) == 0
    assert main(["resume", str(sweep.path)]) == 0
    shutil.rmtree(sweep.path)
    shutil.copytree(tmp_path / "theirs/s", sweep.path, symlinks=True)
    assert main(["resume", str(sweep.path)]) == 2
    assert "was not submitted by you" in printed_words(capsys)


def test_nothing_is_submitted_into_a_received_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = received(tmp_path)
    given = [*small(sweep.path.parent), "launcher=local", "cluster=generic_slurm", "name=other"]
    assert main(["submit", *given]) == 2
    assert f"{sweep.path} exists and was not submitted by you." in printed_words(capsys)
    assert not sweep.run("other").path.exists()


@pytest.mark.parametrize("attack", ["a link", "open to others", "of a stranger"])
def test_a_record_that_others_can_write_is_refused(
    attack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    (state / "slurmscale").mkdir(mode=0o700, parents=True)
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    if attack == "a link":
        (state / "slurmscale").rename(state / "theirs")
        (state / "slurmscale").symlink_to("theirs")
    elif attack == "open to others":
        (state / "slurmscale").chmod(0o707)
    elif os.geteuid() == 0:
        os.chown(state / "slurmscale", 4242, 4242)
    else:
        pytest.skip("giving a directory away needs root")
    assert main(["submit", *small(tmp_path), "launcher=local", "name=r"]) == 2
    assert f"{state}/slurmscale, the record of your sweeps, cannot be used: " in printed_words(capsys)
    assert not (tmp_path / "s/r").exists()


def test_a_lock_that_somebody_holds_in_tmp_stops_no_local_queue(tmp_path: Path) -> None:
    finished_run(tmp_path / "s", a_run("r"))
    with FileLock(tmp_path / f"slurmscale-local-{os.getuid()}.lock"):
        queue = [sys.executable, "-m", "jobs.submit.local_queue", str(tmp_path / "s")]
        env = os.environ | {"TMPDIR": str(tmp_path)}
        subprocess.run(queue, cwd=ROOT, env=env, input='["r"]', text=True, check=True, timeout=limit_s(30))
