"""launcher=dry does not block the name of its sweep, and what is more than a preview is never replaced."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from jobs.cli import main
from jobs.rundir import RunDir, SweepDir, load_run
from jobs.submit.preparation.preview import is_preview
from tests.support.cli import files, printed, small


def names(sweep: SweepDir) -> list[str]:
    return [run.name for run in sweep.runs()]


def previewed(where: Path, *more: str) -> SweepDir:
    assert main(["submit", "-m", "launcher=dry", *small(where), "repeat=1,2", *more]) == 0
    return SweepDir(where / "s")


def test_a_preview_is_replaced_with_all_its_runs(tmp_path: Path) -> None:
    sweep = previewed(tmp_path)
    assert is_preview(sweep)
    assert main(["submit", "launcher=dry", *small(tmp_path), "repeat=2", "job.steps=3"]) == 0
    assert names(sweep) == ["tiny-ddp-n1x2-r2"]
    assert main(["submit", "launcher=script", *small(tmp_path), "name=other"]) == 0
    assert names(sweep) == ["other"]
    assert load_run(sweep.run("other").config).launcher.kind.name == "script"
    assert main(["submit", "launcher=dry", *small(tmp_path), "name=other"]) == 2, "a preview replaces no sweep"


def a_file(sweep: SweepDir) -> None:
    (sweep.path / "mine.txt").write_text("mine")


def a_note(sweep: SweepDir) -> None:
    assert main(["note", str(sweep.path), "keep"]) == 0


def a_file_of_a_run(sweep: SweepDir) -> None:
    (sweep.runs()[0].path / "checkpoints").mkdir()


def an_event(sweep: SweepDir) -> None:
    with sweep.runs()[0].status.open("a") as file:
        file.write('{"time": "2026-01-02T03:04:05.000+00:00", "event": "started"}\n')


def a_log(sweep: SweepDir) -> None:
    (sweep.logs / "1_0_log.out").write_text("x")


def a_link(sweep: SweepDir) -> None:
    run = sweep.runs()[0]
    run.path.rename(sweep.path.parent / "elsewhere")
    run.path.symlink_to(sweep.path.parent / "elsewhere")


def another_configuration(sweep: SweepDir) -> None:
    config = sweep.runs()[0].config
    config.write_text(config.read_text().replace("kind: dry", "kind: slurm"))


def a_damaged_configuration(sweep: SweepDir) -> None:
    sweep.runs()[0].config.write_text("[")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A preview, from which each test moves a copy."""
    where = tmp_path_factory.mktemp("made")
    previewed(where)
    return where / "s"


@pytest.mark.parametrize(
    "add",
    [
        a_file,
        a_note,
        a_file_of_a_run,
        an_event,
        a_log,
        a_link,
        another_configuration,
        a_damaged_configuration,
    ],
)
def test_a_directory_with_more_than_a_preview_is_refused_as_before(
    add: Callable[[SweepDir], None], made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(made, tmp_path / "s", symlinks=True)
    sweep = SweepDir(tmp_path / "s")
    assert is_preview(sweep)
    add(sweep)
    before = files(tmp_path)
    assert main(["submit", "launcher=script", *small(tmp_path), "repeat=2"]) == 2
    assert "exists, and a run is never overwritten" in printed(capsys)
    assert files(tmp_path) == before


def test_a_submission_that_is_refused_leaves_the_preview(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made, tmp_path / "s", symlinks=True)
    missing = ["data=docstrings", f"data.path={tmp_path}/missing"]
    assert main(["submit", "launcher=script", *small(tmp_path), *missing]) == 2
    assert is_preview(SweepDir(tmp_path / "s"))


def test_the_preview_of_a_campaign_is_replaced_from_its_baseline_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--campaign", str(tmp_path / "c"), "--repeats", "1"]
    attempt = ["attempt", "mbs2", "job.micro_batch_size=2", *where]
    assert main(["attempt", "baseline", "launcher=dry", *where]) == 0
    assert main([*attempt, "launcher=dry"]) == 0
    sweep = SweepDir(tmp_path / "c")
    assert names(sweep) == ["baseline-r1", "mbs2-baseline-r1", "mbs2-r1"]
    assert main([*attempt, "launcher=script"]) == 2
    assert "were only previewed (launcher=dry), and nothing has run" in printed(capsys)
    assert main(["attempt", "baseline", "launcher=script", "job.steps=7", *where]) == 0
    assert names(sweep) == ["baseline-r1"]
    assert load_run(RunDir(sweep.path / "baseline-r1").config).job.steps == 7
