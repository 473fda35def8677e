"""`slurmscale mcp`: a server of the Model Context Protocol on standard input and output, for programs and agents.

Each command that answers with data (`Answered`) is a tool: its arguments are the tool's input, the JSON schema of its
reply the tool's output. A call runs the command itself with --json in a process of its own, so a tool does what the
command does. Tools that change something are there only if they are allowed, and what they submit has a limit.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from jobs.command_line.command import Argument, Command, Effect, OneOf, Section
from jobs.command_line.grammar import COMMANDS
from jobs.command_line.json_schema import reply_schema
from jobs.errors import ConfigError
from jobs.submit.allowance import ALLOWANCE, open_allowance

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server
    from mcp.types import CallToolResult, Tool

ENTRY = Path(__file__).resolve().parents[2] / "slurmscale.py"
# They print something else than one document.
LEFT_OUT = {"follow", "open", "cfg", "info", "package", "resolve"}
ERROR_CHARACTERS = 4000


def serve(allowed: Collection[Effect], node_hours: float | None) -> int:
    """Serve until standard input ends, and return the exit code."""
    effects = {Effect.reads, *allowed}
    if Effect.submits in effects and node_hours is None:
        raise ConfigError("--allow submits needs a limit on what is submitted. Add --node-hours N, such as 10.")
    if node_hours is not None and not node_hours > 0:
        raise ConfigError(f"--node-hours {node_hours:g} must be above 0.")
    try:
        from mcp.server.stdio import stdio_server
    except ModuleNotFoundError as error:
        raise ConfigError(
            "`slurmscale mcp` needs the package mcp. Run: pip install 'mcp>=1.10,<2', or install slurmscale[mcp]."
        ) from error

    async def run() -> None:
        with tempfile.TemporaryDirectory(prefix="slurmscale-mcp-") as directory:
            server = server_of(effects, open_allowance(Path(directory), node_hours or 0.0))
            async with stdio_server() as (read, write):
                await server.run(read, write, server.create_initialization_options())

    asyncio.run(run())
    return 0


def server_of(effects: Collection[Effect], allowance: Path) -> Server[object, Any]:
    """Return the server of the commands with these effects."""
    from mcp.server.lowlevel import Server

    commands = {
        name: command
        for name, command in COMMANDS.items()
        if command.answer is not None and command.answer.effect in effects
    }
    others = [name for name, command in COMMANDS.items() if command.answer is not None and name not in commands]
    absent = f" Not allowed here: {', '.join(others)}." if others else ""
    server: Server[object, Any] = Server(
        "slurmscale", instructions=f"Train and tune language models on a cluster with Slurm. Begin with plan.{absent}"
    )

    @server.list_tools()  # type: ignore[no-untyped-call,untyped-decorator]
    async def tools() -> list[Tool]:
        return [tool_of(command) for command in commands.values()]

    @server.call_tool()  # type: ignore[untyped-decorator]
    async def call(name: str, given: dict[str, Any]) -> CallToolResult:
        if name not in commands:
            return failed(f"{name} is not allowed: start the server with slurmscale mcp --allow EFFECT.")
        try:
            line = command_line(commands[name], given)
        except ConfigError as error:
            return failed(str(error))
        return await result_of(line, allowance)

    return server


def tool_of(command: Command) -> Tool:
    """Return the tool of a command."""
    from mcp.types import Tool, ToolAnnotations

    assert command.answer is not None
    effect = command.answer.effect
    examples = "; ".join(f"slurmscale {each}" for each in command.examples)
    return Tool(
        name=command.name,
        description=f"{command.text}. As a command: {examples}",
        inputSchema=input_schema(command),
        outputSchema=reply_schema(command),
        annotations=ToolAnnotations(
            readOnlyHint=effect is Effect.reads, destructiveHint=effect in {Effect.cancels, Effect.removes}
        ),
    )


# --- arguments -----------------------------------------------------------------------------------------------------


def arguments_of(command: Command) -> Iterator[Argument]:
    """Yield the arguments that a tool has."""
    for each in command.arguments:
        inner = (each,) if isinstance(each, Argument) else each.arguments if isinstance(each, (OneOf, Section)) else ()
        yield from (argument for argument in inner if key_of(argument) not in LEFT_OUT)


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
        found = given[key] if isinstance(given[key], list) else [given[key]]
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


# --- calls ---------------------------------------------------------------------------------------------------------


async def result_of(line: list[str], allowance: Path) -> CallToolResult:
    """Run a command in a process of its own, and return its reply; end it if the caller gives up."""
    from mcp.types import CallToolResult, TextContent

    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(ENTRY),
        *line,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {ALLOWANCE: str(allowance)},
    )
    try:
        out, told = await process.communicate()
    except asyncio.CancelledError:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
        raise
    try:
        reply: dict[str, Any] = orjson.loads(out)
    except orjson.JSONDecodeError:
        return failed(f"{line[0]} ended with {process.returncode}: {told.decode(errors='replace')[-ERROR_CHARACTERS:]}")
    return CallToolResult(
        content=[TextContent(type="text", text=out.decode())],
        structuredContent=reply,
        isError=reply["refusal"] is not None,
    )


def failed(text: str) -> CallToolResult:
    """Return the result of a call that was not made."""
    from mcp.types import CallToolResult, TextContent

    return CallToolResult(content=[TextContent(type="text", text=text)], isError=True)
