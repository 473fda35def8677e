"""Imports of analysis point one way: from the report down to the lines of a file."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

from tests.support.paths import ROOT

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
    "report.digest",
    "report.figures",
    "report.sections",
    "report",
)
# Functions over all runs, lines or logs, which the digest of a report calls once.
ONCE = {
    "fits_of",
    "leaderboards",
    "load_lines",
    "loss_doubts",
    "measurements",
    "relative_costs",
    "scaling_groups",
    "series_of",
    "systems_of",
}


def imported(tree: ast.AST) -> Iterator[str]:
    """Yield the modules of analysis that are imported when this code runs, so not those for annotations alone."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "analysis":
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if is_module(name) else str(node.module) for name in names)
        yield from imported(node)


def is_module(name: str) -> bool:
    path = ROOT / name.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").is_file()


def modules() -> dict[str, set[str]]:
    """Return the modules of analysis, each with those that it imports."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): set(imported(ast.parse(path.read_text())))
        for path in (ROOT / "analysis").rglob("*.py")
        if path.name != "__init__.py"
    }


def room(module: str) -> int:
    """Return the place of a module's room; raise where no room is its own."""
    places = [i for i, name in enumerate(ROOMS) if f"{module}.".startswith(f"analysis.{name}.")]
    assert places, f"{module} is in no room: add its folder to ROOMS"
    return places[0]


def test_a_room_imports_only_what_stands_before_it() -> None:
    upward = {
        f"{module} imports {other}"
        for module, others in modules().items()
        for other in others
        if room(other) > room(module)
    }
    assert not upward


def test_no_module_imports_itself_by_way_of_others() -> None:
    TopologicalSorter(modules()).prepare()  # raises CycleError


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
