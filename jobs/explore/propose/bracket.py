"""The largest value that passes a test: doubling until one fails, then bisection. Ranks of a server use it, too."""

from __future__ import annotations


def next_value(passes: int, fails: int | None, first: int, *, most: int | None = None, within: float = 0) -> int | None:
    """Return the value to try next; None once the largest that passes is known.

    `passes` is the largest value that passed, 0 if none did; `fails` is the smallest that failed, None if none did, and
    a value that fails is larger than all that pass. The search begins with `first`, goes no higher than `most`, and
    ends where both differ by 1, or by `within` of the lower one.
    """
    if fails is not None:
        return (passes + fails) // 2 if fails - passes > max(1, within * passes) else None
    if passes == most:
        return None
    following = 2 * passes or first
    return following if most is None else min(following, most)
