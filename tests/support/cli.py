"""The command as a user runs it, and the files that it writes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.cli import main
from tests.support.paths import ROOT
from tests.support.real_run import SMALL


def small(where: Path) -> list[str]:
    return [*SMALL, f"runs_dir={where}", "sweep=s", f"data.cache_dir={where}/cache", "job.steps=4"]


def files(where: Path) -> set[str]:
    """Everything below a directory but the data cache."""
    return {str(path.relative_to(where)) for path in where.rglob("*") if "cache" not in path.parts}


def run_cli(*arguments: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "jobs.cli", *arguments],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | env,
        capture_output=True,
        text=True,
        check=False,
    )


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    """Return stdout and stderr since the last call."""
    captured = capsys.readouterr()
    return captured.out + captured.err


def printed_words(capsys: pytest.CaptureFixture[str]) -> str:
    """Return stdout and stderr since the last call with single spaces: line breaks of tables are not tested."""
    return " ".join(printed(capsys).split())


def script_of(tmp_path: Path, *overrides: str) -> str:
    assert main(["submit", "launcher=script", *small(tmp_path), *overrides, "name=r"]) == 0
    (script,) = tmp_path.glob("*/r/job.*")
    text = script.read_text()
    shutil.rmtree(script.parent)
    return text
