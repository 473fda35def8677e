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
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.command_line.calls import arguments_of, command_line, input_schema, limited
from jobs.command_line.command import Command, Effect
from jobs.command_line.grammar import COMMANDS
from jobs.command_line.json_schema import reply_schema
from jobs.errors import ConfigError
from jobs.files import parse_json
from jobs.submit.allowance import ALLOWANCE, open_allowance

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server
    from mcp.types import CallToolResult, Tool

ENTRY = Path(__file__).resolve().parents[2] / "slurmscale.py"
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
        name: limited(command, effects)
        for name, command in COMMANDS.items()
        if command.answer is not None and command.answer.effect in effects
    }
    others = [name for name, command in COMMANDS.items() if command.answer is not None and name not in commands]
    absent = f" Not allowed here: {', '.join(others)}." if others else ""
    server: Server[object, Any] = Server(
        "slurmscale", instructions=f"Train and tune language models on a cluster with Slurm. Begin with plan.{absent}"
    )

    @server.list_tools()  # type: ignore[no-untyped-call,untyped-decorator]  # the SDK has no types here
    async def tools() -> list[Tool]:
        return [tool_of(command) for command in commands.values()]

    @server.call_tool()  # type: ignore[untyped-decorator]  # as above
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
    changes = {command.answer.effect, *(each.effect for each in arguments_of(command))} - {Effect.reads}
    examples = "; ".join(f"slurmscale {each}" for each in command.examples)
    return Tool(
        name=command.name,
        description=f"{command.text}. As a command: {examples}",
        inputSchema=input_schema(command),
        outputSchema=reply_schema(command),
        annotations=ToolAnnotations(
            readOnlyHint=not changes, destructiveHint=bool(changes & {Effect.cancels, Effect.removes})
        ),
    )


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
        reply: dict[str, Any] = parse_json(out)
    except ValueError:
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
