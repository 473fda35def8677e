"""The console of the commands: a terminal folds lines, a file has them whole."""

from __future__ import annotations

import shlex

import pytest

from jobs.console import LOG_WIDTH, console, shell_line


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


@pytest.mark.parametrize("words", [["a='1'", "b"], ['x="y"', "p='$HOME'"], ["it's", "[1,2]", "", "!'"], ["a b", "'"]])
def test_a_line_to_type_means_the_words_and_is_easy_to_read(words: list[str]) -> None:
    assert shlex.split(shell_line(words)) == words
    assert shell_line(["program.params.nb='96'"]) == "\"program.params.nb='96'\""
