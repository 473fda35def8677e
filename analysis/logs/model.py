"""The model that a log's program trained, as reported by the log or a facts.yaml.

`analysis.metrics.mfu` computes the MFU of logs and of our runs with the same function from the same keys. Values that
are neither reported nor derivable are absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Text
from jobs.metrics import Metric
from jobs.plan.cost import parameters
from jobs.schema import Mlp, Model

SHAPE = {
    "layers": a.LAYERS,
    "heads": a.HEADS,
    "kv_heads": a.KV_HEADS,
    "hidden_size": a.HIDDEN_SIZE,
    "head_size": a.HEAD_SIZE,
    "intermediate_size": a.INTERMEDIATE_SIZE,
    "vocab_size": a.VOCABULARY_SIZE,
    "experts": a.EXPERTS,
    "experts_per_token": a.EXPERTS_PER_TOKEN,
}
# Counting the weights requires all of these.
COUNTED = ("layers", "heads", "kv_heads", "hidden_size", "head_size", "intermediate_size", "vocab_size")


def model_of(settings: Mapping[Metric, float], texts: Mapping[Text, str]) -> dict[str, Any]:
    """Return the dimensions of a model under the keys of jobs.schema.Model; unknown ones are absent."""
    found: dict[str, Any] = {
        key: int(value)
        for key, metric in SHAPE.items()
        if (value := settings.get(metric)) is not None and value == int(value) > 0
    }
    hidden, heads = found.get("hidden_size"), found.get("heads")
    if "head_size" not in found and hidden and heads and hidden % heads == 0:
        found["head_size"] = hidden // heads
    if a.TIED_EMBEDDINGS in settings:
        found["tie_embeddings"] = settings[a.TIED_EMBEDDINGS] == 1
    if a.GATED in settings:
        gated = Mlp.LLaMAMoE if "experts" in found else Mlp.LLaMAMLP
        found["mlp"] = gated.name if settings[a.GATED] == 1 else Mlp.GptNeoxMLP.name
    if uncovered := [each for each in (texts.get(Text.uncovered), plain_experts(found)) if each]:
        found["uncovered"] = ", ".join(uncovered)
    return found


def shape_name(model: Mapping[str, Any]) -> str | None:
    """Return the dimensions of a model as its name; None if too few are known to identify it."""
    if not model.keys() >= {"layers", "hidden_size"}:
        return None
    experts = f" and {model['experts']} experts" if "experts" in model else ""
    return f"{model['layers']}-layer model of hidden size {model['hidden_size']:,}{experts}"


def plain_experts(model: Mapping[str, Any]) -> str | None:
    """Return a label for experts that are not gated, which jobs.plan cannot count; None for others."""
    return "experts of two matrices" if "experts" in model and model.get("mlp") == Mlp.GptNeoxMLP.name else None


def parameters_of(settings: Mapping[Metric, float], model: Mapping[str, Any]) -> int | None:
    """Return the number of weights: the program's count, else that of jobs.plan; None if unknown."""
    if a.PARAMETERS in settings:
        return int(settings[a.PARAMETERS])
    if not model.keys() >= {*COUNTED, "mlp", "tie_embeddings"} or "uncovered" in model:
        return None
    known = {key: model[key] for key in (*COUNTED, "tie_embeddings", "experts", "experts_per_token") if key in model}
    return parameters(Model(name="", source="", max_sequence_length=0, mlp=Mlp[model["mlp"]], **known))
