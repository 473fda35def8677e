"""Python's garbage collection between steps: inside one it would stop a rank for which all others wait."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator


def collected_between(steps: Iterable[int]) -> Iterator[int]:
    """Yield the steps with automatic collection off, and collect after each of them.

    What exists now, such as the model and the modules of torch, is not searched again: a collection takes milliseconds.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        for step in steps:
            yield step
            gc.collect()
    finally:
        gc.enable()
        gc.unfreeze()
