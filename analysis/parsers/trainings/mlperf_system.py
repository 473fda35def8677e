"""The JSON files next to an MLPerf result: the hardware of the system, and the scaling factor of its convergence.

The name of a system does not state its size: read number_of_nodes and accelerators_per_node, which are mostly strings.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from analysis.parsers import log_metrics as a
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
# Placeholders.
EMPTY = {"", "N/A", "n/a", "NA", "None", "TBD"}


def recognises(document: Any) -> bool:
    """Return True for the description of a system, or a file with only the scaling factor."""
    return isinstance(document, dict) and (
        {"system_name", "number_of_nodes"} <= document.keys() or document.keys() == {"scaling_factor"}
    )


def parse(document: Any) -> Iterator[Record]:
    """Return one record."""
    values = {metric: number for key, metric in COUNTS.items() if (number := counted(document.get(key)))}
    texts = {
        text: reported.strip()
        for key, text in NAMES.items()
        if isinstance(reported := document.get(key), str) and reported.strip() not in EMPTY
    }
    if values or texts:
        yield Record(Kind.setting, 0, values, texts)


def counted(reported: Any) -> float | None:
    """Return a number, also if written as a string."""
    return printed_number(reported) if isinstance(reported, str) else as_number(reported)


FORMAT = DocumentFormat(
    "MLPerf system description",
    "https://github.com/mlcommons/policies/blob/master/submission_rules.adoc",
    recognises,
    parse,
)
