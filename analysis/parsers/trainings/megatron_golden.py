"""Megatron-LM's golden values: one JSON document with the loss, time and memory of each step of a functional test.

`{"lm loss": {"values": {"1": 10.8, "5": "nan"}}, ...}`; in older files values are a list that begins with step 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from analysis.parsers import log_metrics as a
from analysis.parsers.base import DocumentFormat, Kind, Names, Record, numbers, value_of
from analysis.untrusted import as_list, as_number, lookup, printed_number
from jobs import metrics as m

NOT_LOGGED = "nan"
SERIES = {
    "lm loss": m.LOSS,
    "iteration-time": m.STEP_TIME,
    "mem-allocated-bytes": a.MEMORY_ALLOCATED,
    "mem-max-allocated-bytes": m.MEMORY_PEAK,
}


# Megatron-Bridge writes an object a step, and counts them from 0. Its "GPU utilization" is in TFLOP/s.
BY_STEP: Names = {
    "lm loss": (m.LOSS, 1),
    "elapsed time per iteration (ms)": (m.STEP_TIME, 1e-3),
    "GPU utilization": (a.FLOPS_PER_S_PER_RANK, 1e12),
    "grad norm": (m.GRADIENT_NORM, 1),
}


def recognises(document: Any) -> bool:
    """Return True if a document contains one of the series with values, or an object for each step."""
    return bool(by_step(document)) or any(lookup(document, name + ".values") is not None for name in SERIES)


def parse(document: Any) -> Iterator[Record]:
    """Return a record for each step that has a value."""
    steps = {step: {m.STEP: step, **numbers(each.items(), BY_STEP)} for step, each in by_step(document).items()}
    for name, metric in SERIES.items():
        for step, printed in values_of(lookup(document, name)):
            # The text stands for a step that was not logged; the NaN of a diverged run is a number.
            if printed != NOT_LOGGED and (values := value_of(metric, printed)) and as_number(step) is not None:
                steps.setdefault(step, {m.STEP: step}).update(values)
    for step in sorted(steps):
        yield Record(Kind.step, 0, steps[step])


def by_step(document: Any) -> dict[float, Mapping[str, Any]]:
    """Return the objects of a document by step from 1, if all of its keys are numbers and all have a loss or a time."""
    known = [
        (printed_number(name), each)
        for name, each in (document.items() if isinstance(document, Mapping) else ())
        if isinstance(each, Mapping) and not each.keys().isdisjoint(("lm loss", "elapsed time per iteration (ms)"))
    ]
    steps = {step + 1: each for step, each in known if step is not None and step >= 0}
    return steps if steps and len(steps) == len(document) else {}


def values_of(series: Any) -> Iterator[tuple[float, Any]]:
    """Return the values of a series by step."""
    values = lookup(series, "values")
    if isinstance(values, Mapping):
        for name, printed in values.items():
            if (step := printed_number(name)) is not None:
                yield step, printed
    start, interval = as_number(lookup(series, "start_step")), as_number(lookup(series, "step_interval"))
    if start is not None and interval is not None:
        for index, printed in enumerate(as_list(values)):
            # Indices count from 0, steps in the log from 1.
            yield 1 + start + index * interval, printed


FORMAT = DocumentFormat(
    "Megatron-LM golden values",
    "https://github.com/NVIDIA/Megatron-LM/blob/core_r0.12.0/tests/functional_tests/python_test_utils/"
    "get_test_results_from_tensorboard_logs.py",
    recognises,
    parse,
)
