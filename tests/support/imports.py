"""Imports of the modules of a package when they are loaded, and a check that they point one way between its rooms."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from graphlib import TopologicalSorter

from tests.support.paths import ROOT


def loaded_with(tree: ast.AST, package: str) -> Iterator[str]:
    """Yield the modules of a package that load with this code: not those for annotations, nor those within functions.

    An import within a function is of what is looked up by name, or of what only this call needs.
    """
    for node in ast.iter_child_nodes(tree):
        for_types = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if for_types or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.expr):
            continue
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == package:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if is_module(name) else str(node.module) for name in names)
        yield from loaded_with(node, package)


@cache
def is_module(name: str) -> bool:
    """Return True if a dotted name is a module or a package of this repository."""
    path = ROOT / name.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").is_file()


@cache
def modules(package: str, of: str | None = None) -> dict[str, set[str]]:
    """Return the modules of a package, each with those that load with it, of the same package or of another."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): set(
            loaded_with(ast.parse(path.read_text()), of or package)
        )
        for path in (ROOT / package).rglob("*.py")
        if path.name != "__init__.py"
    }


def place(module: str, rooms: Sequence[str]) -> int:
    """Return the place of a module's room, the most special that names it; raise where no room is its own.

    Rooms of one place are in one text, divided by blanks.
    """
    named = {room: i for i, texts in enumerate(rooms) for room in texts.split()}
    places = {room: i for room, i in named.items() if f"{module}.".startswith(f"{room}.")}
    assert places, f"{module} is in no room: add its folder to ROOMS"
    return places[max(places, key=len)]


def upward(found: Mapping[str, set[str]], rooms: Sequence[str]) -> set[str]:
    """Return the imports of a room that stands later."""
    return {
        f"{module} imports {other}"
        for module, others in found.items()
        for other in others
        if place(other, rooms) > place(module, rooms)
    }


def refuse_circles(found: Mapping[str, set[str]]) -> None:
    """Raise CycleError if a module imports itself by way of others."""
    TopologicalSorter(found).prepare()
