"""MFU and HFU: model FLOPs of a run over the peak of its devices, with all inputs or the reason for their absence.

The FLOPs of a token are PaLM's (arXiv:2204.02311, appendix B), recomputation is counted as by Korthikanti et al.
(arXiv:2205.05198). Definitions: jobs.metrics. Peaks are those of the run's own `gpu`, else of conf/gpu, for exactly the
device that the run found. The inputs of a log come from analysis.logs.model; the utilization that a log
reports is shown next to ours and never replaces it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

import yaml

from analysis.formatting import significant
from analysis.parsers import log_metrics as a
from analysis.parsers.trainings import megatron
from analysis.run import FACTS_FILE, RunResult
from analysis.untrusted import as_number, lookup
from jobs import metrics as m
from jobs.layout import PIPELINE_STAGES_PER_RANK
from jobs.metrics import Metric
from jobs.plan.cost import gated_parameters
from jobs.plan.predict.flops import (
    FLOPS_PER_ATTENDED,
    FLOPS_PER_FROZEN_WEIGHT,
    FLOPS_PER_WEIGHT,
    FORWARD_FLOPS_PER_ATTENDED,
    FORWARD_FLOPS_PER_WEIGHT,
    attended,
)
from jobs.schema import ActivationCheckpointing, EngineKind, Mlp, Precision

TF32 = "TF32"
# The setting of `gpu` that is the peak of an arithmetic type: on tensor cores, or plain float32.
PEAK_OF = {
    TF32: "peak_tf32_tflops",
    Precision.bfloat16.name: "peak_bf16_tflops",
    "float16": "peak_fp16_tflops",
    Precision.float32.name: "peak_fp32_tflops",
}
# Metrics of a log that claim a utilization, with their printed units.
CLAIMED = {a.FLOPS_PER_S_PER_RANK: (1e12, "TFLOP/s per rank"), a.MODEL_FLOPS_UTILIZATION: (0.01, "% MFU")}
# Between the formulas that reproduce one printed rate.
EITHER = " or "
# A printed rate is reproduced by a formula if it lies this close to its result.
REPRODUCED = 0.01
# The names that programs give an arithmetic type. No float32: a log does not report if its products are TF32.
ARITHMETIC = {
    **dict.fromkeys(("bf16", "bf16-true", "bf16-mixed", "bfloat16", "torch.bfloat16"), Precision.bfloat16.name),
    **dict.fromkeys(("fp16", "16-true", "16-mixed", "float16", "torch.float16"), "float16"),
}
# Programs whose samples are all of the sequence length, without padding: they cut them from one stream of tokens. For
# others the configuration may state it.
FULL_SAMPLES = {megatron.FORMAT.name}


class UnknownError(Exception):
    """An input is unknown, so there is no utilization; never leaves this module."""


@dataclass(frozen=True)
class Peak:
    """The most that one device can do, by its data sheet."""

    flops_per_s: float
    device: str
    precision: str
    source: str

    @property
    def text(self) -> str:
        """The peak as text, with its source."""
        return f"{tera(self.flops_per_s)} TFLOP/s, dense {self.precision} of {self.device} ({self.source})"


@dataclass(frozen=True)
class Work:
    """The work of a run for one token."""

    weights: int
    """N: in matrix products, for one token."""
    left_out: int
    """Weights of the model that are not in N."""
    per_weight: int
    layers: int
    width: int
    """Heads x head size."""
    sequence: float
    """Tokens of a sequence, in the mean."""
    head_weights: int
    window: int | None = None
    """Positions of a sliding window (model.sliding_window)."""
    full_attention_every: int = 0
    chunked: bool = False
    """The window does not slide (model.chunked_window)."""

    @property
    def attended(self) -> float:
        """Entries of each of attention's products, over all layers."""
        windows = (self.window, self.full_attention_every)
        return self.width * attended(self.sequence, self.layers, *windows, chunked=self.chunked)

    @property
    def model_flops(self) -> float:
        """FLOPs of a token that the model itself needs."""
        return self.per_weight * self.weights + FLOPS_PER_ATTENDED * self.attended

    @property
    def formulas(self) -> Mapping[str, float]:
        """FLOPs of a token by the formulas that programs print TFLOP/s by.

        NVIDIA's counted full attention until NeMo 24.07 and the causal half since Megatron-Bridge 25.09.
        """
        n, k = self.per_weight * self.weights, self.per_weight
        return {
            f"full attention ({k} N + 12 L a s)": self.model_flops,
            f"causal attention ({k} N + 6 L a s)": n + FLOPS_PER_ATTENDED / 2 * self.attended,
            f"weights only ({k} N)": n,
            f"full attention with the embedding ({k} N' + 12 L a s)": self.model_flops + k * self.left_out,
            "full attention with recomputed layers": self.model_flops + self.recomputed_flops,
        }

    @property
    def recomputed_flops(self) -> float:
        """FLOPs of a token if each layer's forward pass is computed once more; the output head is not in a layer."""
        in_layers = self.weights - self.head_weights
        return FORWARD_FLOPS_PER_WEIGHT * in_layers + FORWARD_FLOPS_PER_ATTENDED * self.attended

    @property
    def text(self) -> str:
        """The formula with its numbers."""
        frozen = " (frozen weights; what trains with them is left out)" if self.per_weight < FLOPS_PER_WEIGHT else ""
        return (
            f"{self.per_weight} N{frozen} + {FLOPS_PER_ATTENDED} L a s = {scientific(self.model_flops)} FLOP a token "
            f"with N = {self.weights:,} (output head in; {self.left_out:,} weights of embedding and idle experts out), "
            f"L = {self.layers:,}, a = {self.width:,}, s = {significant(self.sequence, 4)}: attention is "
            f"{significant(100 * FLOPS_PER_ATTENDED * self.attended / self.model_flops, 3)} % of it, causal mask not "
            "deducted"
        )


@dataclass(frozen=True)
class Utilization:
    """MFU and HFU if they are known and possible; otherwise no value and the reason."""

    values: Mapping[Metric, float] = field(default_factory=dict)
    explanation: Sequence[str] = ()
    """Its inputs, or the reason for its absence: clauses of a sentence."""
    impossible: str | None = None
    """The inputs to suspect if a value is above the peak."""
    formula: str | None = None
    """The formulas that reproduce the FLOP/s that a log prints, as text; None if a claim or an input is missing."""


def utilization(run: RunResult) -> Utilization:
    """Return MFU and HFU of a used run, with their inputs."""
    formula = counted_by(run)
    try:
        peak = peak_of(run)
        work = work_of(run)
        rate = rate_per_rank(run)
    except UnknownError as error:
        return Utilization(explanation=[f"no MFU: {error}", *claims(run, {}), *in_words(formula)], formula=formula)
    values = {m.MFU: work.model_flops * rate / peak.flops_per_s}
    again = recomputed(run, work)
    if again is not None:
        values[m.HFU] = (work.model_flops + again) * rate / peak.flops_per_s
    if max(values.values()) > 1:
        return impossible(run, work, peak, max(values.values()), rate)
    achieved = f"{tera(work.model_flops * rate)} TFLOP/s per rank"
    ours = {a.FLOPS_PER_S_PER_RANK: work.model_flops * rate, a.MODEL_FLOPS_UTILIZATION: values[m.MFU]}
    reported = [*claims(run, ours), *in_words(formula)]
    explanation = [work.text, achieved, *reported, f"peak {peak.text}", recomputation(run, again)]
    return Utilization(values, explanation, formula=formula)


def counted_by(run: RunResult) -> str | None:
    """Return the formulas that reproduce the FLOP/s that a log prints; None if these or an input are missing."""
    printed = run.values.get(a.FLOPS_PER_S_PER_RANK)
    if printed is None:
        return None
    try:
        formulas, rate = work_of(run).formulas, rate_per_rank(run)
    except UnknownError:
        return None
    found = [name for name, flops in formulas.items() if abs(printed / (flops * rate) - 1) <= REPRODUCED]
    return EITHER.join(found) or "none of the known formulas"


def rate_per_rank(run: RunResult) -> float:
    """Return the tokens per second and rank, or raise UnknownError."""
    return known(tokens_per_s(run), "tokens/s") / known(run.ranks, "the number of ranks")


def in_words(formula: str | None) -> list[str]:
    """Return the clause on the formula of a log's FLOP/s, if it prints any."""
    return [] if formula is None else [f"the TFLOP/s of the log are counted by {formula}"]


def impossible(run: RunResult, work: Work, peak: Peak, share: float, rate: float) -> Utilization:
    """Return no value for a run above the peak of its device, but the inputs to check."""
    narrow = ", or were its matrix products TF32" if peak.precision == Precision.float32.name else ""
    device, precision = ("gpu_name", "precision") if run.log else ("gpu.device_name", "job.precision")
    why = (
        f"{significant(100 * share, 3)} % of the peak is more than the device can do, so it is not shown. One of its "
        f"inputs is wrong: the device ({device} is {peak.device}), the arithmetic type ({precision} is "
        f"{peak.precision}{narrow}), the peak ({tera(peak.flops_per_s)} TFLOP/s), the weights (N = {work.weights:,}) "
        f"or the speed ({significant(rate, 4)} tokens/s per rank)"
    )
    return Utilization(explanation=[f"no MFU: {why}"], impossible=f"{run.name}: an MFU or HFU of {why}.")


def tokens_per_s(run: RunResult) -> float | None:
    """Return tokens per second of all ranks; for logs also from samples/s if all samples have full length."""
    reported, samples = run.values.get(m.TOKENS_PER_S), run.values.get(a.SAMPLES_PER_S)
    length = run.setting("job.sequence_length")
    full = run.log is not None and (run.setting("job.full_samples") or not FULL_SAMPLES.isdisjoint(run.log.formats))
    return samples * length if reported is None and full and samples is not None and length else reported


def claims(run: RunResult, ours: Mapping[Metric, float]) -> list[str]:
    """Return the FLOP/s and MFU that the log reports, compared with ours if these are known: clauses of a sentence."""
    return [
        f"the log reports {significant(value / size, 4)} {unit}, "
        f"{round(100 * (value / ours[metric] - 1), 1) + 0.0:+g} % from this"
        if metric in ours
        else f"the log claims {significant(value / size, 4)} {unit}, which is not checked"
        for metric, (size, unit) in CLAIMED.items()
        if (value := run.values.get(metric)) is not None
    ]


def reports_flops(run: RunResult) -> bool:
    """Return True if a log reports its model's shape or its FLOPs, so that a reader may expect an MFU."""
    return bool(run.values.keys() & CLAIMED.keys()) or run.setting("model.layers") is not None


# --- the devices' peak -----------------------------------------------------------------------------------------


def peak_of(run: RunResult) -> Peak:
    """Return the peak of the device that the run found, in the arithmetic of the run, or raise UnknownError."""
    device, precision = run.started.get("device_name"), run.setting("job.precision")
    precision = ARITHMETIC.get(precision) if run.log else precision
    own = run.setting("gpu")
    described = own if lookup(own, "device_name") == device else known_gpu(str(device))
    if device is None or described is None:
        hint = "" if device or not run.log else f": write `gpu_name: NAME` into a {FACTS_FILE} next to it"
        raise UnknownError(f"the peak of {device or 'an unnamed device'} is not known{hint}")
    if run.started.get("emulated_nodes") is True:
        raise UnknownError("nodes are emulated, so ranks may share a device")
    if precision == Precision.float32.name and run.setting("engine.kind") == EngineKind.nemo.name:
        # Transformer Engine: CUBLAS_COMPUTE_32F_FAST_TF32 in common/gemm/cublaslt_gemm.cu.
        raise UnknownError("NeMo's matrix products in float32 may be TF32, which has a different peak")
    if run.setting("engine.float8") is True:
        raise UnknownError("only linear layers multiply in few bits, so no single peak applies")
    if run.log and precision is None:
        named = run.setting("job.precision") or "an arithmetic type that the log does not name"
        raise UnknownError(f"the peak in {named} is not known for certain (known: bf16 and fp16)")
    if precision == Precision.float32.name and run.setting("engine.tf32") is True and lookup(described, PEAK_OF[TF32]):
        precision = TF32
    tflops = as_number(lookup(described, PEAK_OF.get(str(precision), "")))
    if tflops is None or tflops <= 0:
        raise UnknownError(f"the peak of {device} in {precision or 'an unnamed arithmetic type'} is not known")
    return Peak(tflops * 1e12, str(device), str(precision), str(lookup(described, "source") or "no source"))


@functools.cache
def known_gpu(device: str) -> Mapping[str, Any] | None:
    """Return the first GPU of conf/gpu with that name; None if there is no such GPU."""
    return next((gpu for gpu in known_gpus() if gpu.get("device_name") == device), None)


@functools.cache
def known_gpus() -> Sequence[Mapping[str, Any]]:
    """Return the GPUs of conf/gpu, in the order of their file names."""
    paths = sorted((files("conf") / "gpu").iterdir(), key=lambda path: path.name)
    return [yaml.safe_load(path.read_text(encoding="utf-8")) for path in paths if path.name.endswith(".yaml")]


# --- a token's FLOPs -------------------------------------------------------------------------------------------


def work_of(run: RunResult) -> Work:
    """Return the work of a run for a token by its configuration and plan, or raise UnknownError."""
    if (uncovered := run.setting("model.uncovered")) is not None:
        raise UnknownError(f"the formula does not cover its model ({uncovered})")
    if run.log and run.setting("model.tie_embeddings") is None:
        raise UnknownError(missing("tied_embeddings"))
    layers, heads, head_size, hidden, vocabulary = (
        setting(run, f"model.{key}") for key in ("layers", "heads", "head_size", "hidden_size", "vocab_size")
    )
    embedding = vocabulary * hidden
    looked_up = 0 if run.setting("model.tie_embeddings") is True else embedding
    left_out = looked_up + idle_experts(run)
    counted = lookup(run.plan, "parameters")
    if run.log and counted is None:
        needed = [key for key in ("kv_heads", "intermediate_size", "mlp") if run.setting(f"model.{key}") is None]
        raise UnknownError(missing(" or ".join(["parameters", " and ".join(needed)]) if needed else "parameters"))
    weights = whole(counted, "the number of weights") - left_out
    if weights <= embedding:
        raise UnknownError(
            f"{left_out:,} weights of embedding and idle experts leave no weights for the model's layers"
        )
    return Work(
        weights=weights,
        left_out=left_out,
        per_weight=FLOPS_PER_FROZEN_WEIGHT if run.freezes_weights else FLOPS_PER_WEIGHT,
        layers=layers,
        # Two products: queries with keys, and with values, which may be narrower.
        width=heads * (head_size + (run.setting("model.latent.value_head_size") or head_size)) // 2,
        sequence=mean_sequence(run),
        window=run.setting("model.sliding_window"),
        full_attention_every=run.setting("model.full_attention_every") or 0,
        chunked=run.setting("model.chunked_window") is True,
        head_weights=embedding,
    )


def idle_experts(run: RunResult) -> int:
    """Return the number of weights in experts that a token is not sent to, over all layers; 0 for a dense model."""
    if run.setting("model.mlp") != Mlp.LLaMAMoE.name:
        return 0
    # Runs of models without it, and logs, have one width.
    own = "intermediate_size" if run.setting("model.moe_intermediate_size") is None else "moe_intermediate_size"
    layers, hidden, inner, experts, active = (
        setting(run, f"model.{key}") for key in ("layers", "hidden_size", own, "experts", "experts_per_token")
    )
    dense, every = run.setting("model.dense_layers") or 0, run.setting("model.experts_every") or 1
    return (layers // every - dense // every) * (experts - active) * gated_parameters(hidden, inner)


def mean_sequence(run: RunResult) -> float:
    """Return the mean tokens of a sequence (understates attention if lengths differ); if unknown, the longest."""
    longest = setting(run, "job.sequence_length")
    tokens, sequences = run.values.get(m.TOKENS_PER_STEP), as_number(lookup(run.plan, "global_batch_size"))
    if not tokens or not sequences or sequences < 1:
        return float(longest)
    if tokens > sequences * longest:
        raise UnknownError(f"a step of {tokens:,.0f} tokens is more than {sequences:,} sequences of {longest:,} hold")
    return tokens / sequences


def recomputed(run: RunResult, work: Work) -> float | None:
    """Return the FLOPs of a token in layers that activation checkpointing recomputes; None if unknown."""
    mode = run.setting("engine.activation_checkpointing")
    if mode == ActivationCheckpointing.none.name:
        return 0.0
    if mode == ActivationCheckpointing.full.name:
        return work.recomputed_flops * checkpointed_share(run, work)
    # The native engine's selective mode keeps every matrix product and PyTorch's attention (not the ring's);
    # Megatron's recomputation depends on its version.
    native = run.setting("engine.kind") == EngineKind.native.name and run.setting("parallelism.context") == 1
    return 0.0 if mode == ActivationCheckpointing.selective.name and native else None


def checkpointed_share(run: RunResult, work: Work) -> float:
    """Return the share of layers that full checkpointing computes again: the first ones of each pipeline stage.

    As jobs.plan.pipeline_stages.checkpointed_layers, from the settings alone: stages of unequal length count as equal.
    """
    count = as_number(run.setting("engine.checkpointed_layers"))
    stages = as_number(run.setting("parallelism.pipeline")) or 1
    if stages > 1:
        schedule = run.setting("parallelism.schedule")
        by_schedule = {each.name: number for each, number in PIPELINE_STAGES_PER_RANK.items()}
        stages *= as_number(run.setting("parallelism.stages_per_rank")) or by_schedule.get(schedule, 1)
    return min(1.0, count * stages / work.layers) if count else 1.0


def recomputation(run: RunResult, again: float | None) -> str:
    """Return the recomputed FLOPs of HFU as text."""
    mode = run.setting("engine.activation_checkpointing")
    if again is None:
        return f"no HFU: recomputation by activation checkpointing ({mode or 'mode not reported'}) is not known"
    if again == 0:
        return f"HFU adds nothing (activation checkpointing: {mode})"
    return f"HFU adds {scientific(again)} FLOP a token (activation checkpointing: {mode})"


def setting(run: RunResult, key: str) -> int:
    """Return a positive whole number of the configuration, or raise UnknownError."""
    value = run.setting(key)
    if run.log and value is None:
        raise UnknownError(missing(key.rsplit(".", maxsplit=1)[-1]))
    return whole(value, key)


def missing(name: str) -> str:
    """Return the sentence that a log and its facts file lack a number."""
    return f"the log does not report {name}, and no {FACTS_FILE} next to it does"


def whole(value: Any, name: str) -> int:
    """Return a positive whole number, or raise UnknownError for anything else."""
    if type(value) is not int or value < 1:
        raise UnknownError(f"{name} is not known")
    return value


def known(value: float | None, name: str) -> float:
    """Return a value, or raise UnknownError if it is absent."""
    if value is None:
        raise UnknownError(f"{name} is not known")
    return value


def scientific(flops: float) -> str:
    """Return FLOPs to four digits, with a power of ten."""
    return f"{flops:.3e}".replace("e+", "e").replace("e0", "e")


def tera(flops_per_s: float) -> str:
    """Return TFLOP/s to four digits."""
    return significant(flops_per_s / 1e12, 4)
