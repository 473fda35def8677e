"""Lookup of kinds of work, engines and their parts by name, so that nothing below them imports them."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from jobs.schema import Run


def imported(name: str) -> Any:
    """Return an object by MODULE:NAME, as in the entry points of packages."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


def rules_of(module: str | None, name: str) -> tuple[Callable[[Run], str | None], ...]:
    """Return a tuple of rules of a module; empty without that module or tuple."""
    found: tuple[Callable[[Run], str | None], ...] = ()
    return found if module is None else getattr(import_module(module), name, found)
