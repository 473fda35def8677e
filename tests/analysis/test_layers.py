"""Imports of analysis point one way: from the report down to the lines of a file."""

from __future__ import annotations

from tests.support.imports import modules, refuse_circles, upward

# From the ground up: a room imports itself and what stands before it.
ROOMS = (
    "untrusted",
    "intervals",
    "progress",
    "parsers",
    "formatting",
    "run",
    "identity",
    "anonymous",
    "failures",
    "metrics",
    "scaling",
    "compare",
    "logs",
    "load",
    "report.figures",
    "report.sections",
    "report",
)


def test_a_room_imports_only_what_stands_before_it() -> None:
    assert not upward(modules("analysis"), [f"analysis.{room}" for room in ROOMS])


def test_no_module_imports_itself_by_way_of_others() -> None:
    refuse_circles(modules("analysis"))
