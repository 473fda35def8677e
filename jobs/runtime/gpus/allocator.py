"""The allocator of GPU memory, whose settings torch reads from the environment when it is imported."""

from __future__ import annotations

from collections.abc import MutableMapping

from jobs.versions import major_minor

SETTINGS = "PYTORCH_ALLOC_CONF"
# Its name before torch 2.9, which later versions still accept.
OLD_SETTINGS = "PYTORCH_CUDA_ALLOC_CONF"
RENAMED_IN = (2, 9)
# Rows of many lengths leave gaps between segments of fixed size, which memory runs out of long before it is full.
EXPANDABLE = "expandable_segments:True"


def use_expandable_segments(environment: MutableMapping[str, str], torch_version: str) -> None:
    """Let segments of GPU memory grow, unless the user has set the allocator."""
    if not {SETTINGS, OLD_SETTINGS} & environment.keys():
        environment[SETTINGS if major_minor(torch_version) >= RENAMED_IN else OLD_SETTINGS] = EXPANDABLE
