"""Predict once for each run, and count once for each model."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from jobs.schema import Model, Run

Subject = TypeVar("Subject", Run, Model)
P = ParamSpec("P")
Result = TypeVar("Result")


def once(function: Callable[Concatenate[Subject, P], Result]) -> Callable[Concatenate[Subject, P], Result]:
    """Keep the results of a function as long as the run or model exists that is its first argument.

    Both are read-only: rules, warnings and tables ask for a run's predictions in turn, and the layouts of a search have
    one model.
    """
    kept: dict[tuple[object, ...], Result] = {}

    @functools.wraps(function)
    def keeping(subject: Subject, /, *args: P.args, **options: P.kwargs) -> Result:
        # By identity: neither has a hash.
        key = (id(subject), *args, *options.items())
        if key in kept:
            return kept[key]
        result = function(subject, *args, **options)
        # Kept by itself, a subject would never cease to exist.
        if result is not subject:
            kept[key] = result
            weakref.finalize(subject, kept.pop, key)
        return result

    return keeping
