"""Ranges of numbers, written next to the types of the schema: `steps: Count | None`.

One rule checks them all (jobs.plan.rules.values), and `slurmscale explain KEY` prints them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from types import NoneType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

MOST_NODES, MOST_COUNT = 1_000_000, 10**12


@dataclass(frozen=True)
class Range:
    """The numbers that a key takes."""

    least: float = 0
    most: float = math.inf
    above: bool = False
    """True if the value must be above `least`."""
    usual: float | None = None
    """A value to propose."""
    optional: bool = False
    """True if the key may be null."""

    def has(self, value: float) -> bool:
        """Return True for a finite number in the range."""
        return math.isfinite(value) and self.least <= value <= self.most and not (self.above and value == self.least)

    @property
    def is_bounded(self) -> bool:
        """True if its upper end means more than that a number is absurd."""
        return self.most not in {MOST_NODES, MOST_COUNT, math.inf}

    @property
    def is_count(self) -> bool:
        """True if other rules divide by the number or count up to it."""
        return self.most in {MOST_NODES, MOST_COUNT}

    @property
    def in_words(self) -> str:
        """The range as text: `1 or more`, `above 0`, `0 to 1000`."""
        if self.is_bounded:
            least, most = number(self.least), number(self.most)
            return f"above {least} and at most {most}" if self.above else f"{least} to {most}"
        return f"above {number(self.least)}" if self.above else f"{number(self.least)} or more"

    def refusal(self, key: str, value: float) -> str:
        """Return the refusal of a value that is outside."""
        given = f"{key}={number(value)}"
        if not self.is_bounded and value > self.most:
            what = "more than any machine has" if self.most == MOST_NODES else "too large a number"
            return f"{given} is {what}. Set {key}=NUMBER, {number(self.most)} at most."
        if self.is_bounded:
            near = self.least if value < self.least else self.most
            proposed = number(near if self.usual is None else self.usual)
            if self.above:
                return f"{given} must be {self.in_words}. Set {key}={proposed}, or another such number."
            return f"{given} is outside {self.in_words}. Set {key}={proposed}, or another in that range."
        if self.above:
            others = "another above 0, or null" if self.optional else "or another above 0"
            return f"{given} is not a positive number. Set {key}={number(self.usual or 1)}, {others}."
        ones = "is not a positive number" if self.is_count else "is below 1"
        what = ones if self.least == 1 else "is negative" if self.least == 0 else "is too small"
        return f"{given} {what}. Set {key}={number(self.least)} or more."


def number(value: float) -> str:
    """Return a number as a user types it."""
    return str(value) if isinstance(value, int) else f"{value:g}"


Count = Annotated[int, Range(1, MOST_COUNT)]
Nodes = Annotated[int, Range(1, MOST_NODES)]
NoneOrMore = Annotated[int, Range(0, MOST_COUNT)]
Positive = Annotated[float, Range(0, above=True)]
NotNegative = Annotated[float, Range(0)]
AtLeast1 = Annotated[float, Range(1)]
Below1 = Annotated[float, Range(0, 0.99999, usual=0)]
Share = Annotated[float, Range(0, 1, above=True, usual=1)]


def range_in(hint: Any) -> Range | None:
    """Return the range of a type, also of one that may be None."""
    for each in (hint, *get_args(hint)):
        if get_origin(each) is Annotated:
            found = next((found for found in get_args(each)[1:] if isinstance(found, Range)), None)
            return found and replace(found, optional=NoneType in get_args(hint))
    return None


@cache
def ranges_of(section: Any) -> dict[str, Range]:
    """Return the ranges of the keys of a section of the schema."""
    hints = get_type_hints(section, include_extras=True)
    found = {field.name: range_in(hints[field.name]) for field in fields(section)}
    return {name: each for name, each in found.items() if each is not None}


def out_of_range(section: Any, prefix: str = "", *, counts: bool) -> Iterator[str]:
    """Yield the refusal of each count of a configuration that is outside its range and of nan and inf, or of others."""
    kind: Any = type(section)
    ranges = ranges_of(kind)
    for name, value in vars(section).items():
        key = f"{prefix}{name}"
        if is_dataclass(value):
            yield from out_of_range(value, f"{key}.", counts=counts)
        elif isinstance(value, dict):
            for entry, each in value.items():
                if is_dataclass(each):
                    yield from out_of_range(each, f"{key}.{entry}.", counts=counts)
        elif isinstance(value, float) and not math.isfinite(value) and (name not in ranges or not ranges[name].usual):
            # It compares with every limit as if it were in range.
            if counts:
                yield f"{key}={value:g} is not a number to calculate with. Set {key}=NUMBER, which is finite."
        elif name in ranges and ranges[name].is_count is counts and value is not None and not ranges[name].has(value):
            yield ranges[name].refusal(key, value)
