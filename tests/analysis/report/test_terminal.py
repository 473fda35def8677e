"""`slurmscale report` on the terminal: the headline, the files, a browser, and paths that are not there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from analysis.load.discover import read
from analysis.report.content import build
from jobs.cli import main
from tests.support.report_pages import a_scaling_sweep


def test_the_terminal_has_the_headline_and_the_three_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_scaling_sweep(tmp_path / "demo")
    assert main(["report", str(tmp_path / "demo")]) == 0
    *answer, page, text, table = capsys.readouterr().out.splitlines()
    assert answer == build(read([tmp_path / "demo"])).headlines
    assert answer[0].startswith("CPU: tiny with ddp speeds up 1.87 times from 1 to 2 ranks")
    paths = [Path(each) for each in (page, text, table)]
    assert [path.name for path in paths] == ["report.html", "report.md", "runs.csv"]
    assert all(path.is_file() for path in paths)


def test_open_gives_the_page_to_the_browser_and_states_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    a_scaling_sweep(tmp_path / "demo")
    opened, browser = tmp_path / "opened", tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}\n')
    browser.chmod(0o755)
    page = (tmp_path / "demo/report.html").resolve()
    command = [sys.executable, "-m", "jobs.cli", "report", str(tmp_path / "demo"), "--open"]
    done = subprocess.run(command, env=os.environ | {"BROWSER": f"{browser} %s"}, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert opened.read_text().strip() == page.as_uri()
    browser.write_text("#!/bin/sh\nexit 1\n")
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("webbrowser._tryorder", None)
    assert main(["report", str(tmp_path / "demo"), "--open"]) == 1
    assert "No browser could be opened. Copy " in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["{}"], ["--compare", ".", "{}"], [".", "{}"], ["{}", "--reference", "x.csv"]])
def test_a_path_that_is_not_there_is_refused_before_heavy_imports(arguments: list[str], tmp_path: Path) -> None:
    missing = tmp_path / "nowhere"
    code = (
        "import sys; from jobs.cli import main; status = main(sys.argv[1:]);"
        "print(status, *sorted({'pandas', 'plotly', 'scipy', 'numpy'} & sys.modules.keys()))"
    )
    filled = [each.format(missing) for each in arguments]
    done = subprocess.run(
        [sys.executable, "-c", code, "report", *filled], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.stdout.split() == ["2"]
    assert f"{missing} does not exist" in done.stderr
