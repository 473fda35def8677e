"""The entries of the commands: help by headings, examples that work, exit codes, and the place of the manual."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from jobs.cli import main
from jobs.command_line.command import EXIT_CODES, START, Command
from jobs.command_line.grammar import COMMANDS, parsed, parser
from jobs.plan.compose import compose
from tests.support.paths import ROOT
from tests.support.readme_text import anchors

EXAMPLES = [(command, shlex.split(line)) for command in COMMANDS.values() for line in command.examples]


def test_help_lists_the_few_commands_of_a_beginning_first_and_each_command_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([]) == 0
    out = capsys.readouterr().out
    headings = {command.heading: out.index(f"\n{command.heading}:\n") for command in COMMANDS.values()}
    assert min(headings, key=headings.__getitem__) == START
    assert {name for name, command in COMMANDS.items() if command.heading == START} == {
        "plan", "submit", "status", "watch", "report",
    }  # fmt: skip
    assert [out.count(f"\n    {name} ") for name in COMMANDS] == [1] * len(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS.values(), ids=list(COMMANDS))
def test_the_help_of_a_command_ends_with_examples_exit_codes_and_its_manual(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["help", command.name]) == 0
    _, examples, rest = capsys.readouterr().out.partition("\nexamples:\n")
    assert examples
    lines = rest.splitlines()
    assert [f"  slurmscale {example}" for example in command.examples] == lines[: len(command.examples)]
    codes = [line.split()[0] for line in lines[lines.index("exit codes:") + 1 : -2]]
    assert set(codes) == {str(code) for code in (*EXIT_CODES, *command.exit_codes)}
    table = (ROOT / "jobs/command_line/README.md").read_text()
    assert all(f"\n| {code} | " in table for code in codes), "one table has the exit codes of all commands"
    assert lines[-1] == f"manual: {command.manual}"
    assert max(map(len, lines)) <= 80
    file, _, section = command.manual.partition("#")
    assert (ROOT / file).is_file()
    assert not section or section in anchors(ROOT / file)


@pytest.mark.parametrize(("command", "words"), EXAMPLES, ids=[" ".join(words) for _, words in EXAMPLES])
def test_an_example_is_accepted_and_what_it_overrides_can_run(command: Command, words: list[str]) -> None:
    assert words[0] == command.name
    options = parsed(parser(), words)
    assert options.command == command.name
    if command.takes_overrides and options.overrides and "--search" not in words:
        compose(options.overrides, multirun=True, to_submit=False)


@pytest.mark.parametrize(
    "command",
    [
        "model Qwen2.5-7B --output FILE/a.yaml",
        "cluster mine --output FILE/a.yaml",
        "skills --output FILE",
        "plan --search cluster=xe9680_h100 model=llama3_8b nodes=1 parallelism=fsdp_full -o FILE/a.html",
    ],
)
def test_a_place_that_cannot_be_written_is_refused_with_the_option(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("mine")
    assert main(command.replace("FILE", str(tmp_path / "file")).split()) == 2
    said = capsys.readouterr().err
    assert "cannot be written" in said
    assert "Set another place with --output" in said
    assert (tmp_path / "file").read_text() == "mine"
