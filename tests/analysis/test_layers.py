"""Imports of analysis point one way: from the report down to the lines of a file."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.support.imports import modules, refuse_circles, upward
from tests.support.paths import ROOT

# From the ground up: a room imports itself and what stands before it.
ROOMS = (
    "untrusted",
    "intervals",
    "sequential",
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
    "report.digest",
    "report.figures",
    "report.sections",
    "report",
)
# Functions over all runs, lines or logs, which the digest of a report calls once.
ONCE = {
    "comparisons",
    "fits_of",
    "leaderboards",
    "load_lines",
    "loss_doubts",
    "measurements",
    "relative_costs",
    "scaling_groups",
    "series_of",
    "side_records",
    "studies",
    "systems_of",
}


def test_a_room_imports_only_what_stands_before_it() -> None:
    assert not upward(modules("analysis"), [f"analysis.{room}" for room in ROOMS])


def test_no_module_imports_itself_by_way_of_others() -> None:
    refuse_circles(modules("analysis"))


def test_what_the_digest_computes_is_computed_by_no_section_or_figure() -> None:
    report = ROOT / "analysis/report"
    assert names_from_analysis(report / "digest.py") >= ONCE
    again = {
        f"{path.relative_to(report)} imports {name}"
        for room in ("figures", "sections")
        for path in (report / room).glob("*.py")
        for name in names_from_analysis(path) & ONCE
    }
    assert not again


def names_from_analysis(path: Path) -> set[str]:
    imports = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
    return {alias.name for node in imports if str(node.module).startswith("analysis.") for alias in node.names}
