"""The JSON files beside an MLPerf result: what the system is made of, and the scaling factor of its convergence.

A system's name misleads about its size: what counts is number_of_nodes and accelerators_per_node, mostly strings.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from analysis.parsers import metrics as a
from analysis.parsers.base import DocumentFormat, Kind, Record, Text
from analysis.untrusted import as_number, printed_number
from jobs.metrics import Metric

COUNTS: dict[str, Metric] = {
    "number_of_nodes": a.NODES,
    "accelerators_per_node": a.GPUS_PER_NODE,
    "scaling_factor": a.CONVERGENCE_FACTOR,
}
NAMES = {
    "submitter": Text.organization,
    "system_name": Text.system,
    "accelerator_model_name": Text.gpu_name,
    "framework": Text.software,
    "host_networking": Text.interfaces,
}
# What says nothing.
EMPTY = {"", "N/A", "n/a", "NA", "None", "TBD"}


def recognises(document: Any) -> bool:
    """Whether it is a system's description, or a file with nothing but the scaling factor."""
    return isinstance(document, dict) and (
        {"system_name", "number_of_nodes"} <= document.keys() or document.keys() == {"scaling_factor"}
    )


def parse(document: Any) -> Iterator[Record]:
    """One record."""
    values = {metric: number for key, metric in COUNTS.items() if (number := counted(document.get(key)))}
    texts = {
        text: said.strip()
        for key, text in NAMES.items()
        if isinstance(said := document.get(key), str) and said.strip() not in EMPTY
    }
    if values or texts:
        yield Record(Kind.setting, 0, values, texts)


def counted(said: Any) -> float | None:
    """A number, or one written as a string."""
    return printed_number(said) if isinstance(said, str) else as_number(said)


FORMAT = DocumentFormat(
    "MLPerf system description",
    "https://github.com/mlcommons/policies/blob/master/submission_rules.adoc",
    recognises,
    parse,
)
