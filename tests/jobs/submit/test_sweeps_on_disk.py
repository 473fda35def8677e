"""`slurmscale list`, `note` and `clone`: sweeps on disk, with as few calls of Slurm as one."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from jobs.cli import main
from jobs.rundir import RunDir, SweepDir, append_record, load_run, now
from jobs.submit.states import State, states_of
from jobs.submit.sweeps.note import MOST_CHARACTERS, note_of
from tests.support.cli import printed, small
from tests.support.fake_runs import a_run, event, finished_run, prepared


def submitted(run: RunDir, job_id: str) -> None:
    record = {"event": "submitted", "run": run.name, "launcher": "slurm", "job_id": job_id, "events_before": 1}
    append_record(SweepDir(run.path.parent).submissions, record | {"host": "login", "time": now()})


def aged(sweep: Path, days: int) -> None:
    for path in sweep.rglob("*"):
        os.utime(path, (time.time() - 86_400 * days,) * 2)


def rows(shown: str) -> list[list[str]]:
    return [line.split() for line in shown.splitlines()[1:-1]]


# --- list ----------------------------------------------------------------------------------------------------


def test_sweeps_are_listed_newest_first_with_states_age_size_and_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for days, name in enumerate(("new", "nest/deep", "old"), start=1):
        finished_run(tmp_path / name, a_run("a", steps=1))
        event(prepared(tmp_path / name, a_run("b")), "failed", rank=0, node="n", error="no")
        aged(tmp_path / name, days)
    (tmp_path / "old/note.txt").write_text("the first one\n")
    (tmp_path / "old/report.html").write_text("x" * 3_000_000)
    (tmp_path / "a link").symlink_to("new")
    (tmp_path / "no sweep/photos").mkdir(parents=True)
    assert main(["list", str(tmp_path)]) == 0
    shown = printed(capsys)
    found = rows(shown)
    assert [row[:6] for row in found] == [
        [name, "1", "finished,", "1", "failed", str(days)]
        for days, name in enumerate(("new", "nest/deep", "old"), start=1)
    ]
    assert found[-1][6:7] + found[-1][8:] == ["d", "MB", "the", "first", "one"]
    assert shown.splitlines()[-1].startswith(f"3 sweeps in {tmp_path}: 3.")


def test_a_damaged_sweep_costs_only_its_own_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    finished_run(tmp_path / "fine", a_run("a", steps=1))
    torn = finished_run(tmp_path / "torn", a_run("a", steps=1))
    torn.config.write_text("[")
    torn.status.write_bytes(b"\xff{" + torn.status.read_bytes()[:-5])
    SweepDir(tmp_path / "torn").submissions.write_text('{"event": "submi')
    for name in ("fifo", "directory", "loop"):
        prepared(tmp_path / name, a_run("a"))
    os.mkfifo(tmp_path / "fifo/submissions.jsonl")
    (tmp_path / "directory/submissions.jsonl").mkdir()
    (tmp_path / "loop/submissions.jsonl").symlink_to("submissions.jsonl")
    intent = {"event": "intended", "mark": "s-1", "launcher": "slurm", "host": "h", "time": now(), "tasks": []}
    prepared(tmp_path / "elsewhere", a_run("a"))
    append_record(tmp_path / "elsewhere/submissions.jsonl", intent | {"array": False, "clusters": "other"})
    assert main(["list", str(tmp_path)]) == 0
    found = {row[0]: " ".join(row[1:]) for row in rows(printed(capsys))}
    assert found["fine"].startswith("1 finished")
    assert found["elsewhere"].startswith("of another SLURM_CLUSTERS")
    assert found["fifo"].startswith("cannot be read: it is a FIFO")
    assert found["directory"].startswith("cannot be read: it is a directory")
    assert found["loop"].startswith("cannot be read: it is a link that leads to itself")
    assert found.keys() >= {"torn"}


def test_one_look_at_slurm_is_enough_for_all_sweeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The runs have equal names, and one squeue has the jobs of all."""
    (tmp_path / "bin").mkdir()
    for name, answer in {"squeue": "", "sacct": "", "scontrol": ""}.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\necho {name} >> {tmp_path}/calls\n{answer}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    for number in range(5):
        submitted(prepared(tmp_path / f"runs/s{number}", a_run("r")), str(100 + number))
    assert main(["list", str(tmp_path / "runs")]) == 0
    assert "5 sweeps in" in printed(capsys)
    calls = (tmp_path / "calls").read_text().split()
    assert calls.count("squeue") <= 1
    assert calls.count("sacct") <= 1


def test_a_slurm_that_is_away_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    submitted(prepared(tmp_path / "s", a_run("r")), "7")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/squeue").write_text(
        f"#!/bin/sh\necho asked >> {tmp_path}/calls\n"
        "echo slurm_load_jobs error: Unable to contact slurm controller >&2\nexit 1\n"
    )
    (tmp_path / "bin/squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    assert main(["list", str(tmp_path)]) == 0
    assert "1 queued" in printed(capsys)
    assert (tmp_path / "calls").read_text() == "asked\n", "whoever waits asks again"


def test_states_of_sweeps_with_equal_names_are_kept_apart(tmp_path: Path) -> None:
    finished_run(tmp_path / "a", a_run("r", steps=1))
    event(prepared(tmp_path / "b", a_run("r")), "failed", rank=0, node="n", error="no")
    found = states_of([SweepDir(tmp_path / "a"), SweepDir(tmp_path / "b")])
    assert [item.state for each in found for item in each] == [State.finished, State.failed]


@pytest.mark.parametrize(
    ("given", "code", "words"),
    [
        ("nowhere", 2, "does not exist"),
        ("empty", 0, "empty contains no sweep"),
        ("file", 2, "is a file"),
        ("s/r", 2, "is a run, or inside one"),
        ("s", 0, "1 sweep in s"),
        ("s/", 0, "1 sweep in s"),
        (".", 0, "1 sweep in ."),
    ],
)
def test_the_directory_of_a_list_may_be_anything(
    given: str,
    code: int,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    finished_run(tmp_path / "s", a_run("r", steps=1))
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    monkeypatch.chdir(tmp_path)
    assert main(["list", given]) == code
    assert words in printed(capsys)


# --- note ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("before the new driver", "before the new driver"),
        ("  two   blanks\t", "two blanks"),
        ("<script>alert(1)</script> & 'q' [red]", "<script>alert(1)</script> & 'q' [red]"),
        ("größer 数 =1+1", "größer 数 =1+1"),
        ("x" * MOST_CHARACTERS, "x" * MOST_CHARACTERS),
    ],
)
def test_a_note_is_kept_shown_and_removed(
    text: str, kept: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = SweepDir(tmp_path)
    finished_run(tmp_path, a_run(steps=1))
    assert main(["note", str(tmp_path), text]) == 0
    assert note_of(sweep) == kept
    for command in (["note", str(tmp_path)], ["status", str(tmp_path)], ["list", str(tmp_path)]):
        assert main(command) == 0
        assert "".join(kept.split()) in "".join(printed(capsys).split())
    assert main(["note", str(tmp_path), *(["--remove"] if "driver" in text else [""])]) == 0
    assert not sweep.note.exists()
    assert main(["note", str(tmp_path)]) == 0
    assert "has no note" in printed(capsys)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x" * (MOST_CHARACTERS + 1), "at most 200 characters, and this one has 201"),
        ("a\nb", "is one line of text"),
        ("a\x1b[31mb", "contains the character '\\x1b'"),
        ("a\u202eb", "contains the character '\\u202e'"),
    ],
)
def test_what_is_no_line_of_text_is_refused(
    text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finished_run(tmp_path, a_run("r", steps=1))
    assert main(["note", str(tmp_path), text]) == 2
    assert words in printed(capsys)
    assert main(["note", str(tmp_path / "r"), "x"]) == 2
    assert f"notes belong to sweeps. Pass {tmp_path}" in printed(capsys)
    assert not SweepDir(tmp_path).note.exists()


def test_the_note_of_a_received_sweep_shows_no_other_file_and_no_controls(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finished_run(tmp_path / "s", a_run("r", steps=1))
    sweep = SweepDir(tmp_path / "s")
    (tmp_path / "secret").write_text("hidden words")
    sweep.note.symlink_to(tmp_path / "secret")
    assert note_of(sweep) == ""
    assert main(["note", str(sweep.path), "mine"]) == 0
    assert (tmp_path / "secret").read_text() == "hidden words"
    sweep.note.write_bytes(b"\x1b]0;title\x07 \xff" + b"y" * 100_000)
    assert main(["status", str(sweep.path)]) == 0
    assert "\x1b" not in printed(capsys)
    assert len(note_of(sweep)) <= MOST_CHARACTERS


# --- clone ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory, state_home: Path) -> RunDir:
    """A run of the user, submitted once for the tests that clone it."""
    where = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(state_home))
        assert main(["submit", "launcher=script", *small(where), "name=first"]) == 0
    return SweepDir(where / "s").run("first")


def test_a_clone_has_the_settings_of_the_run_and_the_changes(
    original: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = original.path.parent.parent
    assert main(["clone", str(original.path), "job.steps=9", "job.seed=5"]) == 0
    shown = printed(capsys)
    assert f"differs from {original.path}\n    job.seed: 1234 -> 5\n    job.steps: 4 -> 9\n" in shown
    (made,) = SweepDir(runs / "s-clone").runs()
    assert load_run(made.config).job.steps == 9
    assert main(["clone", str(runs / "s-clone"), "sweep=again", "launcher=dry"]) == 0
    (made,) = SweepDir(runs / "again").runs()
    assert load_run(made.config).job.seed == 5


def test_a_clone_that_cannot_be_composed_says_why(
    original: RunDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["clone", str(original.path), "job.stepz=9"]) == 2
    shown = printed(capsys)
    assert f"{original.path} was submitted with launcher=script " in shown
    assert "job.stepz is not a configuration key" in shown
    bare = prepared(tmp_path, a_run("r"))
    assert main(["clone", str(bare.path)]) == 2
    assert "has no overrides, so there is nothing to clone r from" in printed(capsys)


@pytest.mark.parametrize(
    ("received", "words"),
    [
        ([], "would execute the above as you"),
        (["cluster.setup=[touch /tmp/owned]"], "set-up line: touch /tmp/owned"),
        (["hydra.searchpath=[file:///tmp/x]"], "it is not KEY=VALUE with one value"),
        (["job.steps=${oc.env:HOME}"], "it has an interpolation"),
        (["model=/tmp/model"], "it names no choice of model"),
    ],
)
def test_a_clone_of_a_received_run_shows_what_it_would_execute(
    received: list[str], words: str, original: RunDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(original.path.parent, tmp_path / "s", symlinks=True)
    run = SweepDir(tmp_path / "s").run("first")
    facts = json.loads(run.provenance.read_text())
    run.provenance.write_text(json.dumps(facts | {"overrides": [*facts["overrides"], *received]}))
    assert main(["clone", str(run.path), f"runs_dir={tmp_path}"]) == 2
    assert words in printed(capsys)
    assert [each.name for each in tmp_path.iterdir()] == ["s"]
