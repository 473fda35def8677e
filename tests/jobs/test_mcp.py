"""`slurmscale mcp`, asked by the client of the protocol's own SDK."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.types import CallToolResult

from jobs.cli import main
from jobs.command_line.grammar import COMMANDS
from tests.support.real_run import SMALL
from tests.support.waiting import limit_s

ENTRY = Path(__file__).resolve().parents[2] / "slurmscale.py"
READING = {"plan", "explain", "status", "list", "logs", "leaderboard", "skills"}


def asked(place: Path, *options: str, of: Callable[[ClientSession], Awaitable[Any]]) -> Any:
    """Return what a client finds at a server with these options that works in a directory."""

    async def talk() -> Any:
        command = StdioServerParameters(command=sys.executable, args=[str(ENTRY), "mcp", *options], cwd=place)
        async with stdio_client(command) as (read, write), ClientSession(read, write) as session:
            await session.initialize()
            return await asyncio.wait_for(of(session), limit_s(400))

    return asyncio.run(talk())


def reply_in(result: CallToolResult) -> dict[str, Any]:
    """Return the document of a call, which the client has checked against the schema of the tool."""
    assert result.structuredContent is not None, result.content
    return result.structuredContent


def test_a_server_has_only_tools_that_change_nothing_unless_others_are_allowed(tmp_path: Path) -> None:
    async def names(session: ClientSession) -> dict[str, bool | None]:
        tools = (await session.list_tools()).tools
        return {each.name: each.annotations.readOnlyHint if each.annotations else None for each in tools}

    assert asked(tmp_path, of=names) == dict.fromkeys(READING, True)
    everything = asked(tmp_path, "--allow", "writes,submits,cancels,removes", "--node-hours", "1", of=names)
    assert everything["skills"] is False
    assert set(everything) == {each.name for each in COMMANDS.values() if each.answer is not None}


def test_what_is_not_allowed_or_not_an_argument_is_refused(tmp_path: Path) -> None:
    async def refusals(session: ClientSession) -> list[CallToolResult]:
        return [
            await session.call_tool("submit", {"overrides": ["launcher=dry"]}),
            await session.call_tool("plan", {"overrides": ["--output=drawn.html"], "search": True}),
            await session.call_tool("plan", {"overrides": [], "outptu": "x"}),
            await session.call_tool("status", {}),
            await session.call_tool("skills", {"output": "written"}),
            await session.call_tool("plan", {"overrides": [], "output": "drawn.html"}),
        ]

    results = asked(tmp_path, of=refusals)
    assert all(each.isError for each in results)
    texts = [each.content[0].text for each in results]
    assert "--allow" in texts[0]
    assert "begins with a dash" in texts[1]
    assert "outptu" in texts[2]
    assert "sweep" in texts[3]
    assert "output" in texts[4]
    assert "output" in texts[5]
    assert not list(tmp_path.iterdir())


def test_an_agent_plans_submits_within_its_limit_and_reads_the_result(tmp_path: Path) -> None:
    given = [*SMALL, "launcher=local", "ranks_per_node=1", "job.steps=3", "launcher.requeues=0", "wall_time_min=60"]

    async def campaign(session: ClientSession) -> list[dict[str, Any]]:
        plan = await session.call_tool("plan", {"overrides": given})
        wrong = await session.call_tool("plan", {"overrides": ["cluster=xe9680_h100", "ranks_per_node=16"]})
        first = await session.call_tool("submit", {"overrides": [*given, "sweep=first"], "wait": True})
        over = await session.call_tool("submit", {"overrides": [*given, "sweep=second"], "wait": True})
        output = await session.call_tool("logs", {"run": reply_in(first)["result"]["runs"][0]["directory"]})
        seen = await session.call_tool("list", {})
        guide = await session.call_tool("skills", {"name": "scale-a-model"})
        return [reply_in(each) for each in (plan, wrong, first, over, output, seen, guide)]

    plan, wrong, first, over, output, seen, guide = asked(
        tmp_path, "--allow", "submits", "--node-hours", "1.5", of=campaign
    )
    assert plan["result"]["runs"][0]["ranks"] == 1
    assert {"ranks_per_node": "8"} in wrong["refusal"]["remedies"]
    assert first["result"]["counts"] == {"finished": 1}
    assert "1 node-hours" in over["refusal"]["message"]
    assert "0.5 of 1.5 are left" in over["refusal"]["message"]
    assert output["result"]["last_lines"]
    assert guide["result"]["skills"][0]["text"].startswith("---")
    assert [Path(each["directory"]).name for each in seen["result"]["sweeps"]] == ["first"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--allow", "submits"], "Add --node-hours N"),
        (["--allow", "everything"], "set one or more of writes,submits,cancels,removes"),
        (["--allow", "submits", "--node-hours", "-1"], "must be above 0"),
    ],
)
def test_a_server_with_a_wrong_option_does_not_start(
    options: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        sys.exit(main(["mcp", *options]))
    assert end.value.code == 2
    assert sentence in capsys.readouterr().err
