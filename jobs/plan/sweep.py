"""The axes of a sweep: the values of each override of the command line, and of the sweep that an experiment declares.

A point of a sweep is named after its values, so no two overrides of a sweep set the same key.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, get_origin

from hydra import compose as hydra_compose
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from jobs.errors import ConfigError
from jobs.files import flat
from jobs.plan.keys import GROUPS, is_text, keys
from jobs.plan.overrides import for_hydra, is_plain_value, parse, refuse_received
from jobs.plan.refusals import refuse_key_or_choice, typed

# Ten times what a Slurm array holds by default.
MOST_POINTS = 10_000


@dataclass(frozen=True)
class Axis:
    """An override and its values."""

    override: Override
    values: list[Override]
    """One override for each value."""
    is_swept: bool
    """True if points differ in it."""

    @cached_property
    def places(self) -> frozenset[str]:
        """Return the keys that it sets; of a mapping each key in it."""
        key = self.override.key_or_group
        return frozenset(itertools.chain.from_iterable(flat({key: each.value()}) for each in self.values))

    def sets_as(self, other: Axis) -> bool:
        """Return whether another axis sets a key that this one sets too; a chosen file may have any key in it."""
        # job={steps: 10} sets job.steps, so keys below a place count; job=pretrain is a file, whose keys later
        # overrides may change.
        inner = () if self.override.key_or_group in GROUPS else (f"{place}." for place in self.places)
        return bool(self.places & other.places) or any(place.startswith(tuple(inner)) for place in other.places)


def axis_of(override: Override) -> Axis:
    """Return an override with its values."""
    values = alternatives(override)
    return Axis(override, values, is_swept=len(values) > 1)


def read_axes(overrides: list[str], *, multirun: bool, received: bool = False) -> list[list[Axis]]:
    """Return the axes of each product of a sweep; its points are those of all products.

    There is one product, but for several experiments, which may each declare a sweep with multirun. Raises ConfigError
    for values without a meaning, for two axes of one key, for more points than a sweep may have, and for received
    overrides that are more than values of keys.
    """
    given = parse(overrides)
    for override in given if received else ():
        refuse_received(override)
    swept = [override for override in given if override.is_sweep_override()]
    if swept and not multirun:
        raise ConfigError(several_values(swept[0]))
    axes = list(map(axis_of, given))
    for override in itertools.chain.from_iterable(axis.values for axis in axes):
        refuse_key_or_choice(override)
    refuse_same_key(axes)
    products = list(with_declared(axes)) if multirun else [axes]
    count = sum(math.prod(len(axis.values) for axis in each) for each in products)
    if count > MOST_POINTS:
        raise ConfigError(f"The sweep has {count:,} points; the limit is {MOST_POINTS:,}. Give fewer values.")
    return products


def with_declared(axes: list[Axis]) -> Iterator[list[Axis]]:
    """Yield the axes of each product: with one experiment at a time, and with what it declares and nobody has set."""
    several = [axis for axis in axes if axis.override.key_or_group == "experiment" and axis.is_swept]
    known = {axis.override.key_or_group for axis in axes}
    for choices in itertools.product(*(axis.values for axis in several)):
        fixed = {id(axis): replace(axis, values=[choice]) for axis, choice in zip(several, choices, strict=True)}
        product = [fixed.get(id(axis), axis) for axis in axes]
        files = [axis.values[0] for axis in product if len(axis.values) == 1 and not is_plain_value(axis.values[0])]
        config = hydra_compose("config", overrides=list(map(for_hydra, files)), return_hydra_config=True)
        params = config.hydra.sweeper.get("params") or {}
        declared = parse(f"{key}={value}" for key, value in params.items() if key not in known)
        product = [*map(axis_of, declared), *product]
        refuse_same_key(product)
        yield product


def alternatives(override: Override) -> list[Override]:
    """Return the override itself, or one override for each value of a sweep; raises ConfigError if it has none."""
    if not override.is_sweep_override():
        return [override]
    key = override.get_key_element()
    try:
        # range(1,1000000000) would fill the memory before anybody could refuse it.
        values = list(itertools.islice(override.sweep_string_iterator(), MOST_POINTS + 1))
    except (HydraException, ValueError) as error:
        if override.is_interval_sweep():
            raise ConfigError(
                f"{typed(override)}: a sweep has listed values, and an interval has none. {sweep_to_set(key)} To find "
                "the best of some values, run slurmscale tune with a list."
            ) from None
        raise ConfigError(f"{typed(override)}: {error}. {sweep_to_set(key)}") from None
    if not values:
        raise ConfigError(f"{typed(override)}: the sweep is empty. {sweep_to_set(key)}")
    if len(values) > MOST_POINTS:
        raise ConfigError(f"{typed(override)}: a sweep has at most {MOST_POINTS:,} points. {sweep_to_set(key)}")
    found = parse(f"{key}={value}" for value in values)
    refuse_equal_values(override, found)
    return found


# --- refusals --------------------------------------------------------------------------------------------------


def refuse_same_key(axes: Sequence[Axis]) -> None:
    """Raise ConfigError for two axes that set one key if one of them is swept: runs would have false names."""
    for axis, other in itertools.combinations(axes, 2):
        if (axis.is_swept or other.is_swept) and (axis.sets_as(other) or other.sets_as(axis)):
            raise ConfigError(
                f"{typed(axis.override)} and {typed(other.override)} set the same key. In a sweep a key is given once, "
                "or runs would be named after values that they do not have: leave one of the two out."
            )


def refuse_equal_values(override: Override, values: Sequence[Override]) -> None:
    """Raise ConfigError for a sweep with one value twice, such as 1e-3,0.001: its points would be the same run."""
    counts = Counter(as_compared(each.value()) for each in values)
    first = next((each for each in values if counts[as_compared(each.value())] > 1), None)
    if first is not None:
        raise ConfigError(
            f"{typed(override)}: {first.get_value_element_as_str()} is given more than once, as equal values. Give "
            "each value once; for repeats of a run add repeat=1,2,3."
        )


def as_compared(value: Any) -> str:
    """Return a text that is equal for equal values: 1e-3 and 0.001, but not 1 and true."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return repr(float(value) if is_number else value)


def several_values(override: Override) -> str:
    """Return the refusal of several values without -m."""
    key, value = override.key_or_group, override.get_value_string()
    remedy = ""
    if key in keys() and get_origin(keys()[key].kind) is list:
        remedy = f", or set '{key}=[{value}]' for a list"
    elif is_text(key):
        remedy = f", or set \"{key}='{value}'\" for one value with a comma"
    return (
        f"{typed(override)}: several values, but this is a single run. Add -m to plan or submit for one run of each "
        f"value{remedy}."
    )


def sweep_to_set(key: str) -> str:
    """Return a sentence on how a key gets several values."""
    return f"Set {key}=A,B,C, or {key}=range(1,5) for 1 to 4."
