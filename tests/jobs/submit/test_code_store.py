"""The store of code beside the sweeps: made once, read-only, found again, and removed when nobody needs it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jobs.cli import main
from jobs.rundir import RunDir, SweepDir, code_store
from jobs.submit.preparation.code_store import (
    UNUSED_S,
    code_digest,
    files_of,
    link_code,
    packaged_code,
    remove_unused_code,
    stored,
)
from jobs.submit.trust.integrity import refuse_changed
from tests.support.cli import printed_words, small
from tests.support.paths import ROOT

OTHER = {Path("jobs/__init__.py"): b"", Path("conf/a b.yaml"): b"a: 1\n"}


def prepared_run(runs: Path, *overrides: str) -> RunDir:
    """A run that was prepared and can be resumed by writing its script again."""
    assert main(["submit", *small(runs), "launcher=script", "cluster=generic_slurm", "name=r", *overrides]) == 0
    return SweepDir(runs / "s").run("r")


def resumed(sweep: Path, *options: str) -> int:
    return main(["resume", "--launcher", "script", *options, str(sweep)])


def code_of_another_version(directory: RunDir) -> Path:
    """Let a run lead to a copy of changed code, which differs from the installed one."""
    changed = packaged_code() | {Path("jobs/__init__.py"): b"# of last week\n"}
    link_code(directory, stored(SweepDir(directory.path.parent), changed), directory.path)
    return directory.code_snapshot


def aged(path: Path) -> None:
    long_ago = time.time() - 2 * UNUSED_S
    os.utime(path, (long_ago, long_ago))


def test_submissions_at_once_make_one_whole_copy(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from jobs.rundir import SweepDir;"
        "from jobs.submit.preparation.code_store import *;"
        "print(snapshot_code(SweepDir(Path(sys.argv[1]))))"
    )
    shells = [
        subprocess.Popen(
            [sys.executable, "-c", program, f"{tmp_path}/{n}"], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        for n in range(3)
    ]
    (code,) = {Path(shell.communicate()[0].strip()) for shell in shells}
    assert {shell.returncode for shell in shells} == {0}
    assert list(code_store(tmp_path).iterdir()) == [code]
    assert files_of(code) == packaged_code()


def test_a_submission_that_was_killed_while_it_copied_leaves_nothing_that_the_next_one_takes(tmp_path: Path) -> None:
    half = code_store(tmp_path) / ".new-killed/code/jobs"
    half.mkdir(parents=True, mode=0o700)
    (half / "run.py").write_text("")
    code_store(tmp_path).chmod(0o700)
    code = prepared_run(tmp_path).code_snapshot
    assert files_of(code) == packaged_code()
    aged(half.parent.parent)
    assert remove_unused_code(tmp_path) == [half.parent.parent]


@pytest.mark.parametrize("where", ["code_store", "a link"])
def test_a_store_that_others_can_write_or_that_is_a_link_is_refused(
    where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = code_store(tmp_path)
    if where == "a link":
        (tmp_path / "elsewhere").mkdir()
        store.symlink_to("elsewhere")
    else:
        store.mkdir()
        store.chmod(0o777)
    assert main(["submit", *small(tmp_path), "launcher=script", "cluster=generic_slurm"]) == 2
    shown = printed_words(capsys)
    assert f"{store} is " in shown
    assert ("is a link" if where == "a link" else "is writable by other users (mode 777)") in shown
    assert not (tmp_path / "s").exists()


def test_a_run_leads_to_no_code_outside_of_its_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = prepared_run(tmp_path / "runs")
    elsewhere = tmp_path / "other/.code-1" / directory.code_snapshot.name
    shutil.copytree(directory.code_snapshot, elsewhere)
    directory.code.unlink()
    directory.code.symlink_to(elsewhere)
    with pytest.raises(Exception, match=r"the code of the run, is not in .*/runs/\.code-"):
        refuse_changed(tmp_path / "runs/s", None, [directory.code_snapshot])
    # `resume` finds the same code in the store, and leads the run there.
    assert resumed(tmp_path / "runs/s") == 0
    assert directory.code_snapshot.parent == code_store(tmp_path / "runs")
    assert str(elsewhere) not in directory.batch_script.read_text()
    capsys.readouterr()


@pytest.mark.parametrize("version", ["installed", "another"])
def test_a_sweep_that_was_moved_takes_its_code_along_when_it_is_resumed(
    version: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = prepared_run(tmp_path / "runs")
    name = (code_of_another_version(old) if version == "another" else old.code_snapshot).name
    new = SweepDir(tmp_path / "archive/deep/s")
    new.path.parent.mkdir(parents=True)
    shutil.move(tmp_path / "runs/s", new.path)
    assert resumed(new.path) == 2
    shown = printed_words(capsys)
    assert ("not the installed code: 1 files differ" if version == "another" else "equal to the installed") in shown
    assert resumed(new.path, "--trust") == 0
    assert new.run("r").code_snapshot == new.code_store / name
    assert f"PYTHONPATH={new.code_store}/{name}" in new.run("r").batch_script.read_text()


def test_code_that_is_nowhere_is_refused_in_words_and_a_copy_of_it_helps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = prepared_run(tmp_path)
    code = code_of_another_version(directory)
    code.rename(tmp_path / "aside")
    assert resumed(tmp_path / "s") == 2
    shown = printed_words(capsys)
    assert f"its code, {code.name}, is not in {code.parent}, and the installed code is another one. Copy it" in shown
    main(["status", str(tmp_path / "s")])
    assert "1 run: 1 prepared" in printed_words(capsys), "it can be looked at"
    shutil.copytree(tmp_path / "aside", code)
    (code / "jobs/run.py").chmod(0o600)
    assert resumed(tmp_path / "s", "--trust") == 0


def test_code_of_an_own_sweep_that_was_removed_comes_back_if_it_is_installed(tmp_path: Path) -> None:
    directory = prepared_run(tmp_path)
    code = directory.code_snapshot
    shutil.rmtree(code)
    assert resumed(tmp_path / "s") == 0
    assert files_of(code) == packaged_code()


def test_a_sweep_of_an_earlier_version_keeps_the_code_inside(tmp_path: Path) -> None:
    directory = prepared_run(tmp_path)
    inside = tmp_path / "s" / directory.code_snapshot.name
    directory.code_snapshot.rename(inside)
    directory.code.unlink()
    directory.code.symlink_to(Path("..") / inside.name)
    assert resumed(tmp_path / "s") == 0
    assert f"PYTHONPATH={inside}" in directory.batch_script.read_text()
    assert list(code_store(tmp_path).iterdir()) == []


def test_only_old_code_that_no_run_leads_to_is_removed(tmp_path: Path) -> None:
    used = prepared_run(tmp_path).code_snapshot
    sweep = SweepDir(tmp_path / "s")
    unused, fresh = stored(sweep, OTHER), stored(sweep, OTHER | {Path("new"): b""})
    for path in (used, unused):
        aged(path)
    assert remove_unused_code(tmp_path) == [unused]
    assert sorted(code_store(tmp_path).iterdir()) == sorted([used, fresh])
    shutil.rmtree(sweep.path)
    aged(used)
    assert remove_unused_code(tmp_path) == [used]
    assert remove_unused_code(tmp_path / "no such directory") == []
    assert fresh.name == f"code-{code_digest(OTHER | {Path('new'): b''})}"


def test_a_removal_that_is_interrupted_leaves_no_part_of_a_copy_under_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = SweepDir(tmp_path / "s")
    copy = stored(sweep, OTHER)
    aged(copy)

    def interrupted(path: Path) -> None:
        next(file for file in path.rglob("*") if file.is_file()).unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", interrupted)
        with pytest.raises(KeyboardInterrupt):
            remove_unused_code(tmp_path)
    assert files_of(stored(sweep, OTHER)) == OTHER
    assert len(remove_unused_code(tmp_path)) == 1, "the part that was left"
    assert files_of(copy) == OTHER


def test_a_copy_that_is_used_again_is_not_old(tmp_path: Path) -> None:
    sweep = SweepDir(tmp_path / "s")
    aged(stored(sweep, OTHER))
    stored(sweep, OTHER)
    assert remove_unused_code(tmp_path) == []


def test_a_submission_that_is_refused_takes_its_copy_back_and_no_other(tmp_path: Path) -> None:
    refused = ["submit", *small(tmp_path), "launcher=script", "cluster=generic_slurm", "sweep=t",
               "cluster.container=/image.sif", "cluster.container_runtime=apptainer", "job.init_from='/a,b'",
               "job.init_from_is_remote=true"]  # fmt: skip
    assert main(refused) == 2
    assert {path.name for path in tmp_path.iterdir()} == {"cache"}
    code = prepared_run(tmp_path).code_snapshot
    aged(code)
    another = stored(SweepDir(tmp_path / "s"), OTHER)
    aged(another)
    assert main(refused) == 2
    assert files_of(code) == packaged_code()
    assert files_of(another) == OTHER, "of a sweep that was moved away, perhaps"
