"""An entry of the command line: the name, text, arguments and function of a command.

A new command is an entry in the tuple COMMANDS of one of the group files next to this one, and nothing else. Its
function imports what it needs when it runs, so that start-up stays fast.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

START = "start here"
"""The heading of the few commands that a newcomer needs."""
EXIT_CODES = {
    0: "done",
    2: "refused; the message names what to change",
    130: "interrupted by Ctrl-C",
    141: "the reader of the output ended, such as head",
}
"""Those that every command can give; 1 and 3 are in the entries of the commands that have them."""
OVERRIDES = "Hydra overrides, such as model=llama2_7b nodes=4 job.steps=100; `slurmscale explain` lists all keys"


class Effect(Enum):
    """The changes that a command makes: `slurmscale mcp` has commands that only read, and others by --allow."""

    reads = "nothing"
    writes = "files: reports, data, notes, and files of the site"
    submits = "jobs, and runs on this machine"
    cancels = "waiting and running jobs"
    removes = "sweeps and runs on disk"


class Argument:
    """An argument of a command: what argparse's `add_argument` takes, how a shell completes it, what it changes."""

    def __init__(
        self,
        *names: str,
        completer: Callable[..., list[str]] | None = None,
        effect: Effect = Effect.reads,
        **options: Any,
    ) -> None:
        """Describe an argument; `effect` is what it changes besides what its command changes."""
        self.names, self.completer, self.effect, self.options = names, completer, effect, options

    def add_to(self, parser: Any) -> None:
        """Add the argument to a parser, or to a group of one."""
        action = parser.add_argument(*self.names, **self.options)
        if self.completer is not None:
            action.completer = self.completer  # read by argcomplete


class OneOf:
    """Arguments that exclude each other."""

    def __init__(self, *arguments: Argument) -> None:
        self.arguments = arguments

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments to a parser."""
        group = parser.add_mutually_exclusive_group()
        for argument in self.arguments:
            argument.add_to(group)


class Section:
    """Arguments that have a heading of their own in the help."""

    def __init__(self, title: str, text: str, *arguments: Argument) -> None:
        self.title, self.text, self.arguments = title, text, arguments

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments to a parser."""
        group = parser.add_argument_group(self.title, self.text)
        for argument in self.arguments:
            argument.add_to(group)


def no_command(options: argparse.Namespace, result: Any) -> list[str]:
    """Return no next command."""
    del options, result
    return []


@dataclass(frozen=True)
class Answered:
    """The answer of a command to a program (`--json`)."""

    of: type
    """The record of jobs.answers that it answers with."""
    function: Callable[[argparse.Namespace], tuple[Any, int]]
    """Does what the command does, and returns such a record and the exit code."""
    effect: Effect
    """What the command changes; some of its arguments have effects of their own."""
    then: Callable[[argparse.Namespace, Any], list[str]] = no_command
    """Returns the usual next commands, by the options and the record; each follows `slurmscale`."""
    changes: Callable[[argparse.Namespace], Iterator[tuple[Any, int]]] | None = None
    """With --follow: yields a record and an exit code at each change, until nothing can change."""


@dataclass(frozen=True)
class Command:
    """A command. A test checks that each has a heading, a manual, and examples that the grammar accepts."""

    name: str
    text: str
    """One line on its purpose, as `slurmscale --help` shows it."""
    function: Callable[[argparse.Namespace], int]
    """Called with the options; returns the exit code. `options.grammar.error(text)` refuses their combination."""
    arguments: tuple[Argument | OneOf | Section, ...]
    heading: str
    """The heading below which `slurmscale --help` lists it."""
    examples: tuple[str, ...]
    """Lines to type after `slurmscale`. They need no files but the runs and configurations that they name."""
    manual: str
    """The page, or its section, that describes it: jobs/explore/README.md#tuning."""
    answer: Answered | None = None
    """Its answer to `--json`; None if it has none yet."""
    exit_codes: Mapping[int, str] = field(default_factory=dict)
    """The meaning of exit codes that not every command has, or a more exact one."""

    @property
    def ending(self) -> str:
        """The end of its help: examples, exit codes, and the place of the manual."""
        codes = dict(sorted((EXIT_CODES | dict(self.exit_codes)).items()))
        return "\n".join(
            [
                "\nexamples:",
                *(f"  slurmscale {example}" for example in self.examples),
                "\nexit codes:",
                *(f"  {code:<3}  {meaning}" for code, meaning in codes.items()),
                f"\nmanual: {self.manual}\n",
            ]
        )

    @property
    def takes_overrides(self) -> bool:
        """True if overrides are among its arguments."""
        return any(isinstance(each, Argument) and each.names == ("overrides",) for each in self.arguments)


def given_path(text: str) -> Path:
    """Return the path of an argument; refuse the empty text that an unset variable of a shell leaves."""
    if not text:
        raise argparse.ArgumentTypeError("'' is not a path; set one, or leave the option out")
    return Path(text)


def complete_override(prefix: str, **given: Any) -> list[str]:
    """Return the overrides that begin with a prefix."""
    from jobs.plan.completion import complete_override as complete

    return complete(prefix, **given)


def complete_key(prefix: str, **given: Any) -> list[str]:
    """Return the keys that begin with a prefix."""
    from jobs.plan.completion import complete_key as complete

    return complete(prefix, **given)


def overrides(text: str = OVERRIDES) -> Argument:
    """Return the argument that takes overrides; `grammar.parsed` accepts them between options too."""
    return Argument("overrides", nargs="*", metavar="OVERRIDE", help=text, completer=complete_override)


def chosen(options: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Return some options as keyword arguments."""
    return {name: getattr(options, name) for name in names}


JSON = Argument("--json", action="store_true", help="print one JSON document (`slurmscale schema COMMAND`)")
MULTIRUN = Argument("-m", "--multirun", action="store_true", help="make one run per value: nodes=1,2,4")
SWEEP = Argument("sweep", type=given_path, metavar="SWEEP", help="sweep directory, such as runs/demo; or one run in it")
EXPECT = Argument(
    "--expect",
    metavar="TEXT",
    help="store an expected result before the first run, such as 'tokens_per_s >= 1000', or of an attempt "
    "'speed >= 1.10 x baseline'; the report says whether it was kept",
)
# None: as the launcher does; launcher=here waits, since its runs end with the command.
WAIT = Argument("--wait", action="store_true", default=None, help="return when all runs have ended")
