"""Read the samples, and records by kind and name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from analysis.parsers.base import Kind, Line, LocalRank, Record, Text
from analysis.parsers.detect import read_log
from jobs.metrics import Metric

SAMPLES = Path(__file__).parent / "samples"
SAMPLE_NAMES = sorted(sample.name for sample in SAMPLES.iterdir() if sample.suffix != ".md")
# The formats of a library and of launchers, which print into the output of any program.
ANYWHERE = {"NCCL INFO", "launcher"}


def read(path: Path) -> dict[str, list[Record]]:
    """Return the records of each format that has any."""
    return {form.name: rows for form, found in read_log(path) if (rows := list(found))}


def records(path: Path, form: str, *, beside: tuple[str, ...] = ()) -> list[Record]:
    """Return the records of one format; assert that no other format has any, except those named in `beside`."""
    by_format = read(path)
    assert [name for name in by_format if name not in (*ANYWHERE - {form}, *beside)] == [form]
    return by_format[form]


def parsed(parse: Callable[[Iterable[Line]], Iterator[Record]], *lines: str) -> list[Record]:
    """Return the records of these lines."""
    return list(parse(Line(number, text) for number, text in enumerate(lines, 1)))


def column(found: list[Record], kind: Kind, metric: Metric) -> list[float]:
    """Return the values of a metric in those records of one kind that have it."""
    return [each.values[metric] for each in found if each.kind is kind and metric in each.values]


def texts(found: list[Record], text: Text) -> list[str]:
    """Return the values of a text in the order of the records."""
    return [each.texts[text] for each in found if text in each.texts]


def in_words(record: Record) -> str:
    """Return a record as a line of text: `7 step rank 0 on node1: loss=2.5, step=10, timestamp='05:06:17'`."""
    rank = record.rank
    local = f" local rank {rank.number}" if isinstance(rank, LocalRank) else f" rank {rank}"
    place = ("" if rank is None else local) + (f" on {record.host}" if record.host else "")
    values = sorted(f"{metric.name}={value:.12g}" for metric, value in record.values.items())
    words = sorted(f"{text.value}={value!r}" for text, value in record.texts.items())
    return f"{record.line} {record.kind.name}{place}: {', '.join(values + words)}"
