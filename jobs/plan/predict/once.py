"""Predict once for each run."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from jobs.schema import Run

P = ParamSpec("P")
Predicted = TypeVar("Predicted")


def once_per_run(function: Callable[Concatenate[Run, P], Predicted]) -> Callable[Concatenate[Run, P], Predicted]:
    """Keep the results of a function as long as their run exists.

    A Run is read-only, and rules, warnings and tables ask for its predictions in turn.
    """
    kept: dict[tuple[object, ...], Predicted] = {}

    @functools.wraps(function)
    def keeping(run: Run, /, *args: P.args, **options: P.kwargs) -> Predicted:
        # By identity: a Run has no hash.
        key = (id(run), *args, *options.items())
        if key not in kept:
            kept[key] = function(run, *args, **options)
            weakref.finalize(run, kept.pop, key)
        return kept[key]

    return keeping
