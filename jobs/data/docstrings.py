"""Docstrings of Python's standard library as instruction records.

The files are parsed, never imported.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from jobs.data.sources import STDLIB, reading
from jobs.errors import DataError
from jobs.files import read_bytes

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
NAMED = (*FUNCTIONS, ast.ClassDef)
DOCUMENTED = (*NAMED, ast.Module)


def docstring_rows(path: Path) -> Iterator[dict[str, str]]:
    """Yield a record with Alpaca's keys for each docstring of a file, in order.

    Raise DataError if the file cannot be read, or the running Python cannot parse it.
    """
    with reading(path):
        content = read_bytes(path)
    try:
        tree = ast.parse(content)
    except SyntaxError as error:
        raise DataError(
            f"{path} cannot be parsed at line {error.lineno}: {error.msg}. It belongs to another "
            "Python version, or was changed. Set data=stdlib, which reads it as text."
        ) from error
    return rows_within(tree, module_name(path))


def module_name(path: Path) -> str:
    """Return the import name of a file: os for os.py, json for json/__init__.py."""
    inside = path.relative_to(STDLIB) if path.is_relative_to(STDLIB) else Path(path.name)
    return ".".join(inside.with_suffix("").parts).removesuffix(".__init__")


def rows_within(node: ast.AST, name: str) -> Iterator[dict[str, str]]:
    """Yield the records of a module, class or statement and of all within it, without functions in functions."""
    if isinstance(node, DOCUMENTED) and (answer := ast.get_docstring(node)):
        yield row_of(node, name, answer)
    if isinstance(node, FUNCTIONS):
        return
    for child in ast.iter_child_nodes(node):
        if isinstance(child, NAMED):
            yield from rows_within(child, f"{name}.{child.name}")
        elif isinstance(child, (ast.stmt, ast.excepthandler)):
            yield from rows_within(child, name)


def row_of(node: ast.AST, name: str, answer: str) -> dict[str, str]:
    """Return one record; a function's signature is its input."""
    if isinstance(node, FUNCTIONS):
        signature = f"{node.name}({ast.unparse(node.args)})"
        return {"instruction": f"What does {name} do?", "input": signature, "output": answer}
    return {"instruction": f"What is {name}?", "output": answer}
