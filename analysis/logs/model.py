"""The model that a log's program trained, as far as the log or a facts.yaml tells it, and its speed in tokens.

With it `analysis.metrics.mfu` works out the MFU of a log as that of a run of ours: by the same function, from the same
keys. What is not told is absent, but for what follows from the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from analysis.formatting import significant
from analysis.load.run_directory import RunResult
from analysis.parsers import megatron
from analysis.parsers import metrics as a
from analysis.parsers.base import Text
from jobs import metrics as m
from jobs.metrics import Metric
from jobs.plan.cost import parameters
from jobs.schema import Mlp, Model, Precision

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
# Without these no weight can be counted.
COUNTED = ("layers", "heads", "kv_heads", "hidden_size", "head_size", "intermediate_size", "vocab_size")
# What programs call an arithmetic type. Of float32 a log does not tell whether its products are TF32.
ARITHMETIC = {
    **dict.fromkeys(("bf16", "bf16-true", "bf16-mixed", "bfloat16", "torch.bfloat16"), Precision.bfloat16.name),
    **dict.fromkeys(("fp16", "16-true", "16-mixed", "float16", "torch.float16"), "float16"),
}
# Programs whose samples are all of the sequence length, without padding: they cut them from one stream of tokens. Of
# others their configuration may say so.
FULL_SAMPLES = {megatron.FORMAT.name}


def model_of(settings: Mapping[Metric, float], texts: Mapping[Text, str]) -> dict[str, Any]:
    """The numbers of a model under the keys of jobs.schema.Model; what neither is told nor follows is absent."""
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


def plain_experts(model: Mapping[str, Any]) -> str | None:
    """What is said of experts that are not gated, which jobs.plan cannot count."""
    return "experts of two matrices" if "experts" in model and model.get("mlp") == Mlp.GptNeoxMLP.name else None


def parameters_of(settings: Mapping[Metric, float], model: Mapping[str, Any]) -> int | None:
    """Weights of the model: as the program counts them, else by the arithmetic of jobs.plan; None where not known."""
    if a.PARAMETERS in settings:
        return int(settings[a.PARAMETERS])
    if not model.keys() >= {*COUNTED, "mlp", "tie_embeddings"} or "uncovered" in model:
        return None
    known = {key: model[key] for key in (*COUNTED, "tie_embeddings", "experts", "experts_per_token") if key in model}
    return parameters(Model(name="", source="", max_sequence_length=0, mlp=Mlp[model["mlp"]], **known))


def tokens_per_s(run: RunResult) -> float | None:
    """Tokens per second of a log, all ranks together, also where it tells samples that are all as long."""
    told, samples = run.values.get(m.TOKENS_PER_S), run.values.get(a.SAMPLES_PER_S)
    length = run.setting("job.sequence_length")
    full = run.log is not None and (run.setting("job.full_samples") or not FULL_SAMPLES.isdisjoint(run.log.formats))
    return samples * length if told is None and full and samples is not None and length else told


def claims(run: RunResult, achieved_flops_per_s: float, mfu: float) -> list[str]:
    """What the log says itself, beside what was worked out here: clauses of a sentence."""
    return [
        f"the log itself says {significant(value / size, 4)} {unit}, {round(100 * (value / ours - 1), 1) + 0.0:+g} % "
        "from this"
        for metric, ours, size, unit in (
            (a.FLOPS_PER_S_PER_RANK, achieved_flops_per_s, 1e12, "TFLOP/s per rank"),
            (a.MODEL_FLOPS_UTILIZATION, mfu, 0.01, "% MFU"),
        )
        if (value := run.values.get(metric)) is not None
    ]


def tells_of_flops(run: RunResult) -> bool:
    """Whether a log says anything of its model's shape or of its FLOPs, so that a reader may expect an MFU."""
    told = run.values.keys() & {a.FLOPS_PER_S_PER_RANK, a.MODEL_FLOPS_UTILIZATION}
    return bool(told) or run.setting("model.layers") is not None
