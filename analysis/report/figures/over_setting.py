"""Lines over a numeric setting in place of ranks: a sweep over batch sizes on one number of ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from analysis.compare.campaign import part_of
from analysis.identity import compared, place
from analysis.scaling.groups import BATCHES, MICRO_BATCH, Group, distinct_labels
from analysis.untrusted import canonical

SEQUENCE_LENGTH = "job.sequence_length"


@dataclass(frozen=True)
class Axis:
    """A setting that may change along a line."""

    title: str
    keys: frozenset[str]
    """Settings that change with it."""
    value: Callable[[Group], Any]
    """Its value at a group of one point."""


AXES = (
    Axis(
        "Global batch (sequences)",
        frozenset({*BATCHES, MICRO_BATCH}),
        lambda group: group.points[0].global_batch_size,
    ),
    Axis(
        "Micro-batch (sequences)",
        frozenset({MICRO_BATCH}),
        lambda group: group.runs[0].setting(MICRO_BATCH),
    ),
    Axis(
        "Sequence length (tokens)",
        frozenset({SEQUENCE_LENGTH}),
        lambda group: group.runs[0].setting(SEQUENCE_LENGTH),
    ),
)


def over_setting(groups: Sequence[Group]) -> tuple[Axis, list[Group]] | None:
    """Return the first axis along which groups of one point form lines, and these lines, with one point per value.

    None if no two groups differ in such a setting alone, or two points of a line would have one place, and in a
    campaign, whose lines have the names of its attempts.
    """
    if any(len(group.points) > 1 or part_of(group.runs[0]) for group in groups):
        return None
    for axis in AXES:
        families: dict[bytes, list[Group]] = defaultdict(list)
        for group in groups:
            families[canonical([rest(axis, group), place(group.runs[0])])].append(group)
        values = [[axis.value(group) for group in members] for members in families.values()]
        if len(families) < len(groups) and all(
            len(set(own)) == len(own) and all(type(value) is int and value > 0 for value in own) for own in values
        ):
            return axis, lines(axis, list(families.values()))
    return None


def lines(axis: Axis, families: Sequence[Sequence[Group]]) -> list[Group]:
    """Return a group for each family, with its points in order of their values."""
    labels = distinct_labels([rest(axis, members[0]) for members in families])
    ordered = [sorted(members, key=axis.value) for members in families]
    return [
        replace(members[0], label=label, points=tuple(group.points[0] for group in members))
        for label, members in zip(labels, ordered, strict=True)
    ]


def rest(axis: Axis, group: Group) -> dict[str, Any]:
    """Return the settings of a group without those that change along an axis."""
    return {key: value for key, value in compared(group.runs[0]).items() if key not in axis.keys}
