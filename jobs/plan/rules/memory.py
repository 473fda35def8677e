"""Rule of memory: the least that a rank may need fits its GPU. It relies on all other rules."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING

from jobs.engines.engine import engine_of
from jobs.plan.predict.memory import Prediction, memory
from jobs.plan.predict.states import states
from jobs.plan.rules.rule import Rule
from jobs.schema import ActivationCheckpointing, Run
from jobs.work.work import work_of

if TYPE_CHECKING:
    from jobs.runtime.steps import Samples  # which imports NumPy

GIB = 2**30
"""Makers count the memory of a GPU in GiB and write GB: an H100 of 80 GB reports 79.6 GiB."""
MOST_STATES = 0.8
"""Largest part of a GPU's memory that a proposal fills with states: activations need the rest."""


class Verdict(Enum):
    """Comparison of the predicted interval with the memory of the GPU."""

    fits = "fits"
    """Its upper end fits."""
    tight = "tight"
    """Its lower end fits."""
    too_large = "does not fit"
    """Not even its lower end fits."""


def is_checked(run: Run) -> bool:
    """Return whether a run that does not fit is refused."""
    return work_of(run).is_predicted and run.gpu.memory_check


def states_fit(run: Run) -> str | None:
    """Refuse a run whose weights, gradients and optimizer state alone are larger than the memory of its GPU."""
    if run.gpu.memory_gb is None or not is_checked(run) or leaves_room(run, 1.0):
        return None
    what, remedy = work_of(run).states_in_words(run, states(run))
    return (
        f"{run.model.name} does not fit gpu={run.gpu.name} of {run.gpu.memory_gb:g} GB: {what}. {remedy}, or set "
        "gpu.memory_check=false to try it anyway."
    )


def prediction_fits(run: Run, samples: Samples | None = None) -> str | None:
    """Refuse a run whose predicted memory is larger than that of its GPU even at the lower end of the interval."""
    # States that do not fit are states_fit's refusal: one line for one cause.
    if run.gpu.memory_gb is None or not is_checked(run) or not leaves_room(run, 1.0):
        return None
    predicted = memory(run, samples)
    if verdict(run, predicted) is not Verdict.too_large:
        return None
    advice = "Keep fewer activations, shard over more GPUs" if run.job.train else "Choose a GPU with more memory"
    return (
        f"{run.model.name} does not fit gpu={run.gpu.name} ({in_words(run, predicted)}). {advice}, or set "
        "gpu.memory_check=false to try it anyway."
    )


def memory_is_tight(run: Run, samples: Samples | None = None) -> str | None:
    """Warn of a run whose predicted memory may be larger than that of its GPU."""
    if run.gpu.memory_gb is None or not work_of(run).is_predicted:
        return None
    predicted = memory(run, samples)
    found = verdict(run, predicted)
    if found is Verdict.too_large and not run.gpu.memory_check:
        return in_words(run, predicted, "memory is too small (gpu.memory_check=false), ")
    if found is not Verdict.tight:
        return None
    probably = " and probably too small" if predicted.device.point > usable_bytes(run, run.gpu.memory_gb) else ""
    return in_words(run, predicted, f"memory is tight{probably}, ") + recomputation(run, predicted, samples)


def recomputation(run: Run, predicted: Prediction, samples: Samples | None) -> str:
    """Return what a run would take if it kept the inputs of layers only, where activations are its largest term."""
    mode = ActivationCheckpointing.full
    # Pipelines have schedules that cannot compute twice (jobs.engines.native.rules).
    can = run.job.train and engine_of(run).counts_memory and run.parallelism.pipeline == 1
    if not can or predicted.largest != "activations" or run.engine.activation_checkpointing is mode:
        return ""

    def with_layers(count: int | None) -> Prediction:
        engine = replace(run.engine, activation_checkpointing=mode, checkpointed_layers=count)
        return memory(replace(run, engine=engine), samples)

    words = f"; {gigabytes(with_layers(None).device.point)} with engine.activation_checkpointing={mode.name}"
    fewer = range(1, run.model.layers)
    enough = bisect_left(fewer, True, key=lambda count: verdict(run, with_layers(count)) is Verdict.fits)
    return words + (f", enough from engine.checkpointed_layers={fewer[enough]} on" if enough < len(fewer) else "")


def verdict(run: Run, predicted: Prediction) -> Verdict | None:
    """Return the comparison with the GPU; None if its memory is unknown."""
    if run.gpu.memory_gb is None:
        return None
    size = usable_bytes(run, run.gpu.memory_gb)
    if predicted.device.low > size:
        return Verdict.too_large
    return Verdict.fits if predicted.device.high <= size else Verdict.tight


def chance_to_fit(run: Run, predicted: Prediction) -> float:
    """Return the probability that a run fits its GPU; 1 if the GPU's memory is unknown, 0 if `plan` refuses it."""
    if run.gpu.memory_gb is None:
        return 1.0
    if not leaves_room(run, 1.0) or verdict(run, predicted) is Verdict.too_large:
        return 0.0
    return predicted.device.chance_below(usable_bytes(run, run.gpu.memory_gb))


def in_words(run: Run, predicted: Prediction, result: str = "") -> str:
    """Return a prediction: `uncalibrated: predicted 71.2 GB (59.3 to 93.1) of 85.9 (80 GiB), most of it loss 33.1`."""
    device, term, gib = predicted.device, predicted.largest, run.gpu.memory_gb
    part = engine_of(run).memory_share(run)
    whole = "" if gib is None else f"{gib:g} GiB" if part == 1 else f"{part:g} of {gib:g} GiB"
    size = "" if gib is None else f" of {gigabytes(usable_bytes(run, gib))} ({whole})"
    rows = f" with rows of {predicted.shortest_row} tokens," if predicted.shortest_row else ""
    known = predicted.largest_micro_batch
    read = f" for the samples read, at most {known:,} tokens in a micro-batch" if known else ""
    return (
        f"{predicted.basis.partition(':')[0]}: {result}predicted {gigabytes(device.point)} GB "
        f"({gigabytes(device.low)}{rows} to {gigabytes(device.high)}){size}{read}, most of it {term} "
        f"{gigabytes(predicted.terms[term].point)}"
    )


def gigabytes(size: float) -> str:
    """Return bytes in GB with one decimal."""
    return f"{size / 1e9:,.1f}"


def leaves_room(run: Run, part: float = MOST_STATES) -> bool:
    """Return whether the training states take at most this part of the GPU's memory, where that is known."""
    return run.gpu.memory_gb is None or states(run).total <= part * usable_bytes(run, run.gpu.memory_gb)


def usable_bytes(run: Run, memory_gb: float) -> float:
    """Return the bytes of a GPU of this many GiB that a run can use."""
    return engine_of(run).memory_share(run) * memory_gb * GIB


def is_proposed(run: Run) -> bool:
    """Return whether a run may be proposed: its states leave room, and its predicted memory fits."""
    if run.gpu.memory_gb is None:
        return True
    # A server has no activations to leave room for.
    part = MOST_STATES if work_of(run).has_batch else 1.0
    # By the point, not the lower end, which `plan` still accepts: a proposal should fit more likely than not.
    return leaves_room(run, part) and memory(run).device.point <= usable_bytes(run, run.gpu.memory_gb)


RULES: tuple[Rule, ...] = (states_fit, prediction_fits)
