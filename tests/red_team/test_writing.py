"""A received folder has links at the names that slurmscale writes; the files behind them stay as they are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jobs.cli import main
from jobs.doctor import report as doctor_report
from jobs.errors import RunDirError
from jobs.lease import Lease
from jobs.output import open_to_append, own_directory
from jobs.rundir import FIGURES, WRITTEN, RunDir, SweepDir, append_event, append_record, write_json
from jobs.runtime.watchdog import heartbeat
from tests.support.cli import printed, small
from tests.support.fake_runs import a_run, finished_run

pytestmark = pytest.mark.red_team

VICTIM = "alias ls='ls --color'\n"


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file of the user, outside the received folder."""
    file = tmp_path / "home" / ".bashrc"
    file.parent.mkdir()
    file.write_text(VICTIM)
    return file


def received(tmp_path: Path) -> Path:
    sweep = tmp_path / "received"
    for repeat in (1, 2):
        finished_run(sweep, a_run(f"run-{repeat}", repeat=repeat))
    return sweep


@pytest.mark.parametrize("name", sorted(WRITTEN - {"leaderboard.csv", "measurements.csv", "profile.csv"}))
def test_a_report_replaces_a_link_at_the_name_of_its_file(name: str, victim: Path, tmp_path: Path) -> None:
    sweep = received(tmp_path)
    (sweep / name).symlink_to(victim)
    assert main(["report", str(sweep), "--format", "parquet,latex,docx,xlsx"]) == 0
    assert victim.read_text() == VICTIM
    assert not (sweep / name).is_symlink()


def test_a_report_creates_no_file_behind_a_link_to_nothing(tmp_path: Path) -> None:
    sweep = received(tmp_path)
    outside = tmp_path / "home-cron"
    (sweep / "report.md").symlink_to(outside)
    assert main(["report", str(sweep)]) == 0
    assert not outside.exists()


def test_figures_are_not_written_into_a_linked_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = received(tmp_path)
    outside = tmp_path / "home"
    outside.mkdir()
    (sweep / FIGURES).symlink_to(outside)
    assert main(["report", str(sweep), "--format", "svg"]) == 2
    assert f"{sweep / FIGURES} is a link" in printed(capsys)
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("launcher", ["script", "pbs_script"])
def test_a_script_replaces_a_link_that_another_put_at_its_name(launcher: str, victim: Path, tmp_path: Path) -> None:
    cluster = "cluster=generic_slurm"
    assert main(["submit", "launcher=dry", cluster, *small(tmp_path), "name=r"]) == 0
    run = SweepDir(tmp_path / "s").run("r")
    script = {"script": run.batch_script, "pbs_script": run.pbs_script}[launcher]
    script.symlink_to(victim)
    assert main(["resume", "--trust", str(tmp_path / "s"), "--launcher", launcher]) == 0
    assert victim.read_text() == VICTIM
    assert not script.is_symlink()
    assert script.read_text().startswith("#!/bin/bash")


def test_records_are_never_appended_through_a_link(victim: Path, tmp_path: Path) -> None:
    run = finished_run(tmp_path / "received", a_run())
    for file in (run.status, run.metrics, tmp_path / "received/submissions.jsonl"):
        file.unlink(missing_ok=True)
        file.symlink_to(victim)
        with pytest.raises(RunDirError, match="is a link, and records are never written through one"):
            append_record(file, {"event": "prepared"})
    assert victim.read_text() == VICTIM


def test_records_are_never_appended_to_a_file_that_has_another_name(victim: Path, tmp_path: Path) -> None:
    run = finished_run(tmp_path / "received", a_run())
    for file in (run.status, run.metrics, tmp_path / "received/submissions.jsonl", tmp_path / "received/queue.log"):
        file.unlink(missing_ok=True)
        file.hardlink_to(victim)
        with pytest.raises(RunDirError, match="has another name as well, a hard link, and records are never written"):
            append_record(file, {"event": "prepared"})
    assert main(["report", str(tmp_path / "received")]) == 0
    assert victim.read_text() == VICTIM


@pytest.mark.parametrize("name", ["report.md", "report.html", "runs.csv"])
def test_a_report_replaces_a_hard_link_at_the_name_of_its_file(name: str, victim: Path, tmp_path: Path) -> None:
    sweep = received(tmp_path)
    (sweep / name).unlink(missing_ok=True)
    (sweep / name).hardlink_to(victim)
    assert main(["report", str(sweep)]) == 0
    assert victim.read_text() == VICTIM
    assert (sweep / name).read_text() != VICTIM


def test_a_pipe_in_place_of_a_record_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "status.jsonl")
    with pytest.raises(RunDirError, match="is not a regular file"):
        append_event(RunDir(tmp_path), "prepared")


def test_json_of_runs_and_of_the_doctor_replaces_links(victim: Path, tmp_path: Path) -> None:
    for name, write in (("plan.json", write_json), ("doctor.json", lambda path, _: doctor_report.write(path, []))):
        (tmp_path / name).symlink_to(victim)
        # The name of an earlier version's file aside, which anybody could foresee.
        (tmp_path / f".{name}.writing").symlink_to(victim)
        write(tmp_path / name, {"ranks": 1})
        assert not (tmp_path / name).is_symlink()
    assert victim.read_text() == VICTIM


def test_a_rank_writes_into_no_linked_directory_of_its_run(tmp_path: Path) -> None:
    run = finished_run(tmp_path / "received", a_run())
    outside = tmp_path / "home"
    outside.mkdir()
    for directory in (run.owners, run.heartbeats, run.hangs, run.failures, run.storage_log("rank-00000").parent):
        directory.symlink_to(outside)
        with pytest.raises(RunDirError, match="is a link"):
            own_directory(directory)
    with pytest.raises(RunDirError, match="is a link"):
        Lease(run).take()
    assert heartbeat(run, 0).parent == run.heartbeats
    assert list(outside.iterdir()) == []


def test_nothing_is_left_beside_a_file_that_could_not_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "plan.json").mkdir()
    with pytest.raises(OSError, match="plan"):
        write_json(RunDir(tmp_path).plan, {"ranks": 1})
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


def test_a_log_is_appended_to_its_own_file(tmp_path: Path) -> None:
    for line in (b"one\n", b"two\n"):
        with open_to_append(tmp_path / "queue.log") as log:
            log.write(line)
    assert (tmp_path / "queue.log").read_bytes() == b"one\ntwo\n"
