"""What an engine that has none of the native engine's own choices refuses; asked at composition, so no torch here."""

from __future__ import annotations

from dataclasses import fields
from enum import Enum

from jobs.schema import Engine, Run

OF_EVERY_ENGINE = {"kind", "activation_checkpointing", "compile", "distributed_optimizer", "parameters",
                   "hang_timeout_s", "cpu_threads_per_rank"}  # fmt: skip
"""Fields of `engine` that others have too, or have rules of their own for; every other one is the native engine's."""
NATIVE = {
    "engine": [field.name for field in fields(Engine) if field.name not in OF_EVERY_ENGINE],
    "job": ["batching", "bucket_batches"],
    "parallelism": ["prefetch"],
}
"""Fields that only the native engine heeds, by their group."""


def choices_are_native(run: Run) -> str | None:
    """No choice of the native engine's is made; a field of `engine` that comes later is refused without being named."""
    for group, names in NATIVE.items():
        part = getattr(run, group)
        defaults = {field.name: field.default for field in fields(part)}
        for name in names:
            chosen = getattr(part, name)
            if chosen != defaults[name]:
                return (
                    f"{group}.{name}={typed(chosen)} is a choice of engine=native, and engine={run.engine.kind.name} "
                    f"has none. Type {group}.{name}={typed(defaults[name])}, or engine=native."
                )
    return None


def typed(value: object) -> str:
    """A value as it is typed."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return value.name if isinstance(value, Enum) else str(value)
