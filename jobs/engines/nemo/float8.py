"""Products in few bits, by Transformer Engine: the keywords of Megatron's precision. Without torch and NeMo.

NeMo's own recipes (nemo/collections/llm/recipes/precision), but with all layers in few bits, also the first and the
last: E4M3 forward, and E5M2 for gradients ("hybrid") where one scale is for a whole tensor.
"""

from __future__ import annotations

from jobs.engines.nemo.engine import ENGINE
from jobs.errors import ConfigError
from jobs.plan.rules.float8 import asked, off
from jobs.schema import Float8Recipe, Run

Keywords = dict[str, str | int | bool]
FLOAT8: dict[Float8Recipe, Keywords] = {
    # Scales by the largest of the last 1,024 maxima. Weights are gathered and kept in float8.
    Float8Recipe.delayed: {
        "fp8": "hybrid",
        "fp8_recipe": "delayed",
        "fp8_amax_history_len": 1024,
        "fp8_amax_compute_algo": "max",
        "fp8_param_gather": True,
    },
    Float8Recipe.tensorwise: {"fp8": "hybrid", "fp8_recipe": "tensorwise", "fp8_param_gather": True},
    Float8Recipe.blockwise: {"fp8": "e4m3", "fp8_recipe": "blockwise", "fp8_param_gather": True},
    Float8Recipe.mxfp8: {"fp8": "e4m3", "fp8_recipe": "mxfp8"},
    # Weights stay in bfloat16, with copies in 4 bits: NeMo has no setting that keeps these alone.
    Float8Recipe.nvfp4: {"fp4": "e2m1", "fp4_recipe": "nvfp4"},
}
MXFP8_WEIGHTS: Keywords = {"fp8_param_gather": True, "reuse_grad_buf_for_mxfp8_param_ag": True}
"""Keep weights in MXFP8 alone: Megatron gathers them in bfloat16, in the memory of gradients, if the distributed
optimizer owns them (megatron/core/distributed/param_and_grad_buffer.py at 0.15.3)."""
OLDEST = {
    Float8Recipe.tensorwise: (2, 2),
    Float8Recipe.blockwise: (2, 3),
    Float8Recipe.mxfp8: (2, 1),
    Float8Recipe.nvfp4: (2, 7),
}
"""Oldest Transformer Engine of each recipe (megatron/core/fp8_utils.py and fp4_utils.py at 0.15.3)."""


def float8(run: Run, version: str | None) -> Keywords:
    """Return the keywords of products in few bits, none for a run without.

    `version` is Transformer Engine's; None if it is not installed. Raise ConfigError if it has not the run's recipe:
    Megatron's own layers would multiply in bfloat16 without a word.
    """
    recipe = ENGINE.float8_recipe(run)
    if recipe is None:
        return {}
    least = OLDEST.get(recipe, (0, 0))
    if version is None or tuple(map(int, version.split(".")[:2])) < least:
        wanted = f" {least[0]}.{least[1]} or later" if any(least) else ""
        found = "" if version is None else f", and these have {version}"
        raise ConfigError(
            f"{asked(run)} needs Transformer Engine{wanted} on the nodes{found}. Use NVIDIA's NeMo container "
            f"(cluster.container), or set {off(run)}."
        )
    owned = recipe is Float8Recipe.mxfp8 and run.engine.distributed_optimizer
    return FLOAT8[recipe] | (MXFP8_WEIGHTS if owned else {})
