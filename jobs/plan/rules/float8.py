"""Rules of float8 that engines share: they require a model and a GPU that have it."""

from __future__ import annotations

from jobs.layout import has_gpus
from jobs.schema import Precision, Run

# Ada and Hopper are the first NVIDIA GPUs with float8 matrix units:
# https://docs.nvidia.com/cuda/cublas (8-bit floating point data types: "compute capability 8.9, 9.0 and above").
FLOAT8_CAPABILITY = (8, 9)
GPU_OF_THIS_MACHINE = "if this machine has one, set its type (gpu=h100_sxm or another)"
OFF = "Set engine.float8=false"
SIDES = 16
"""Sides of a matrix on a rank are multiples of it (torch._scaled_mm; Transformer Engine's linear layers)."""


def model_is_suitable(run: Run) -> str | None:
    """Require bfloat16, and matrices whose sides are multiples of 16 on every rank of TP."""
    model, tensor = run.model, run.parallelism.tensor
    if run.job.precision is not Precision.bfloat16:
        return (
            f"engine.float8=true replaces bfloat16 matrix products, and job.precision={run.job.precision.name}. "
            f"{OFF}, or job.precision=bfloat16."
        )
    sizes = {
        "hidden_size": (model.hidden_size, 1),
        model.inner_size_key: (model.inner_size, tensor),
        "heads x head_size": (model.heads * model.head_size, tensor),
        "(heads + 2 x kv_heads) x head_size": ((model.heads + 2 * model.kv_heads) * model.head_size, tensor),
    }
    for key, (size, divided) in sizes.items():
        if size % (SIDES * divided):
            parts = f" of each of {divided} ranks of TP" if divided > 1 else ""
            return (
                f"engine.float8=true requires matrices whose sides{parts} are multiples of {SIDES}, but model "
                f"{key}={size} ({model.name}) is not. {OFF}."
            )
    return None


def all_weights_train(run: Run) -> str | None:
    """Refuse frozen weights."""
    if run.job.trains_all_weights:
        return None
    return f"engine.float8=true does not run with frozen weights (job={run.job.name}). {OFF}, or job=finetune_full."


def gpu_is_suitable(run: Run) -> str | None:
    """Require NVIDIA GPUs with float8 units."""
    gpu, least = run.gpu, float(".".join(map(str, FLOAT8_CAPABILITY)))
    if not has_gpus(run):
        return f"engine.float8=true needs GPUs, and cluster={run.cluster.name} has none. {OFF}; {GPU_OF_THIS_MACHINE}."
    if gpu.device_name is not None and (gpu.compute_capability or 0.0) < least:
        return (
            f"engine.float8=true needs an NVIDIA GPU of compute capability {least} or more, which {gpu.name} is not. "
            f"{OFF}."
        )
    return None
