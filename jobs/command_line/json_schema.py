"""`slurmscale schema COMMAND`: the JSON schema (2020-12) of what `--json` prints, from the records of jobs.answers."""

from __future__ import annotations

import dataclasses
import types
from typing import Any, Union, get_args, get_origin, get_type_hints

import orjson

from jobs.answers import Reply
from jobs.command_line.command import EXIT_CODES, Command
from jobs.command_line.grammar import COMMANDS
from jobs.errors import ConfigError

DIALECT = "https://json-schema.org/draft/2020-12/schema"
SCALARS = {str: "string", int: "integer", float: "number", bool: "boolean", types.NoneType: "null"}


def schema(name: str) -> int:
    """Print the schema of the reply of a command; raise ConfigError for one without."""
    answering = {each.name: each for each in COMMANDS.values() if each.answer is not None}
    if name not in answering:
        raise ConfigError(f"{name} has no --json. The commands that have it are {', '.join(answering)}.")
    print(orjson.dumps(reply_schema(answering[name]), option=orjson.OPT_INDENT_2).decode())
    return 0


def reply_schema(command: Command) -> dict[str, Any]:
    """Return the schema of the reply of a command that answers."""
    assert command.answer is not None
    found = schema_of(Reply)
    found["$schema"] = DIALECT
    found["title"] = f"slurmscale {command.name} --json"
    found["properties"]["command"] = {"const": command.name}
    found["properties"]["result"] = {"anyOf": [schema_of(command.answer.of), {"type": "null"}]}
    codes = dict(sorted((EXIT_CODES | dict(command.exit_codes)).items()))
    meanings = "; ".join(f"{code}: {meaning}" for code, meaning in codes.items())
    found["properties"]["exit_code"] |= {"enum": list(codes), "description": meanings}
    return found


def schema_of(kind: Any) -> dict[str, Any]:
    """Return the schema of a type: a record, a list, a dictionary by text, a scalar, or a union of them."""
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        return {
            "type": "object",
            "description": str(kind.__doc__),
            "properties": {name: schema_of(hint) for name, hint in hints.items()},
            "required": list(hints),
        }
    if get_origin(kind) in {Union, types.UnionType}:
        return {"anyOf": [schema_of(each) for each in get_args(kind)]}
    if get_origin(kind) is list:
        return {"type": "array", "items": schema_of(get_args(kind)[0])}
    if get_origin(kind) is dict:
        return {"type": "object", "additionalProperties": schema_of(get_args(kind)[1])}
    return {} if kind is Any else {"type": SCALARS[kind]}
