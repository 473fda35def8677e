"""The rule of engines without the native engine's own settings. Checked at composition, so without torch."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields
from enum import Enum
from typing import Any

from jobs.schema import Engine, Run

OF_EVERY_ENGINE = {"kind", "activation_checkpointing", "compile", "distributed_optimizer", "parameters",
                   "hang_timeout_s", "cpu_threads_per_rank", "deepspeed", "profile", "server"}  # fmt: skip
"""Fields of `engine` that other engines support or have rules for; all others belong to the native engine."""
NATIVE = {
    "engine": [field.name for field in fields(Engine) if field.name not in OF_EVERY_ENGINE],
    "job": ["batching", "bucket_batches", "weight_decay_on"],
    "parallelism": ["prefetch", "bucket_mb"],
}
"""Fields that only the native engine supports, by group."""


def choices_are_native(run: Run) -> str | None:
    """Refuse settings of the native engine; new fields of `engine` are refused without being listed here."""
    for group, names in NATIVE.items():
        part = getattr(run, group)
        defaults = {field.name: default_of(field) for field in fields(part)}
        for name in names:
            chosen = getattr(part, name)
            if chosen != defaults[name]:
                return (
                    f"{group}.{name}={typed(chosen)} is only supported by engine=native, not by engine="
                    f"{run.engine.kind.name}. Set {group}.{name}={typed(defaults[name])}, or engine=native."
                )
    return None


def prompts_are_native(run: Run) -> str | None:
    """Refuse virtual tokens."""
    if run.job.prompt_tuning is None:
        return None
    return (
        f"job.prompt_tuning trains virtual tokens, which engine={run.engine.kind.name} cannot. Set engine=native, or "
        "job=finetune_full."
    )


def quantized_bases_are_native(run: Run) -> str | None:
    """Refuse frozen weights in 4 bits."""
    if not run.job.quantizes_base:
        return None
    return (
        f"job.lora.quantize_base=nf4 is only supported by engine=native, not by engine="
        f"{run.engine.kind.name}. Set job.lora.quantize_base=null, or engine=native."
    )


def default_of(field: Field[Any]) -> Any:
    """Return the default of a field; MISSING without one."""
    return field.default if field.default_factory is MISSING else field.default_factory()


def typed(value: object) -> str:
    """Return a value in the syntax of overrides."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list):
        return f"[{','.join(map(typed, value))}]"
    return value.name if isinstance(value, Enum) else str(value)
