"""The parser of the command line, made of the entries of all commands."""

from __future__ import annotations

import argparse
import difflib
import shutil
import textwrap
from typing import Any, NoReturn

from jobs.command_line import campaigns, composing, results, site, sweeps
from jobs.command_line.command import JSON, START

COMMANDS = {
    command.name: command
    for command in (
        *composing.COMMANDS,
        *sweeps.COMMANDS,
        *results.COMMANDS,
        *campaigns.COMMANDS,
        *site.COMMANDS,
    )
}

SITE = "Own files are in the directory SLURMSCALE_SITE: export SLURMSCALE_SITE=DIR, with cluster/NAME.yaml in it."
WHOLE = "A file of a whole configuration is an experiment: experiment=NAME, of the site's experiment/NAME.yaml."
# Options of Hydra's own command line, and what takes their place in commands with overrides.
OF_HYDRA = {
    **dict.fromkeys(("--config-dir", "-cd", "--config-path", "-cp"), SITE),
    **dict.fromkeys(("--config-name", "-cn"), WHOLE),
    **dict.fromkeys(("--shell-completion", "-sc"), 'Run eval "$(slurmscale completion bash)".'),
    "--hydra-help": "Hydra only composes here; slurmscale explain lists all keys.",
    "--run": "slurmscale submit OVERRIDES runs them.",
    "-r": "slurmscale submit OVERRIDES runs them.",
    "--experimental-rerun": "slurmscale resume SWEEP runs unfinished runs again.",
}


class Parser(argparse.ArgumentParser):
    """A parser whose help has an ending, and whose errors end with the usage and a reference to --help."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands: dict[str, Parser] = {}
        """Parsers of the subcommands, by name."""
        self.ending = ""
        self.complaint = ""
        """The text of its error."""

    def format_help(self) -> str:
        """Return the help with its ending, whose lines stay as they are."""
        return super().format_help() + self.ending

    def error(self, message: str) -> NoReturn:
        """End with exit code 2, the message and the usage."""
        usage = self.format_usage().removeprefix("usage: ")
        stop = "" if message.endswith((".", "?")) else "."
        self.complaint = f"{self.prog}: {message}{stop} Usage:\n  {usage}{self.prog} --help explains each."
        self.exit(2, f"{self.complaint}\n")


def parser() -> Parser:
    """Return the parser of the command line."""
    top = Parser(
        prog="slurmscale",
        usage="slurmscale [-h] [--version] COMMAND ...",
        description="Sweep LLM training over model x parallelism x nodes on Slurm, and report scaling.",
    )
    top.add_argument("--version", action="store_true", help="print the version")
    top.ending = listing()
    subparsers = top.add_subparsers(dest="command", required=True, metavar="COMMAND", prog="slurmscale")
    subparsers.help = argparse.SUPPRESS  # `listing` has the commands
    for name, command in COMMANDS.items():
        # A shell shows this help with the completions.
        sub: Parser = subparsers.add_parser(name, help=command.text, description=command.text)
        sub.set_defaults(grammar=sub)
        for argument in (*command.arguments, *([JSON] if command.answer else [])):
            argument.add_to(sub)
        sub.ending = command.ending
        top.commands[name] = sub
    return top


def listing() -> str:
    """Return all commands with their texts below their headings, in the width of the terminal."""
    width = shutil.get_terminal_size().columns - 2
    column = max(map(len, COMMANDS)) + 2
    lines = []
    for heading in dict.fromkeys([START, *(command.heading for command in COMMANDS.values())]):
        lines += ["", f"{heading}:"]
        for name, command in COMMANDS.items():
            if command.heading == heading:
                lead = f"    {name:{column}}"
                lines.append(textwrap.fill(command.text, width, initial_indent=lead, subsequent_indent=" " * len(lead)))
    lines += ["", "slurmscale COMMAND --help has options, examples and exit codes. Manual: README.md"]
    return "\n".join([*lines, "In Python and notebooks: import slurmscale; help(slurmscale)\n"])


def parsed(top: Parser, arguments: list[str]) -> argparse.Namespace:
    """Return the options of one command; overrides may stand before, between and after options."""
    refuse_unknown_command(top, arguments[0])
    refuse_options_of_hydra(top, arguments)
    options, rest = top.parse_known_args(arguments)
    takes_overrides = "overrides" in options
    if rest and (not takes_overrides or any(word.startswith("-") for word in rest)):
        hint = "; overrides have no dashes, as in nodes=2" if takes_overrides else ""
        options.grammar.error(f"unrecognized arguments: {' '.join(rest)}{hint}")
    if rest:
        # argparse accepts positional arguments in one place only, and returns those of other places as unknown.
        options.overrides += rest
    return options


def refuse_unknown_command(top: Parser, name: str) -> None:
    """End with the nearest command, or all of them, unless there is a command of this name."""
    if name in top.commands or name.startswith("-"):
        return
    near = difflib.get_close_matches(name, top.commands, n=2)
    hint = f"Did you mean {' or '.join(near)}?" if near else f"The commands are {', '.join(top.commands)}."
    override = " An override follows a command, as in slurmscale plan nodes=2." if "=" in name else ""
    top.error(f"there is no command {name!r}. {hint}{override}")


def refuse_options_of_hydra(top: Parser, arguments: list[str]) -> None:
    """End with what to use in place of an option of Hydra that this program does not have."""
    command = COMMANDS.get(arguments[0])
    if command is None or not command.takes_overrides:
        return
    for word in arguments[1:]:
        if instead := OF_HYDRA.get(word.partition("=")[0]):
            top.commands[command.name].error(f"{word} is an option of Hydra. {instead}")
