"""Calls of commands by names and values, as the Python API and `slurmscale mcp` make them."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator, Mapping
from contextlib import redirect_stderr
from dataclasses import replace
from typing import Any

from jobs.command_line.command import Argument, Command, Effect, OneOf, Section
from jobs.command_line.grammar import COMMANDS, parsed, parser
from jobs.errors import ConfigError

# They print something else than one document.
LEFT_OUT = {"follow", "open", "cfg", "info", "package", "resolve", "live"}


def answer_of(name: str, given: Mapping[str, Any]) -> tuple[Any, int]:
    """Run a command that answers with data, and return its record and exit code; raise SuiteError if it is refused."""
    command, usage = COMMANDS[name], io.StringIO()
    assert command.answer is not None
    line = command_line(command, given)
    try:
        with redirect_stderr(usage):
            options = parsed(parser(), line)
    except SystemExit:
        raise ConfigError(usage.getvalue().strip()) from None
    try:
        return command.answer.function(options)
    except SystemExit:
        raise ConfigError(options.grammar.complaint) from None


def arguments_of(command: Command) -> Iterator[Argument]:
    """Yield the arguments that a tool has."""
    for each in command.arguments:
        inner = (each,) if isinstance(each, Argument) else each.arguments if isinstance(each, (OneOf, Section)) else ()
        yield from (argument for argument in inner if key_of(argument) not in LEFT_OUT)


def limited(command: Command, effects: Collection[Effect]) -> Command:
    """Return a command without the arguments that would change more than these effects."""
    return replace(command, arguments=tuple(each for each in arguments_of(command) if each.effect in effects))


def key_of(argument: Argument) -> str:
    """Return the name of an argument in a call: that of its long option."""
    long = next((name for name in argument.names if name.startswith("--")), argument.names[0])
    return long.lstrip("-").replace("-", "_")


def is_required(argument: Argument) -> bool:
    """Return whether a call must have the argument."""
    by_place = not argument.names[0].startswith("-")
    return (by_place and argument.options.get("nargs") not in {"*", "?"}) or bool(argument.options.get("required"))


def input_schema(command: Command) -> dict[str, Any]:
    """Return the JSON schema of a call's arguments."""
    arguments = list(arguments_of(command))
    return {
        "type": "object",
        "properties": {key_of(each): argument_schema(each) for each in arguments},
        "required": [key_of(each) for each in arguments if is_required(each)],
        "additionalProperties": False,
    }


def argument_schema(argument: Argument) -> dict[str, Any]:
    """Return the JSON schema of an argument."""
    options = argument.options
    text = str(options.get("help", "")) % {"default": options.get("default")}
    if options.get("action") == "store_true":
        return {"type": "boolean", "description": text}
    value: dict[str, Any] = {"type": {int: "integer", float: "number"}.get(options.get("type", str), "string")}
    if "choices" in options:
        value["enum"] = list(options["choices"])
    if is_list(argument):
        return {"type": "array", "items": value, "description": text}
    return value | {"description": text}


def is_list(argument: Argument) -> bool:
    """Return whether an argument takes several values."""
    several = argument.options.get("nargs")
    return several in {"*", "+"} or isinstance(several, int) or argument.options.get("action") == "append"


def command_line(command: Command, given: Mapping[str, Any]) -> list[str]:
    """Return the words of a command with the arguments of a call, which its schema accepts.

    Raise ConfigError for a value that would be read as an option: the caller may have another one in mind.
    """
    options, values = list[str](), list[str]()
    for argument in arguments_of(command):
        key, name = key_of(argument), f"--{key_of(argument).replace('_', '-')}"
        if key not in given or given[key] in (None, False):
            continue
        found = given[key] if isinstance(given[key], (list, tuple)) else [given[key]]
        if not argument.names[0].startswith("-"):
            values += map(str, found)
        elif given[key] is True:
            options.append(name)
        elif isinstance(argument.options.get("nargs"), int):
            refuse_options(command, found)
            options += [name, *map(str, found)]
        else:
            options += [f"{name}={value}" for value in found]
    refuse_options(command, values)
    return [command.name, *options, "--json", *values]


def refuse_options(command: Command, values: Collection[Any]) -> None:
    """Raise ConfigError for a value that begins with a dash."""
    for value in values:
        if str(value).startswith("-"):
            raise ConfigError(f"{command.name}: {value!r} begins with a dash. Pass options by their own names.")
