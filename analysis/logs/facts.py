"""`facts.yaml`: facts of runs that their logs lack, written by the user for the logs next to it and below.

    ranks: 16
    nodes: 2
    model: llama3-8b
    gpu_name: NVIDIA H100 80GB HBM3

Unlike a log it is the user's own file, so the runs next to an invalid one are not used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Text
from jobs.errors import ReportError
from jobs.files import read_yaml, reason
from jobs.metrics import Metric

NUMBERS = {
    metric.name: metric
    for metric in (
        a.NODES,
        a.RANKS,
        a.RANKS_PER_NODE,
        a.GLOBAL_BATCH_SIZE,
        a.SEQUENCE_LENGTH,
        a.PARAMETERS,
        a.TENSOR_PARALLEL_SIZE,
        a.PIPELINE_PARALLEL_SIZE,
        a.CONTEXT_PARALLEL_SIZE,
        a.EXPERT_PARALLEL_SIZE,
        a.SEED,
        a.LAYERS,
        a.HIDDEN_SIZE,
        a.HEADS,
        a.KV_HEADS,
        a.HEAD_SIZE,
        a.INTERMEDIATE_SIZE,
        a.VOCABULARY_SIZE,
        a.EXPERTS,
        a.EXPERTS_PER_TOKEN,
        a.LORA_RANK,
    )
}
SWITCHES = {metric.name: metric for metric in (a.GATED, a.TIED_EMBEDDINGS)}
TEXTS = {text.name: text for text in (Text.model, Text.gpu_name, Text.precision, Text.organization, Text.software)}
ALLOWED = (*NUMBERS, *SWITCHES, *TEXTS)
KINDS = {
    **dict.fromkeys(NUMBERS, "a whole number above 0"),
    **dict.fromkeys(SWITCHES, "true or false"),
    **dict.fromkeys(TEXTS, "a text"),
}


@dataclass(frozen=True)
class Facts:
    """The facts in one file."""

    numbers: dict[Metric, float]
    texts: dict[Text, str]


def read_facts(path: Path) -> Facts:
    """Return the facts in a file. Raise ReportError if it contains anything else."""
    try:
        settings = read_yaml(path)
    except (OSError, ValueError) as error:
        raise ReportError(f"{path} cannot be read: {reason(error)}") from error
    if not isinstance(settings, dict):
        raise ReportError(f"{path} contains no settings. Write one per line, for example: ranks: 16")
    return facts_of(settings, str(path))


def facts_of(settings: Mapping[str, Any], where: str) -> Facts:
    """Return the facts of these settings. Raise ReportError, with their place, for anything else."""
    numbers: dict[Metric, float] = {}
    texts: dict[Text, str] = {}
    for key, value in settings.items():
        if key in NUMBERS and type(value) is int and value > 0:
            numbers[NUMBERS[key]] = value
        elif key in SWITCHES and isinstance(value, bool):
            numbers[SWITCHES[key]] = float(value)
        elif key in TEXTS and isinstance(value, str) and value:
            texts[TEXTS[key]] = value
        elif key in KINDS:
            raise ReportError(f"{where}: {key} is {value!r}, and must be {KINDS[key]}.")
        else:
            raise ReportError(f"{where}: {key} is not known. Known keys: {', '.join(ALLOWED)}.")
    return Facts(numbers, texts)
