"""The console of the commands: a terminal folds lines, a file has them whole."""

from __future__ import annotations

import pytest

from jobs.console import LOG_WIDTH, console


def test_a_line_in_a_file_is_not_folded(capsys: pytest.CaptureFixture[str]) -> None:
    console().print("word " * LOG_WIDTH)
    assert capsys.readouterr().out.count("\n") == 1


def test_a_terminal_folds_lines_at_its_width(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    console().print("word " * 80)
    assert capsys.readouterr().out.count("\n") == 5
