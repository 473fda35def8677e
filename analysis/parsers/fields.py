"""Numbers that a program prints under names of its own, as metrics in base units."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from analysis.untrusted import as_number, printed_number
from jobs.metrics import Metric

Names = Mapping[str, tuple[Metric, float]]
"""The metric that each name stands for, and what one of the printed unit is in base units."""

# Of these nothing that was measured is 0 or less: it stands for what is not known.
POSITIVE_UNITS = {"s", "1/s", "FLOP/s", "B/s", "B"}


def numbers(printed: Iterable[tuple[str, object]], names: Names) -> dict[Metric, float]:
    """Those of the printed values that have a metric and are known."""
    values: dict[Metric, float] = {}
    for name, said in printed:
        if name not in names:
            continue
        metric, unit = names[name]
        number = printed_number(said) if isinstance(said, str) else as_number(said)
        if number is not None and (number > 0 or metric.unit not in POSITIVE_UNITS):
            value = as_number(number * unit)
            if value is not None:
                values[metric] = value
    return values
