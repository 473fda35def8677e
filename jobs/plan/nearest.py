"""The legal runs nearest to an illegal one, as overrides to paste.

Search three spaces, each only when the one before holds nothing legal: the degrees of parallelism on the given ranks;
other counts of nodes and ranks; another global batch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from enum import Enum
from operator import attrgetter
from typing import Any

from jobs.layout import degree_of
from jobs.parallelism import DP_REPLICATE, DP_SHARD, MODEL_AXES, PP, SET_AXES, SHARD_PARTS, Axis
from jobs.plan.rules.rule import divisors
from jobs.schema import Run, ScalingMode

DEGREES = tuple(axis.key for axis in MODEL_AXES)
SET_DEGREES = tuple(axis.key for axis in SET_AXES)
DATA = (DP_SHARD.key, DP_REPLICATE.key)
SIZES = ("nodes", "ranks_per_node")
GLOBAL_BATCH, RANK_BATCH = "scaling.global_batch_size", "scaling.sequences_per_rank"
# In the order that is printed, and that decides between equally near choices.
KEYS = (*SET_DEGREES, *DATA, *SIZES, GLOBAL_BATCH, RANK_BATCH)
# Counts this near are tried one by one, those further off only when they divide the count given.
NEARBY = 4
# Unsetting a key counts as much as halving it.
UNSET_DISTANCE = 1.0
# New values by key; a key that is absent stays as it is.
Choice = dict[str, int | None]
Values = tuple[tuple[str, Any], ...]
"""Values by key."""
# The part of a choice that differs from the run, in the order of KEYS.
Change = tuple[tuple[str, int | None], ...]


def nearest_legal(run: Run, legal: Callable[[Run], bool], count: int = 3) -> list[str]:
    """Return at most `count` sets of overrides that each make a run legal, nearest first; an empty list if none does.

    The run's counts must be positive; the run itself does not change. Distance is the sum of |log2(new / old)| over the
    keys that change; equal distances are ordered by the number of keys, values before null, then KEYS and values.
    """
    given = {key: value_of(run, key) for key in KEYS}
    for space in (degrees, sizes, batches):
        changes = {change for choice in space(run) if (change := changed(given, choice))}
        # Sorted before they are judged: a distance is cheap, the rules of legality are not, and `islice` stops at the
        # third.
        nearest = sorted(changes, key=lambda change: distance(given, change))
        found = list(itertools.islice((typed(change) for change in nearest if legal(applied(run, change))), count))
        if found:
            return found
    return []


# --- the spaces ----------------------------------------------------------------------------------------------


def degrees(run: Run) -> Iterator[Choice]:
    """Yield every product of DEGREES that divides the ranks, with every split of the data axes and their parts."""
    keys = data_keys(run)
    for cut, dp in cuts(run.ranks):
        for part in parts(run, dp, [axis for axis in SHARD_PARTS if degree_of(run, axis) > 1]):
            yield from ({**cut, **part, **data} for data in kept_or_unset(run, dp))
            for n in divisors(dp) if keys else ():
                # With one data axis set, the other one follows from dp, so only n is used.
                filled = dict(zip(keys, (n, dp // n), strict=False))
                yield {**cut, **part, **filled}


def sizes(run: Run) -> Iterator[Choice]:
    """Yield other counts of nodes and ranks per node, each degree as given or 1."""
    # All products of degrees on all sizes would be thousands of runs to judge; undoing an axis is what helps most
    # often.
    options = [{1, max(1, value_of(run, key) or 1)} for key in SET_DEGREES]
    for nodes, ranks_per_node in itertools.product(counts_near(run.nodes), counts_near(run.ranks_per_node)):
        for values in itertools.product(*options):
            dp, rest = divmod(nodes * ranks_per_node, math.prod(values[: len(DEGREES)]))
            if rest == 0:
                choice = dict(zip((*SET_DEGREES, *SIZES), (*values, nodes, ranks_per_node), strict=True))
                yield from ({**choice, **data} for data in kept_or_unset(run, dp))


def batches(run: Run) -> Iterator[Choice]:
    """Yield the nearest global batches below and above the given one that whole micro-batches make."""
    weak = run.scaling.mode is ScalingMode.weak
    key = RANK_BATCH if weak else GLOBAL_BATCH
    given = value_of(run, key) or 0
    for cut, dp in cuts(run.ranks):
        unit = run.job.micro_batch_size * dp
        # A pipeline wants PP micro-batches or more, GPipe takes any number.
        for whole in {unit, unit * cut[PP.key]}:
            # Weak scaling sets sequences per rank, so the global batch is batch x ranks: the smallest step of `batch`
            # that keeps it a multiple of `whole`.
            step = whole // math.gcd(whole, run.ranks) if weak else whole
            for batch in {given // step * step, (given // step + 1) * step} - {0}:
                yield from ({**cut, key: batch, **data} for data in kept_or_unset(run, dp))


def cuts(ranks: int, keys: tuple[str, ...] = DEGREES) -> Iterator[tuple[dict[str, int], int]]:
    """Yield every choice of DEGREES whose product divides the ranks, with the data-parallel degree that remains."""
    if not keys:
        yield {}, ranks
        return
    for value in divisors(ranks):
        for cut, left in cuts(ranks // value, keys[1:]):
            yield {keys[0]: value, **cut}, left


def parts(run: Run, dp: int, axes: Sequence[Axis] = SHARD_PARTS) -> Iterator[dict[str, int]]:
    """Yield every choice of degrees of some of SHARD_PARTS: each divides its parts of the model, their product dp."""
    counts = (getattr(run.model, axis.divides) for axis in axes)
    options = [divisors(math.gcd(max(1, count), dp)) for count in counts]
    for chosen in itertools.product(*options):
        if dp % math.prod(chosen) == 0:
            yield {axis.key: degree for axis, degree in zip(axes, chosen, strict=True)}


def data_keys(run: Run) -> list[str]:
    """Return the data axes that the user set."""
    return [key for key in DATA if value_of(run, key) is not None]


def kept_or_unset(run: Run, dp: int) -> list[Choice]:
    """Return every way to unset data axes that the user set, or to keep those that divide dp."""
    keys = data_keys(run)
    options = [(None, value) if (value := value_of(run, key)) and dp % value == 0 else (None,) for key in keys]
    return [dict(zip(keys, values, strict=True)) for values in itertools.product(*options)]


def counts_near(count: int) -> list[int]:
    """Return the counts to try in place of this one: its divisors and, up to its double, all nearby ones."""
    nearby = range(max(1, count - NEARBY), min(2 * count, count + NEARBY) + 1)
    return sorted({*nearby, *divisors(count)})


# --- one choice ----------------------------------------------------------------------------------------------


def value_of(run: Run, key: str) -> int | None:
    """Return the value of a dotted key of a run."""
    value: int | None = attrgetter(key)(run)
    return value


def changed(given: Choice, choice: Choice) -> Change:
    """Return the changes that a choice makes."""
    return tuple((key, choice[key]) for key in KEYS if key in choice and choice[key] != given[key])


def applied(run: Run, values: Values) -> Run:
    """Return a new run with the values; it shares the sections that stay."""
    parts: dict[str, dict[str, Any]] = {}
    for key, value in values:
        part, _, name = key.rpartition(".")
        parts.setdefault(part, {})[name] = value
    own = parts.pop("", {})
    return replace(run, **own, **{part: replace(getattr(run, part), **new) for part, new in parts.items()})


def distance(given: Choice, change: Change) -> tuple[float, int, bool, list[tuple[int, int]]]:
    """Return the sort key of changes; distances are rounded so that equal ones compare equal."""
    far = sum(
        UNSET_DISTANCE if value is None else abs(math.log2(value / max(1, given[key] or 1))) for key, value in change
    )
    unset = any(value is None for _, value in change)
    return round(far, 9), len(change), unset, [(KEYS.index(key), value or 0) for key, value in change]


def typed(values: Values) -> str:
    """Return values as overrides."""
    return " ".join(f"{key}={as_typed(value)}" for key, value in values)


def as_typed(value: Any) -> str:
    """Return a value as a user types it."""
    if isinstance(value, Enum):
        return value.name
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
