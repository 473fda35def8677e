"""`--json`: run a command, and print one JSON document (jobs.answers.Reply) in place of its tables.

Whatever the command prints meanwhile goes to standard error, so that standard output has nothing else. A refusal is a
document too.
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict
from typing import Any, TextIO

import orjson

from jobs.answers import Reply
from jobs.command_line.grammar import COMMANDS, Parser, parsed
from jobs.command_line.refused import refusal
from jobs.errors import SuiteError

USAGE = 2


def print_as_json(
    top: Parser, arguments: list[str], refusal_of: Callable[[BaseException], tuple[str, int] | None]
) -> int:
    """Run a command, print its reply, with --follow one line per reply, and return its exit code.

    `refusal_of` returns text and exit code of an error that the user can correct; another one is raised.
    """
    out, code = sys.stdout, 0
    with redirect_stdout(sys.stderr):
        for reply in replies(top, arguments, refusal_of):
            out.write(encoded(reply, in_one_line="--follow" in arguments))
            out.flush()
            code = reply.exit_code
    return code


def replies(
    top: Parser, arguments: list[str], refusal_of: Callable[[BaseException], tuple[str, int] | None]
) -> Iterator[Reply]:
    """Run a command and yield its reply; with --follow one at each change."""
    name = next((each for each in arguments if each in COMMANDS), "")
    usage = io.StringIO()
    try:
        with redirect_stderr(usage):
            options = parsed(top, arguments)
    except SystemExit:
        yield Reply(name, USAGE, refusal=refusal("usage", usage.getvalue().strip()))
        return
    answer = COMMANDS[options.command].answer
    assert answer is not None
    follows = answer.changes is not None and options.follow
    told = Heard(sys.stderr)
    try:
        with redirect_stderr(told):
            answers = answer.changes(options) if follows and answer.changes else [answer.function(options)]
        for result, code in answers:
            partly = refusal("partial", told.text, options=options) if code == USAGE else None
            yield Reply(name, code, result, partly, next_commands=next_commands(options, result, code))
    except SystemExit:
        yield Reply(name, USAGE, refusal=refusal("usage", options.grammar.complaint))
    except (Exception, KeyboardInterrupt) as error:
        if (refused := refusal_of(error)) is None:
            raise
        text, code = refused
        kind = type(error).__name__ if isinstance(error, (SuiteError, PermissionError)) else "interrupted"
        yield Reply(name, code, refusal=refusal(kind, text, error, options))


class Heard(io.TextIOBase):
    """Standard error, with what was written to it: where part of a command was not done, it names the part."""

    def __init__(self, to: TextIO) -> None:
        self.to, self.lines = to, list[str]()

    @property
    def text(self) -> str:
        """Return all that was written."""
        return "".join(self.lines).strip()

    def write(self, text: str) -> int:
        """Write, and keep, a text."""
        self.lines.append(text)
        return self.to.write(text)

    def flush(self) -> None:
        """Flush standard error."""
        self.to.flush()

    def isatty(self) -> bool:
        """Return whether standard error is a terminal."""
        return self.to.isatty()

    def fileno(self) -> int:
        """Return the descriptor of standard error."""
        return self.to.fileno()


def next_commands(options: argparse.Namespace, result: Any, code: int) -> list[str]:
    """Return the usual commands after this one, each a line to type."""
    command = COMMANDS[options.command]
    if code or command.answer is None:
        return []
    return [f"slurmscale {line}" for line in command.answer.then(options, result)]


def encoded(reply: Reply, *, in_one_line: bool = False) -> str:
    """Return a reply as text; a number that is not finite is null, and a byte that is not UTF-8 has a backslash."""
    how = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE
    how |= 0 if in_one_line else orjson.OPT_INDENT_2
    try:
        return orjson.dumps(reply, default=str, option=how).decode()
    except orjson.JSONEncodeError:
        # A name of a file may be any bytes, which Python keeps as halves of surrogate pairs.
        return orjson.dumps(readable(asdict(reply)), default=str, option=how).decode()


def readable(value: Any) -> Any:
    """Return plain data without halves of surrogate pairs."""
    if isinstance(value, str):
        return value.encode(errors="surrogateescape").decode(errors="backslashreplace")
    if isinstance(value, dict):
        return {readable(key): readable(each) for key, each in value.items()}
    return [readable(each) for each in value] if isinstance(value, (list, tuple)) else value
