"""Memory of the GPU of the rank with the most, at the moment of a step that holds the most, by term and with interval.

Three moments compete: the update, with all gradients; the loss, with all activations; and backward of the last layers,
with the buffers that gather weights and reduce gradients. Pipeline ranks differ in layers, in the micro-batches that
they hold, and in embedding and head.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import TYPE_CHECKING

from jobs.engines.engine import engine_of
from jobs.engines.native.loss_chunk import loss_chunk
from jobs.layout import accumulation, pipeline_stages_of, pipeline_stages_per_rank
from jobs.plan.pipeline_stages import checkpointed_layers, pipeline_stage_layers
from jobs.plan.predict import other_engines
from jobs.plan.predict.activations import (
    Tokens,
    cast_weights,
    kept_by_layer,
    kept_by_layers,
    kinds_of_kept,
    layer_input,
    recomputed,
    rotary_table,
    run_of_layer,
    tokens_of,
    with_rows,
)
from jobs.plan.predict.arrays import larger
from jobs.plan.predict.calibration import Fit, basis, calibration_of
from jobs.plan.predict.constants import MemoryConstants
from jobs.plan.predict.evaluation import evaluation_moments
from jobs.plan.predict.in_flight import in_flight
from jobs.plan.predict.interval import Interval
from jobs.plan.predict.loss import loss_memory
from jobs.plan.predict.once import once
from jobs.plan.predict.states import States, parameters_held, states
from jobs.plan.predict.weights import counts_of_layers
from jobs.plan.predict.workspace import (
    Backward,
    backward_of_layer,
    end_of_backward,
    first_gradients,
    freed_in_backward,
    gathered_copies,
    gathers_for_backward,
    gathers_for_loss,
    head_gradient,
    masks_of_layer,
    pipeline_messages,
    scores_of_layer,
    tied_gathers,
    tied_gradient,
)
from jobs.schema import ActivationCheckpointing, Run
from jobs.work.work import work_of

if TYPE_CHECKING:
    from jobs.runtime.steps import Samples  # which imports NumPy

Terms = dict[str, float]
"""Bytes by term."""
STATES = ("weights", "gradients", "optimizer", "gathered", "kv_cache")
CONSTANT = ("weights", "optimizer", "kv_cache")
"""Terms that are equal at all moments."""
FRAMEWORK = Interval(1.2e9, 0.4e9, 3.5e9)
"""CUDA's context and libraries, workspaces of cuBLAS, NCCL's buffers: not allocated by torch. From experience with
A100 and H100: an idle context takes 0.4 to 0.6 GB, each NCCL communicator some tens of MB. Not measured here."""
FRAGMENTS = Interval(0.03, 0.0, 0.15)
"""Share of the allocated memory that lies in fragments of the allocator's segments: none at best, and with rows of
changing length without expandable segments more. Ten runs of the native engine on one H100 had 1.4 to 11.8 %, 3.5 % in
the median, and LitGPT's scripts 15 % (tests/README.md, On a GPU)."""
# Low and high limit as shares of the point, by term. What the native engine holds is counted, not measured on a GPU.
EXACT = (1.0, 1.0)
COUNTED = (0.9, 1.1)
COMPILED = (0.45, 1.1)
BUFFERS = (0.5, 1.5)
WITH_ADAPTERS = (0.5, 2.2)
"""Other engines may keep the inputs of frozen matrices, a fifth of what a layer keeps."""
UNCALIBRATED = "by arithmetic, not fitted to runs on this GPU"
CONSTANT_OF = {
    **dict.fromkeys(STATES, "states"),
    **dict.fromkeys(("activations", "backward", "communication"), "activations"),
    "loss": "loss",
}
"""The constant of jobs.plan.predict.constants that multiplies a term."""
MemoryWork = tuple[Mapping[str, float], ...]
"""Bytes by constant, at each moment that may hold the most."""


@dataclass(frozen=True)
class Prediction:
    """Predicted memory of one GPU."""

    terms: dict[str, Interval]
    """Bytes by term, largest first."""
    basis: str
    """Calibration of the interval, as text."""
    shortest_row: int | None = None
    """Tokens of the rows that the lower end supposes, where rows may be shorter than `job.sequence_length`."""
    largest_micro_batch: int | None = None
    """Tokens of the largest micro-batch, where the samples are known."""

    @property
    def allocated(self) -> Interval:
        """Return the bytes of tensors, which torch reports as its peak."""
        return total([size for term, size in self.terms.items() if term not in BESIDE_TENSORS])

    @cached_property
    def device(self) -> Interval:
        """Return the bytes that the run takes from its GPU.

        Tensors are off to one side together, by how an implementation keeps them, and their usual share of fragments
        with them. A larger share, and the framework's memory, have other causes.
        """
        fragments, framework = (self.terms[term] for term in BESIDE_TENSORS)
        larger_share = Interval(0.0, fragments.low - fragments.point, fragments.high - fragments.point)
        return self.allocated.scaled(1 + FRAGMENTS.point).and_independent(larger_share, framework)

    def record(self) -> dict[str, object]:
        """Return the prediction as plan.json contains it."""
        return {
            "basis": self.basis,
            "allocated_bytes": self.allocated.record(),
            "device_bytes": self.device.record(),
            "terms_bytes": {term: size.record() for term, size in self.terms.items()},
        }

    @property
    def largest(self) -> str:
        """Return the name of the largest term."""
        return next(iter(self.terms))


SOURCES = {
    "weights": "bytes of the tensors that the rank with the most holds",
    "gradients": "bytes of the tensors that the rank with the most holds",
    "optimizer": "bytes of the tensors that the rank with the most holds",
    "gathered": "weights of other ranks in the type of the arithmetic",
    "kv_cache": "keys and values of one request of job.sequence_length",
    "activations": "tensors kept for backward, counted in the engine's own code",
    "loss": "logits, log-softmax and gradients, counted in the engine's own code",
    "backward": "gradients of one layer, and what it computes again",
    "communication": "buffers of FSDP and of the pipeline",
    "fragments": "share of the allocated memory, as on one H100",
    "framework": "CUDA context, libraries and NCCL, from experience",
}


def source_of(run: Run, term: str) -> str:
    """Return the source of a term as text."""
    if not engine_of(run).counts_memory and term in {"activations", "loss", "backward"}:
        return "formula (Korthikanti et al. 2022), wider interval"
    if not run.job.train and term in {"activations", "loss"}:
        return "tensors of a forward pass, counted in the engine's own code"
    if term == "weights" and run.job.quantizes_base:
        return (
            "bytes of the tensors that the rank with the most holds; a matrix of a layer in 4 bits per number, with 1 "
            "byte for 64 numbers and 4 for 16,384"
        )
    return SOURCES[term]


BESIDE_TENSORS = ("fragments", "framework")


def total(sizes: list[Interval]) -> Interval:
    """Return the sum of intervals."""
    return sum(sizes, Interval(0.0, 0.0, 0.0))


@once
def memory(run: Run, samples: Samples | None = None) -> Prediction:
    """Return the predicted memory of a run that jobs.plan.legality has passed.

    Without `samples` the longest ones have job.sequence_length tokens.
    """
    if not run.job.train:
        # An evaluation has no adapters and no virtual tokens.
        run = replace(run, job=replace(run.job, lora=None, prompt_tuning=None))
    # A fit has one interval for the sum of all tensors; without one, each term has limits of its own.
    fit = calibration_of(run).memory
    constants = MemoryConstants() if fit is None else fit.constants
    read = samples.tokens if samples else None
    short = tokens_of(with_rows(run, read.computed)) if read else tokens_of(run, fewest=True)
    if read:
        # The largest micro-batch may be the first one of a step, which finds no gradients yet. Then a later one of mean
        # size may hold the most.
        run = with_rows(run, read.most)
    full = tokens_of(run)
    most = largest_moment(run, full, constants)
    least = most if short == full else largest_moment(run, short, constants)
    known = limits_of(run) if fit is None else fitted_limits(run, fit)
    limits = {term: known.get(term, EXACT) for term in {*most, *least}}
    # With short rows another moment may be the largest. Its sum, without the terms that are equal at all moments, is
    # the lower end, which the terms of the full rows' moment share in their proportions.
    lowest, lower = (
        sum(limits[term][0] * size for term, size in terms.items() if term not in CONSTANT) for terms in (least, most)
    )
    shares = {term: limits[term][0] * (1 if term in CONSTANT or not lower else lowest / lower) for term in most}
    terms = {term: Interval(x, shares[term] * x, limits[term][1] * x) for term, x in most.items()}
    allocated = total(list(terms.values()))
    terms["fragments"] = FRAGMENTS.scaled(allocated.point)
    terms["framework"] = FRAMEWORK
    ordered = sorted(terms.items(), key=lambda item: -item[1].point)
    shortest = None if read or short == full else short.count // run.job.micro_batch_size * run.parallelism.context
    largest = full.count * run.parallelism.context if read else None
    return Prediction({term: size for term, size in ordered if size.high}, basis(fit, UNCALIBRATED), shortest, largest)


def limits_of(run: Run) -> dict[str, tuple[float, float]]:
    """Return the limits of the terms that are not exact."""
    if engine_of(run).counts_memory:
        activations = COMPILED if run.engine.compile and run.job.train else COUNTED
        return {"activations": activations, "loss": COUNTED, "backward": activations, "communication": BUFFERS}
    limits = engine_of(run).activation_limits if run.job.lora is None else WITH_ADAPTERS
    return dict.fromkeys(("activations", "loss", "backward", "communication"), limits)


def fitted_limits(run: Run, fit: Fit[MemoryConstants]) -> dict[str, tuple[float, float]]:
    """Return the limits of all terms by a calibration: each has its part of the interval of their sum."""
    work = memory_work(run)
    size = fit.interval(lambda constants: counted_bytes(work, constants))
    return dict.fromkeys(CONSTANT_OF, (size.low / size.point, size.high / size.point))


def largest_moment(run: Run, x: Tokens, constants: MemoryConstants) -> Terms:
    """Return the terms of the largest moment of all pipeline ranks."""
    found = [
        {term: getattr(constants, CONSTANT_OF[term]) * size for term, size in moment.items()}
        for moment in moments_of_ranks(run, x)
    ]
    return max(found, key=lambda terms: sum(terms.values()))


def memory_work(run: Run, place: int | None = None) -> MemoryWork:
    """Return what the tensors of a run take on one pipeline rank, or on that with the most, without constants."""
    found = []
    for moment in moments_of_ranks(run, tokens_of(run), place):
        sizes = dict.fromkeys(CONSTANT_OF.values(), 0.0)
        for term, size in moment.items():
            sizes[CONSTANT_OF[term]] += size
        found.append(sizes)
    return tuple(found)


def counted_bytes(work: MemoryWork, constants: MemoryConstants) -> float:
    """Return the largest moment's bytes; constants may be arrays of draws."""
    sizes: list[float] = [sum(getattr(constants, name) * size for name, size in moment.items()) for moment in work]
    return reduce(larger, sizes)


def moments_of_ranks(run: Run, x: Tokens, place: int | None = None) -> Iterator[Terms]:
    """Yield the moments of one pipeline rank, or of all."""
    # As an upper bound, the states of the rank with the most are combined with the activations of each rank.
    held = states(run)
    for each in unlike_places(run) if place is None else (place,):
        yield from moments(run, each, x, held)


def unlike_places(run: Run) -> list[int]:
    """Return the pipeline ranks that may hold the most: of those with equal layers, one with most micro-batches."""
    stages, last = pipeline_stage_layers(run), run.parallelism.pipeline * pipeline_stages_per_rank(run) - 1
    found: dict[tuple[object, ...], int] = {}
    for place in range(run.parallelism.pipeline):
        mine = pipeline_stages_of(run, place)
        layers = counts_of_layers(run.model, [layer for stage in mine for layer in stages[stage]])
        key = (0 in mine, last in mine, *layers.items())
        if key not in found or in_flight(run, place) > in_flight(run, found[key]):
            found[key] = place
    return list(found.values())


def moments(run: Run, place: int, x: Tokens, held: States) -> Iterator[Terms]:
    """Yield the moments of a pipeline rank. The states are those of the rank with the most."""
    base: Terms = {name: float(getattr(held, name)) for name in STATES}
    yield base
    if not work_of(run).has_batch:
        return
    if not run.job.train:
        yield from (base | moment for moment in evaluation_moments(run, x))
    elif engine_of(run).counts_memory:
        yield from native_moments(run, place, x, base)
    else:
        yield from other_moments(run, place, x, base)


def native_moments(run: Run, place: int, x: Tokens, base: Terms) -> Iterator[Terms]:
    """Yield the loss, and moments of backward: of the last layer, the one before it, its end, and the first ones.

    Where only the first layers are checkpointed, also that of the last one of these.

    The first micro-batch finds no gradients: they appear while activations are freed, so with one micro-batch per step
    all gradients meet the activations of the first layer only.
    """
    stages = pipeline_stage_layers(run)
    mine = pipeline_stages_of(run, place)
    numbers, count = [layer for stage in mine for layer in stages[stage]], in_flight(run, place)
    first, last = 0 in mine, run.parallelism.pipeline * pipeline_stages_per_rank(run) - 1 in mine
    # Runs of a model with only such layers as the first one of this rank, the one before the last, and the last one.
    begin_run, before_run, end_run = (run_of_layer(run, each) for each in (numbers[0], numbers[-2:][0], numbers[-1]))
    again = checkpointed_layers(run)
    whole = [number for number in numbers if number not in again]
    base = base | {
        "gathered": base["gathered"] + gathered_copies(run, parameters_held(run, sharded=False, stored=True).total)
    }
    each, result = kept_by_layer(end_run, x), x.count * run.model.hidden_size * x.width
    kept = count * kept_by_layers(run, x, numbers) + rotary_table(run, x)
    # A stage that is not the last keeps what it sent: the gradient of that tensor is where its backward pass begins.
    kept += 0 if last else count * layer_input(run, x)
    once = accumulation(run) == 1
    at_end, base = base, base | {"gradients": 0.0 if once else base["gradients"]}
    messages = pipeline_messages(run, x, first=first, last=last)
    if last:
        # Autocast keeps all casts until the end of forward. Chunks cast the head's weight themselves.
        loss, head = loss_memory(run, x), loss_chunk(run) is None
        for peak, cast in ((loss.forward, numbers), (loss.backward, whole)):
            held_by_layers = kept + cast_weights(run, cast, head=head)
            of_loss = gathers_for_loss(run) + messages
            yield base | {"activations": held_by_layers, "loss": peak, "communication": of_loss}
    # A checkpointed layer casts its weights again.
    uncast, kept = kept, kept + cast_weights(run, [*whole, *(again & {numbers[-1]})], head=False)

    def work_of_layer(of: Run) -> int:
        return recomputed(of, x) + max(backward_of_layer(of, x), masks_of_layer(of, x), scores_of_layer(of, x))

    # Layers with experts and dense ones may take turns: the larger of both orders.
    pairs = ((end_run, before_run), (before_run, end_run))
    of_last = messages + gathers_for_backward(*pairs[0], Backward.last)
    begin, before, after = (
        messages + max(gathers_for_backward(*pair, moment) for pair in pairs)
        for moment in (Backward.begin, Backward.before, Backward.after)
    )
    # Autograd holds the whole gradient of a tied head until it can add that of the embedding.
    tied = tied_gradient(run)
    if once and last:
        base = base | {"gradients": 0.0 if tied else head_gradient(run)}
    yield base | {"activations": kept, "backward": work_of_layer(end_run) + tied, "communication": of_last}
    if first:
        # Its gradient is computed next to the sum of those before it.
        # The oldest micro-batch has freed all its activations by then; the others in flight still wait.
        waiting = (count - 1) * sum(n * kept_by_layer(kind, x) for n, kind in kinds_of_kept(run, numbers))
        found, buffers = result + end_of_backward(run, single=once), messages + tied_gathers(begin_run)
        yield at_end | {"activations": waiting, "backward": found, "communication": buffers}
        if once:
            at_end = at_end | {"gathered": 0.0, "gradients": max(0.0, at_end["gradients"] - first_gradients(begin_run))}
            waiting += kept_by_layer(begin_run, x)
            found = work_of_layer(begin_run) + tied
            yield at_end | {"activations": waiting, "backward": found, "communication": before}
    done = next((i for i, number in enumerate(reversed(numbers)) if number in again), 0)
    if done > 1:
        # All layers after the last checkpointed one have freed what they kept, and have gradients.
        left = numbers[:-done]
        held = uncast - done * each + cast_weights(run, [n for n in left if n not in again] + left[-1:], head=False)
        gradients = base["gradients"] + done / len(numbers) * max(0.0, at_end["gradients"] - base["gradients"])
        work = {"backward": work_of_layer(run_of_layer(run, left[-1])) + tied, "communication": before}
        yield base | work | {"activations": held, "gradients": gradients}
    if len(numbers) > 1:
        base = base | {"gathered": max(0.0, base["gathered"] - freed_in_backward(end_run))}
        yield base | {"activations": kept - each, "backward": tied, "communication": begin}
        yield base | {"activations": kept - each, "backward": work_of_layer(before_run) + tied, "communication": before}
        yield base | {"activations": kept - 2 * each, "backward": 3 * result + tied, "communication": after}


def other_moments(run: Run, place: int, x: Tokens, base: Terms) -> Iterator[Terms]:
    """Yield the loss and backward of engines whose memory is estimated by formula.

    Megatron and DeepSpeed allocate all gradients in advance, LitGPT does with the first micro-batch of a step.
    """
    if not engine_of(run).allocates_gradients_first and accumulation(run) == 1:
        base = base | {"gradients": 0.0}
    base = base | {"communication": float(engine_of(run).buffer_bytes(run))}
    stages = pipeline_stage_layers(run)
    mine = pipeline_stages_of(run, place)
    layers, count = sum(len(stages[stage]) for stage in mine), in_flight(run, place)
    kept = count * layers * other_engines.kept_by_layer(run, x)
    last = run.parallelism.pipeline * pipeline_stages_per_rank(run) - 1 in mine
    checkpointed = run.engine.activation_checkpointing is not ActivationCheckpointing.none
    work = (engine_of(run).layer_bytes(run, x) if checkpointed else 0) + backward_of_layer(run, x)
    if last:
        yield base | {"activations": kept, "loss": other_engines.loss(run, x)}
    yield base | {"activations": kept, "backward": work}
