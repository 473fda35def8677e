"""Settings of the native engine and of Megatron, and refusals of other engines; at composition, so without torch."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields
from enum import Enum
from functools import cache
from typing import Any

from jobs.parallelism import NATIVE_ONLY, Parallelism
from jobs.schema import Engine, Job, Run

NEMO_ONLY = {
    "engine.distributed_optimizer": "false",
    "engine.expert_dispatcher": "all_to_all",
}
"""Keys that only engine=nemo reads, with the only values that they may have elsewhere."""
NATIVE_AND_NEMO = "native and nemo"
OF_SEVERAL = {
    "engine.float8": NATIVE_AND_NEMO,
    "engine.float8_recipe": NATIVE_AND_NEMO,
    "engine.gradients": NATIVE_AND_NEMO,
    "engine.overlap_communication": NATIVE_AND_NEMO,
    "job.expert_balance_loss": NATIVE_AND_NEMO,
    "job.loss_band.reference": "native, nemo and deepspeed",
    "parallelism.expert": NATIVE_AND_NEMO,
}
"""Keys that several engines read and others do not, with these engines."""
OF_EVERY_ENGINE = {"kind", "activation_checkpointing", "compile", "parameters",
                   "tf32", "hang_timeout_s", "startup_limit_s", "cpu_threads_per_rank", "deepspeed", "profile",
                   "server", *(key.removeprefix("engine.") for key in NEMO_ONLY)}  # fmt: skip
"""Fields of `engine` that other engines support or have rules for; all others belong to the native engine."""


@cache
def native_settings() -> dict[str, str]:
    """Return the keys that only the native engine reads, with their defaults; new fields of `engine` are among them."""
    own = {
        "engine": [field for field in fields(Engine) if field.name not in OF_EVERY_ENGINE],
        "job": [field for field in fields(Job) if field.metadata == NATIVE_ONLY],
        "parallelism": [field for field in fields(Parallelism) if field.metadata == NATIVE_ONLY],
    }
    return {f"{group}.{field.name}": typed(default_of(field)) for group, keys in own.items() for field in keys}


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
