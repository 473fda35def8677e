"""Megatron-LM's golden values: one JSON document with the loss, time and memory of each step of a functional test.

`{"lm loss": {"values": {"1": 10.8, "5": "nan"}}, ...}`; in older files values are a list that begins with step 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from analysis.parsers import log_metrics as a
from analysis.parsers.base import DocumentFormat, Kind, Record
from analysis.untrusted import as_list, as_number, lookup, printed_number
from jobs import metrics as m
from jobs.metrics import Metric

SERIES = {
    "lm loss": m.LOSS,
    "iteration-time": m.STEP_TIME,
    "mem-allocated-bytes": a.MEMORY_ALLOCATED,
    "mem-max-allocated-bytes": m.MEMORY_PEAK,
}


def recognises(document: Any) -> bool:
    """Return True if a document contains one of the series with values."""
    return any(lookup(document, name + ".values") is not None for name in SERIES)


def parse(document: Any) -> Iterator[Record]:
    """Return a record for each step that has a value."""
    steps: dict[float, dict[Metric, float]] = {}
    for name, metric in SERIES.items():
        for step, printed in values_of(lookup(document, name)):
            if (value := as_number(printed)) is not None and as_number(step) is not None:
                steps.setdefault(step, {m.STEP: step})[metric] = value
    for step in sorted(steps):
        yield Record(Kind.step, 0, steps[step])


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
