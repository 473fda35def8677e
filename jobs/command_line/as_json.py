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
from typing import Any

import orjson

from jobs.answers import Refusal, Reply
from jobs.command_line.grammar import COMMANDS, Parser, parsed
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
        yield Reply(name, USAGE, refusal=Refusal("usage", usage.getvalue().strip()))
        return
    answer = COMMANDS[options.command].answer
    assert answer is not None
    follows = answer.changes is not None and options.follow
    try:
        for result, code in answer.changes(options) if follows and answer.changes else [answer.function(options)]:
            yield Reply(name, code, result, next_commands=next_commands(options, result, code))
    except SystemExit:
        yield Reply(name, USAGE, refusal=Refusal("usage", options.grammar.complaint))
    except (Exception, KeyboardInterrupt) as error:
        if (refused := refusal_of(error)) is None:
            raise
        text, code = refused
        kind = type(error).__name__ if isinstance(error, (SuiteError, PermissionError)) else "interrupted"
        yield Reply(name, code, refusal=Refusal(kind, text, remedies_in(text) if kind == "ConfigError" else []))


def remedies_in(text: str) -> list[dict[str, str]]:
    """Return the overrides that the lines of a refusal propose."""
    from jobs.plan.remedies import remedies

    return [found for line in text.splitlines() for found in remedies(line.strip())]


def next_commands(options: argparse.Namespace, result: Any, code: int) -> list[str]:
    """Return the usual commands after this one, each a line to type."""
    command = COMMANDS[options.command]
    if code or command.answer is None:
        return []
    return [f"slurmscale {line}" for line in command.answer.then(options, result)]


def encoded(reply: Reply, *, in_one_line: bool = False) -> str:
    """Return a reply as text; a number that is not finite is null."""
    how = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE
    how |= 0 if in_one_line else orjson.OPT_INDENT_2
    return orjson.dumps(reply, default=str, option=how).decode()
