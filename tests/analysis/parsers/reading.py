"""Reading logs in tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.parsers.base import Kind, Record, Text
from analysis.parsers.detect import read_log
from jobs.metrics import Metric
from tests.support.paths import ROOT

SAMPLES = Path(__file__).parent / "samples"
CORPUS = ROOT.parent / "shared" / "corpus"
needs_corpus = pytest.mark.skipif(not CORPUS.is_dir(), reason=f"the corpus of real logs is not at {CORPUS}")


# What libraries print into the output of any program.
ANYWHERE = {"NCCL INFO"}


def records(path: Path, form: str, *, beside: tuple[str, ...] = ()) -> list[Record]:
    """What a format says of a file; the others, but those beside it, must say nothing of it."""
    said = {each.name: list(found) for each, found in read_log(path)}
    assert [name for name, found in said.items() if found and name not in (*ANYWHERE - {form}, *beside)] == [form]
    return said[form]


def column(found: list[Record], kind: Kind, metric: Metric) -> list[float]:
    """A metric's values in the records of one kind, where they have it."""
    return [each.values[metric] for each in found if each.kind is kind and metric in each.values]


def texts(found: list[Record], text: Text) -> list[str]:
    """A text's values in the order of their coming."""
    return [each.texts[text] for each in found if text in each.texts]
