"""`slurmscale remove` deletes what has ended and is slurmscale's own, and nothing else."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from jobs.cli import main
from jobs.rundir import RunDir, SweepDir, append_record, code_store, now
from jobs.submit import scheduler_call
from jobs.submit.states import states
from jobs.submit.sweeps import remove
from jobs.submit.trust.own_sweeps import own, records_of
from tests.support.cli import files, printed
from tests.support.fake_runs import a_run, ended, event, finished_run, prepared, started

CODE = f"code-{'0' * 32}"


@pytest.fixture
def sweep(tmp_path: Path) -> SweepDir:
    """Two runs that have finished, with what a sweep has beside them, next to a directory that is not theirs."""
    found = SweepDir(tmp_path / "runs/a b")
    for name in ("r1", "r2"):
        run = finished_run(found.path, a_run(name, steps=1))
        (run.path / "export").mkdir()
        (run.path / "code").symlink_to(Path("..") / CODE)
        (run.path / "data").symlink_to(tmp_path / "outside")
    for name in (CODE, "logs", "figures", ".preparing-x"):
        (found.path / name).mkdir()
        (found.path / name / "file").write_text("x" * 5000)
    found.note.write_text("a note\n")
    (found.path / "report.html").write_text("page")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/precious").write_text("keep")
    own(found)
    return found


def test_a_sweep_goes_with_its_record_and_what_links_lead_to_stays(
    sweep: SweepDir, capsys: pytest.CaptureFixture[str]
) -> None:
    (record,) = records_of(sweep)
    assert main(["remove", str(sweep.path)]) == 2, "nobody can be asked"
    shown = printed(capsys)
    assert f"{sweep.path}: 2 runs (2 finished), " in shown
    assert "with an exported model of r1, r2" in shown
    assert "Add --yes." in shown
    assert main(["remove", "--yes", f"{sweep.path}/"]) == 0
    assert f"removed {sweep.path}: 2 runs, " in printed(capsys)
    assert not sweep.path.exists()
    assert not record.exists()
    assert (sweep.path.parent.parent / "outside/precious").read_text() == "keep"


def test_a_run_goes_alone(sweep: SweepDir) -> None:
    before = files(sweep.path)
    assert main(["remove", "--yes", str(sweep.path / "r1")]) == 0
    assert files(sweep.path) == {each for each in before if not each.startswith("r1")} | {".lock"}


def test_files_that_are_not_of_slurmscale_stay_and_are_named(
    sweep: SweepDir, capsys: pytest.CaptureFixture[str]
) -> None:
    (sweep.path / "my notes.md").write_text("mine")
    (sweep.path / "cache").mkdir()
    (sweep.path / "logs of mine").mkdir()
    (sweep.path / "a link").symlink_to(sweep.path / "r1")
    assert main(["remove", "--yes", str(sweep.path)]) == 0
    assert "a link, cache, logs of mine, my notes.md stays in" in printed(capsys)
    assert sorted(each.name for each in sweep.path.iterdir()) == ["a link", "cache", "logs of mine", "my notes.md"]


def alive(sweep: SweepDir) -> list[str]:
    record = {"event": "submitted", "launcher": "local", "job_id": "7", "events_before": 1, "host": "elsewhere"}
    append_record(sweep.submissions, record | {"run": prepared(sweep.path, a_run("r3")).name, "time": now()})
    return ["r3 (queued) (started on elsewhere: ask there). Nothing was removed. Run `slurmscale cancel"]


def waiting(sweep: SweepDir) -> list[str]:
    record = {"event": "waiting", "run": prepared(sweep.path, a_run("r3")).name, "limit": "QOSMaxSubmit"}
    append_record(sweep.submissions, record | {"events_before": 1, "time": now()})
    return ["r3 (waiting)", "Nothing was removed"]


def unknown(sweep: SweepDir) -> list[str]:
    record = {"event": "submitted", "launcher": "slurm", "job_id": "7", "events_before": 1, "host": "h"}
    append_record(sweep.submissions, record | {"run": prepared(sweep.path, a_run("r3")).name, "time": now()})
    return ["r3 (queued) (Slurm does not answer here"]


def of_another_user(sweep: SweepDir) -> list[str]:
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    os.chown(sweep.path / "r1", 12345, -1)
    os.chown(sweep.path, 12345, -1)
    return ["belongs to user 12345"]


@pytest.mark.parametrize("change", [alive, waiting, unknown, of_another_user])
def test_what_may_still_run_or_belongs_to_others_is_refused(
    change: Callable[[SweepDir], list[str]],
    sweep: SweepDir,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = change(sweep)
    before = files(sweep.path)
    monkeypatch.setenv("PATH", "/usr/bin/nothing")
    other = finished_run(sweep.path.parent / "other", a_run("x", steps=1))
    (sweep.path.parent / "other" / CODE).mkdir()
    assert main(["remove", "--yes", str(other.path.parent), str(sweep.path)]) == 2
    shown = printed(capsys)
    assert all(each in shown for each in words), shown
    assert files(sweep.path) - {".lock"} == before - {".lock"}
    assert other.path.exists(), "all or none"


def a_link(where: Path) -> Path:
    (where / "link").symlink_to(where / "runs")
    return where / "link"


def a_run_that_is_a_link(where: Path) -> Path:
    finished_run(where / "mine", a_run("r", steps=1))
    finished_run(where / "received", a_run("x", steps=1))
    (where / "received/r").symlink_to(where / "mine/r")
    return where / "received/r"


def a_home_with_a_run(where: Path) -> Path:
    finished_run(where, a_run("moved here", steps=1))
    (where / "logs").mkdir()
    (where / "logs/mine").write_text("x")
    return where


def a_project(where: Path) -> Path:
    (where / "config.yaml").write_text("a: 1")
    return where


def a_name_on_record(where: Path) -> Path:
    record = {"event": "submitted", "launcher": "slurm", "job_id": "7", "events_before": 1, "host": "h", "time": now()}
    append_record(SweepDir(where).submissions, record | {"run": "photos"})
    (where / "photos").mkdir()
    (where / "photos/1.jpg").write_text("x")
    return where / "photos"


def a_log_directory(where: Path) -> Path:
    finished_run(where / "s", a_run("r", steps=1))
    (where / "s/submissions.jsonl").touch()
    (where / "s/logs").mkdir()
    return where / "s/logs"


@pytest.mark.parametrize(
    "make", [a_link, a_run_that_is_a_link, a_home_with_a_run, a_project, a_name_on_record, a_log_directory]
)
def test_what_is_no_sweep_or_run_of_slurmscale_is_refused(
    make: Callable[[Path], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = make(tmp_path)
    before = files(tmp_path)
    assert main(["remove", "--yes", str(path)]) == 2
    assert "removed" not in printed(capsys).replace("not removed", "")
    assert files(tmp_path) == before


@pytest.mark.parametrize("given", ["", "r1"])
def test_what_an_interruption_leaves_is_removed_by_the_same_command(
    given: str, sweep: SweepDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Path] = []
    rmtree = shutil.rmtree

    def interrupted(path: Path) -> None:
        calls.append(path)
        if len(calls) == (1 if given else 3):
            raise KeyboardInterrupt
        rmtree(path)

    monkeypatch.setattr("jobs.submit.sweeps.remove.shutil.rmtree", interrupted)
    target = sweep.path / given
    assert main(["remove", "--yes", str(target)]) == 130
    monkeypatch.undo()
    assert sweep.path.exists()
    assert main(["remove", "--yes", str(target)]) == 0
    assert not target.exists()
    assert not (sweep.path / remove.REMOVAL).exists()


def test_read_only_directories_of_the_user_go_too(sweep: SweepDir) -> None:
    for path in (sweep.path / "r1/failures", sweep.path / "r1", sweep.path / CODE):
        path.mkdir(exist_ok=True)
        path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    assert main(["remove", "--yes", str(sweep.path)]) == 0
    assert not sweep.path.exists()


def test_a_baseline_goes_only_with_its_campaign(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("baseline", "lr"):
        part: dict[str, object] = {"name": name, "role": name, "repeat": 1, "changes": []}
        run = prepared(tmp_path, a_run(f"{name}-r1"), attempt=part)
        started(run, a_run())
        ended(run)
    assert main(["remove", "--yes", str(tmp_path / "baseline-r1")]) == 2
    assert "compared with it. Remove the whole campaign" in printed(capsys)
    assert main(["remove", "--yes", str(tmp_path / "lr-r1")]) == 0
    assert main(["remove", "--yes", str(tmp_path / "baseline-r1")]) == 0


@pytest.mark.parametrize(
    ("answer", "goes"), [("y\n", True), ("YES\n", True), ("n\n", False), ("\n", False), ("", False)]
)
def test_a_terminal_is_asked(
    answer: str, goes: bool, sweep: SweepDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def typed(question: str) -> str:
        if not answer:
            raise EOFError
        return answer.strip() if "Remove?" in question else ""

    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", typed)
    target = remove.Target(sweep, [], [])
    assert remove.confirmed([target]) is goes
    assert ("Nothing was removed." in printed(capsys)) is not goes


# --- runs that may still go on ---------------------------------------------------------------------------------


def away(where: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a Slurm whose controller does not answer first on PATH."""
    (where / "bin").mkdir(parents=True)
    for name in ("squeue", "sacct", "scontrol"):
        file = where / "bin" / name
        file.write_text("#!/bin/sh\necho 'slurm_load_jobs error: Unable to contact slurm controller' >&2\nexit 1\n")
        file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{where}/bin:/usr/bin:/bin")
    monkeypatch.setattr(scheduler_call, "_patience", [scheduler_call.Patience(0)])


def of_slurm(sweep: Path, name: str, end: str, **fields: object) -> RunDir:
    run = a_run(name, steps=1)
    directory = prepared(sweep, run)
    record = {"event": "submitted", "run": name, "launcher": "slurm", "job_id": "7", "events_before": 1, "host": "h"}
    append_record(SweepDir(sweep).submissions, record | {"time": now()})
    started(directory, run)
    event(directory, end, **fields)
    return directory


@pytest.mark.parametrize(
    ("end", "fields"),
    [("stopped", {"reason": "SIGTERM", "step": 3}), ("failed", {"error": "CUDA error", "rank": 0, "node": "n1"})],
)
def test_a_run_that_its_job_may_restart_stays_while_slurm_is_away(
    end: str,
    fields: dict[str, object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = of_slurm(tmp_path / "s", "r", end, **fields)
    away(tmp_path, monkeypatch)
    assert main(["remove", "--yes", str(run.path)]) == 2
    assert "is not over: r (" in capsys.readouterr().err
    assert main(["cancel", str(run.path)]) == 2
    shown = capsys.readouterr()
    assert "r may restart: " in shown.err
    assert "no run waits" not in shown.out
    assert run.config.exists()


def test_a_run_that_finished_goes_whether_slurm_answers_or_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = of_slurm(tmp_path / "s", "r", "finished")
    away(tmp_path, monkeypatch)
    assert main(["remove", "--yes", str(run.path)]) == 0


def test_slurm_is_asked_once_however_many_runs_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [
        of_slurm(tmp_path / place, f"r{n}", "stopped", reason="SIGTERM", step=1) for place in "ab" for n in (1, 2, 3)
    ]
    (tmp_path / "bin").mkdir()
    for name, prints in (("squeue", ""), ("sacct", "7|CANCELLED by 0|n1"), ("scontrol", "")):
        file = tmp_path / "bin" / name
        file.write_text(f"#!/bin/sh\necho {name} >> {tmp_path}/calls\necho '{prints}'\n")
        file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    assert main(["remove", "--yes", *(str(run.path) for run in runs if run.name != "r3")]) == 0
    assert (tmp_path / "calls").read_text().split() == ["squeue", "sacct"]
    assert [run.path.exists() for run in runs] == [False, False, True] * 2


def test_a_run_outside_of_slurm_that_wrote_a_moment_ago_is_not_taken_for_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = a_run("r", steps=1)
    directory = prepared(tmp_path / "s", run)
    started(directory, run)
    assert main(["status", "--check", str(tmp_path / "s")]) == 0
    assert "started outside Slurm" in printed(capsys)
    assert main(["remove", "--yes", str(directory.path)]) == 2
    for file in directory.path.iterdir():
        os.utime(file, (0, 0))
    assert main(["status", "--check", str(tmp_path / "s")]) == 1
    assert main(["remove", "--yes", str(directory.path)]) == 0


def test_a_removed_run_says_nothing_of_a_later_one_of_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of_slurm(tmp_path / "s", "other", "finished")
    run = of_slurm(tmp_path / "s", "r", "finished")
    SweepDir(tmp_path / "s").logs.mkdir()
    SweepDir(tmp_path / "s").output("7").write_text("of the removed run\n")
    assert main(["remove", "--yes", str(run.path)]) == 0
    prepared(tmp_path / "s", a_run("r", steps=1))
    assert [item.state.value for item in states(SweepDir(tmp_path / "s", "r"))] == ["prepared"]
    capsys.readouterr()
    assert main(["logs", str(run.path)]) == 2
    assert "was never submitted" in capsys.readouterr().err


def test_the_code_of_sweeps_inside_a_sweep_directory_stays_with_them(sweep: SweepDir) -> None:
    store = code_store(sweep.path)
    (store / CODE).mkdir(parents=True)
    finished_run(sweep.path / "inner", a_run("r", steps=1))
    assert main(["remove", "--yes", str(sweep.path)]) == 0
    assert (store / CODE).is_dir()
    assert (sweep.path / "inner/r").is_dir()
