"""What rules are, and how they name what is allowed."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from jobs.schema import Run

Rule = Callable[[Run], str | None]
"""From a Run to a sentence (what, where, what is allowed, what to type), or None when there is nothing to say."""


def divisors(number: int) -> str:
    """All divisors, for a person to choose from."""
    return either(n for n in range(1, number + 1) if number % n == 0)


def either(choices: Iterable[object]) -> str:
    """Choices as a sentence lists them: 1, 2 or 4."""
    *first, last = map(str, choices)
    return f"{', '.join(first)} or {last}" if first else last
