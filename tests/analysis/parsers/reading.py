"""Read the samples, and records by kind and name."""

from __future__ import annotations

from pathlib import Path

from analysis.parsers.base import Kind, Record, Text
from analysis.parsers.detect import read_log
from jobs.metrics import Metric

SAMPLES = Path(__file__).parent / "samples"
# The formats of a library and of launchers, which print into the output of any program.
ANYWHERE = {"NCCL INFO", "launcher"}


def records(path: Path, form: str, *, beside: tuple[str, ...] = ()) -> list[Record]:
    """Return the records of one format; assert that no other format has any, except those named in `beside`."""
    by_format = {each.name: list(found) for each, found in read_log(path)}
    assert [name for name, found in by_format.items() if found and name not in (*ANYWHERE - {form}, *beside)] == [form]
    return by_format[form]


def column(found: list[Record], kind: Kind, metric: Metric) -> list[float]:
    """Return the values of a metric in those records of one kind that have it."""
    return [each.values[metric] for each in found if each.kind is kind and metric in each.values]


def texts(found: list[Record], text: Text) -> list[str]:
    """Return the values of a text in the order of the records."""
    return [each.texts[text] for each in found if text in each.texts]
