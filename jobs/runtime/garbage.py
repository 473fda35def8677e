"""Python's garbage collection: between steps, since inside one it would stop a rank for which all others wait."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


@contextmanager
def uncollected_imports() -> Iterator[None]:
    """Switch automatic collection off: modules live to the end, and to search them takes a seventh of their import."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def collected_between(steps: Iterable[int]) -> Iterator[int]:
    """Yield the steps with automatic collection off, and collect after each of them.

    What exists at the start and after the first two steps, such as the model, the optimizer's state and modules that
    kernels import on first use, is not searched again: a collection takes milliseconds, where all of torch takes 0.1 s.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        for done, step in enumerate(steps, start=1):
            yield step
            gc.collect()
            if done <= 2:
                gc.freeze()
    finally:
        gc.enable()
        gc.unfreeze()
