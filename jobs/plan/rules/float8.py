"""Rules of products in few bits that engines share: they require a model and a GPU that have them.

`engine.float8_recipe` chooses the scales, and with nvfp4 the numbers too: Transformer Engine has both as one setting.
"""

from __future__ import annotations

from typing import NamedTuple

from jobs.engines.engine import engine_of, loaded
from jobs.layout import has_gpus
from jobs.schema import EngineKind, Float8Recipe, Precision, Run

GPU_OF_THIS_MACHINE = "if this machine has one, set its type (gpu=h100_sxm or another)"


class Needs(NamedTuple):
    """Requirements of a recipe."""

    least: tuple[int, int]
    """Compute capability of the first GPUs that have it."""
    below: tuple[int, int] | None = None
    """Compute capability of the first later ones that have it no longer."""
    sides: int = 16
    """Sides of a matrix on a rank are multiples of it."""
    rows: int = 8
    """So are tokens of a rank, whose products Transformer Engine refuses else."""


# Ada and Hopper are the first NVIDIA GPUs with float8 matrix units:
# https://docs.nvidia.com/cuda/cublas (8-bit floating point data types: "compute capability 8.9, 9.0 and above").
# Others: the checks of NVIDIA/TransformerEngine, transformer_engine/pytorch/quantization.py. From 12.0 on it excludes
# MXFP8, and its tests skip NVFP4, whose Hadamard transform fails there. Sides: 16 bytes in a row (torch._scaled_mm,
# cuBLAS), which are 32 numbers of 4 bits, and whole blocks of 32 for MXFP8.
ADA, HOPPER, BLACKWELL, CONSUMER_BLACKWELL = (8, 9), (9, 0), (10, 0), (12, 0)
NEEDS = {
    Float8Recipe.tensorwise: Needs(ADA),
    Float8Recipe.rowwise: Needs(ADA),
    Float8Recipe.delayed: Needs(ADA),
    Float8Recipe.blockwise: Needs(HOPPER),
    Float8Recipe.mxfp8: Needs(BLACKWELL, below=CONSUMER_BLACKWELL, sides=32, rows=32),
    Float8Recipe.nvfp4: Needs(BLACKWELL, below=CONSUMER_BLACKWELL, sides=32, rows=32),
}


def needs_of(run: Run) -> Needs:
    """Return the requirements of a run in few bits."""
    recipe = engine_of(run).float8_recipe(run)
    assert recipe is not None
    return NEEDS[recipe]


def asked(run: Run) -> str:
    """Return the setting that asks for products in few bits, as it was typed."""
    recipe = run.engine.float8_recipe
    return "engine.float8=true" if recipe is None else f"engine.float8_recipe={recipe.name}"


def off(run: Run) -> str:
    """Return the settings of products in bfloat16."""
    return f"{'' if run.engine.float8_recipe is None else 'engine.float8_recipe=null '}engine.float8=false"


def recipe_is_the_engines(run: Run) -> str | None:
    """Refuse a recipe without products that it is for, and one that the engine does not have."""
    recipe, engine = run.engine.float8_recipe, engine_of(run)
    if recipe is None:
        return None
    if not run.engine.float8:
        return (
            f"engine.float8_recipe={recipe.name} has no effect without engine.float8=true. Set engine.float8=true, or "
            "engine.float8_recipe=null."
        )
    if recipe in engine.float8_recipes:
        return None
    names = [each.name for each in engine.float8_recipes]
    others = [f"engine={each.name}" for each in EngineKind if recipe in loaded(each).float8_recipes]
    return (
        f"engine.float8_recipe={recipe.name} is not among those of engine={run.engine.kind.name} "
        f"({engine.float8_package}: {', '.join(names)}). Set engine.float8_recipe=null or one of these, or "
        f"{' or '.join(others)}."
    )


def model_is_suitable(run: Run) -> str | None:
    """Require bfloat16, and matrices whose sides are whole units of the recipe on every rank of TP."""
    model, tensor, unit = run.model, run.parallelism.tensor, needs_of(run).sides
    if run.job.precision is not Precision.bfloat16:
        return (
            f"{asked(run)} replaces bfloat16 matrix products, and job.precision={run.job.precision.name}. "
            f"Set {off(run)}, or job.precision=bfloat16."
        )
    sizes = {
        "hidden_size": (model.hidden_size, 1),
        model.inner_size_key: (model.inner_size, tensor),
        "heads x head_size": (model.heads * model.head_size, tensor),
        "(heads + 2 x kv_heads) x head_size": ((model.heads + 2 * model.kv_heads) * model.head_size, tensor),
    }
    for key, (size, divided) in sizes.items():
        if size % (unit * divided):
            parts = f" of each of {divided} ranks of TP" if divided > 1 else ""
            return (
                f"{asked(run)} requires matrices whose sides{parts} are multiples of {unit}, but model "
                f"{key}={size} ({model.name}) is not. Set {off(run)}."
            )
    return None


def all_weights_train(run: Run) -> str | None:
    """Refuse frozen weights."""
    if run.job.trains_all_weights:
        return None
    return f"{asked(run)} does not run with frozen weights (job={run.job.name}). Set {off(run)}, or job=finetune_full."


def gpu_is_suitable(run: Run) -> str | None:
    """Require NVIDIA GPUs with the recipe's matrix units."""
    gpu = run.gpu
    if not has_gpus(run):
        none = f"{asked(run)} needs GPUs, and cluster={run.cluster.name} has none."
        return f"{none} Set {off(run)}; {GPU_OF_THIS_MACHINE}."
    found = capability(gpu.compute_capability)
    if gpu.device_name is None or has_units(needs_of(run), found):
        return None
    others = [each for each in engine_of(run).float8_recipes if has_units(NEEDS[each], found)]
    other = f"engine.float8_recipe={others[0].name}, or " if others else ""
    return f"{asked(run)} needs {described(needs_of(run))}, which {gpu.name} is not. Set {other}{off(run)}."


def capability(number: float | None) -> tuple[int, int]:
    """Return a compute capability in whole numbers; 0, 0 for GPUs of other vendors."""
    major, _, minor = str(number or 0.0).partition(".")
    return int(major), int(minor)


def has_units(needs: Needs, found: tuple[int, int]) -> bool:
    """Return True if a GPU of this compute capability has the recipe's matrix units."""
    return needs.least <= found and (needs.below is None or found < needs.below)


def described(needs: Needs) -> str:
    """Return the GPUs that a recipe needs."""
    least, *below = (".".join(map(str, each)) for each in (needs.least, needs.below) if each)
    limit = f" or more and below {below[0]}" if below else " or more"
    return f"an NVIDIA GPU of compute capability {least}{limit}"
