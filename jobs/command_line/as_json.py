"""`--json`: run a command, and print one JSON document (jobs.answers.Reply) in place of its tables.

Whatever the command prints meanwhile goes to standard error, so that standard output has nothing else. A refusal is a
document too.
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Callable
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
    """Run a command, print its reply, and return its exit code.

    `refusal_of` returns text and exit code of an error that the user can correct; another one is raised.
    """
    out = sys.stdout
    with redirect_stdout(sys.stderr):
        reply = replied(top, arguments, refusal_of)
    out.write(encoded(reply))
    return reply.exit_code


def replied(top: Parser, arguments: list[str], refusal_of: Callable[[BaseException], tuple[str, int] | None]) -> Reply:
    """Run a command and return its reply."""
    name = next((each for each in arguments if each in COMMANDS), "")
    usage = io.StringIO()
    try:
        with redirect_stderr(usage):
            options = parsed(top, arguments)
    except SystemExit:
        return Reply(name, USAGE, refusal=Refusal("usage", usage.getvalue().strip()))
    command = COMMANDS[options.command]
    assert command.answer is not None
    try:
        result, code = command.answer.function(options)
    except (Exception, KeyboardInterrupt) as error:
        if (refused := refusal_of(error)) is None:
            raise
        text, code = refused
        kind = type(error).__name__ if isinstance(error, (SuiteError, PermissionError)) else "interrupted"
        return Reply(name, code, refusal=Refusal(kind, text, remedies_in(text) if kind == "ConfigError" else []))
    return Reply(name, code, result, next_commands=next_commands(options, result, code))


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


def encoded(reply: Reply) -> str:
    """Return a reply as text; a number that is not finite is null."""
    how = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE
    return orjson.dumps(reply, default=str, option=how).decode()
