"""The protocol of an engine: all that plan, submit and a rank ask of the program that computes.

An engine is a folder of jobs/engines with the object ENGINE in its engine.py, named after its member of EngineKind. It
is looked up here by name, so nothing below imports an engine. Plan and submit ask these objects on login nodes: they
import no torch, and what is slow only where it is used.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from jobs.schema import EngineKind, Run

if TYPE_CHECKING:
    from jobs.plan.predict.states import States
    from jobs.plan.rules.rule import Rule
    from jobs.work.work import Entry


class Engine(ABC):
    """An engine."""

    package: str
    """The package that it imports besides torch."""
    extra: str
    """The extra of pyproject.toml that brings it."""
    least_torch: tuple[int, int] | None = None
    """The oldest torch that it runs with."""
    sets_allocator = True
    """True if torch's allocator gets expandable segments; LitGPT's own scripts and servers set nothing."""
    fuses_adapters = False
    """True if q, k and v have one adapter together."""

    def not_read(self) -> Mapping[str, str]:
        """Return keys that it does not read, with the only values that they may have."""
        from jobs.plan.rules.native_only import native_settings

        return native_settings()

    def not_read_because(self, run: Run, key: str, value: str, remedy: str) -> str:
        """Return the refusal of a key that it does not read."""
        only = f"only supported by engine=native, not by engine={run.engine.kind.name}"
        return f"{key}={value} is {only}. Set {remedy}, or engine=native."

    def value_rules(self) -> Iterable[Rule]:
        """Return the rules that need no legal layout."""
        return ()

    @abstractmethod
    def layout_rules(self) -> Iterable[Rule]:
        """Return the rules of a run whose values, layout and batch are legal."""

    @abstractmethod
    def states(self, run: Run) -> States:
        """Return the training states of the rank with the most."""

    def memory_share(self, run: Run) -> float:
        """Return the part of a GPU's memory that a run can use."""
        return 1.0

    def bytes_per_parameter(self, run: Run) -> int:
        """Return the bytes of a checkpoint for each trained parameter; 0 without checkpoints that a run resumes."""
        return 0

    def shardings(self, run: Run) -> list[tuple[tuple[str, Any], ...]]:
        """Return the values of keys that shard states over data-parallel ranks: as they are first, then further ones.

        For runs that do not fit the memory of their GPUs.
        """
        return [()]

    @abstractmethod
    def entry(self, run: Run) -> Entry:
        """Return the training of a rank."""


def engine_of(run: Run) -> Engine:
    """Return the engine of a run."""
    return loaded(run.engine.kind)


@cache
def loaded(kind: EngineKind) -> Engine:
    """Return the object of an engine."""
    engine: Any = import_module(f"jobs.engines.{kind.name}.engine")
    found: Engine = engine.ENGINE
    return found
