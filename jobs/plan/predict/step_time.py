"""Step time of a run, as work that arithmetic counts and constants that a cluster has.

    step = slots x slot + gradients + optimizer + constant          slots = micro-batches + bubble
    slot = max(matrices + attention + element-wise, launches) + exposed TP, CP, EP, PP and FSDP traffic

A slot is the forward and backward pass of a micro-batch on the pipeline rank with the most work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

from jobs.engines.engine import Overlap, engine_of
from jobs.engines.native.optimizers.optimizer import moved_bytes, optimizer_of
from jobs.layout import Layout, accumulation, layout_of, linked_ranks, pipeline_stages_of, pipeline_stages_per_rank
from jobs.parallelism import DP_REPLICATE, DP_SHARD, PP, Schedule
from jobs.plan.cost import embedding_parameters
from jobs.plan.pipeline_stages import pipeline_stage_layers
from jobs.plan.predict import communication as c
from jobs.plan.predict import matrix_products as m
from jobs.plan.predict.activations import WIDTHS, dispatches_parts
from jobs.plan.predict.arrays import larger, smaller
from jobs.plan.predict.constants import FLOAT8_SPEEDUP, NVFP4_SPEEDUP, REACHABLE, StepTimeConstants
from jobs.plan.predict.interval import Interval
from jobs.plan.predict.states import layer_as_stored
from jobs.plan.predict.weights import run_with_layers, size
from jobs.schema import Float8Recipe, Precision, Run

OVERLAP = 0.8
"""Share of computation behind which traffic can hide that is started early enough; an estimate."""
BACKWARD, FORWARD = 2 / 3, 1 / 3
"""Shares of computation."""
IMBALANCE = Interval(1.1, 1.0, 1.5)
"""Tokens of the busiest rank of an EP group over the mean, of routers that are trained to balance: an estimate without
a published value. A rank with several experts is closer to the mean than its busiest expert."""
HOST_OF_EXPERTS = 2.5
"""Host's time for a layer with experts over that for a dense one: router, permutations and all-to-alls are kernels too,
and it waits for numbers of tokens. One micro-batch of Qwen3-30B-A3B takes 8.8 and 9.2 ms for each layer on B200 and
9.4 ms on H100, whatever the layout (Megatron-Bridge 25.11 to 26.02, docs/performance-summary-archive.md)."""
SHARPNESS = 4
"""Exponent of the smooth maximum of device and host time, which differ from layer to layer."""


class Part(NamedTuple):
    """The part of a model on a pipeline rank."""

    dense: int
    """Dense layers of a mixture of experts (Model.is_dense)."""
    layers: int
    """All other layers."""
    has_embedding: bool
    has_head: bool


@dataclass(frozen=True)
class StageWork:
    """Work of a pipeline rank in a slot, without constants; seconds are at the data sheet's rates."""

    ranks: int
    """Pipeline ranks with this work."""
    layers: float
    """Those that the host launches: one with experts counts as HOST_OF_EXPERTS dense ones."""
    passes: float
    """Forward and backward passes of each layer that the host launches: 4/3 with full recomputation."""
    matrix_s: float
    expert_s: float
    """The part of it in experts that EP divides, if all are equally busy."""
    matrix_bytes_s: float
    """Operands of the matrix products, from and to memory."""
    attention_s: float
    element_s: float
    optimizer_s: float
    """Update of its weights, once per step."""
    tensor: c.Exchange
    expert_tensor: c.Exchange
    """Traffic of TP in experts, which no engine hides."""
    context: c.Exchange
    expert: c.Dispatch
    pipeline: c.Exchange
    shard: c.ShardExchange
    expert_shard: c.ShardExchange
    """Traffic of FSDP for the experts that EP divides: only the ranks with the same experts shard them."""
    replica: c.Exchange
    """Once per step."""
    expert_replica: c.Exchange
    """The same for experts that replicas divide (Megatron's EP)."""
    overlap: Overlap


@dataclass(frozen=True)
class StepWork:
    """Work of a run's ranks in a step, without constants."""

    stages: tuple[StageWork, ...]
    micro_batches: int
    bubble: float
    """Idle slots of a pipeline."""
    last_micro_batches: int
    """Those during which one stage of a rank after the other completes its gradients: a round of the pipeline where a
    rank has several stages, else one."""
    links: c.Links
    pipeline_domains: int
    """Nodes of the run, or NVLink domains of several nodes, if it has a pipeline; else 1."""
    tokens: float
    """Tokens of a step, of all ranks."""
    ranks: int
    imbalance: float = 1.0
    """Tokens of the rank with the busiest experts over the mean, which all ranks of an EP group wait for."""


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step by cause; their sum is the step time."""

    matrices: float
    attention: float
    element_wise: float
    launches: float
    tensor_parallel: float
    context_parallel: float
    expert_parallel: float
    pipeline_parallel: float
    data_parallel: float
    bubble: float = 0.0
    optimizer: float = 0.0
    overhead: float = 0.0
    """Time of every step that does not depend on its work."""

    @property
    def total(self) -> float:
        """Return the step time in seconds."""
        seconds: float = sum(vars(self).values())
        return seconds


def peak_flops_per_s(run: Run) -> float | None:
    """Return the dense peak of a run's GPU in its arithmetic; None if it is not known."""
    peaks = {
        Precision.bfloat16: run.gpu.peak_bf16_tflops,
        Precision.float16: run.gpu.peak_fp16_tflops,
        Precision.float32: (run.engine.tf32 and run.gpu.peak_tf32_tflops) or run.gpu.peak_fp32_tflops,
    }
    peak = peaks[run.job.precision]
    return None if peak is None else peak * 1e12


def matmul_flops_per_s(run: Run, peak: float) -> float:
    """Return the largest rate of matrix products in a run's arithmetic, given the peak."""
    measured = run.gpu.matmul_bf16_tflops
    if measured is None or run.job.precision is Precision.float32:
        return REACHABLE * peak
    return measured * 1e12


def flops_in_layers_per_s(run: Run, rate: float) -> float:
    """Return the largest rate of matrix products in layers, given that in the type of the arithmetic."""
    recipe, gpu = engine_of(run).float8_recipe(run), run.gpu
    if recipe is None:
        return rate
    float8 = FLOAT8_SPEEDUP * rate if gpu.matmul_fp8_tflops is None else gpu.matmul_fp8_tflops * 1e12
    match recipe:
        case Float8Recipe.mxfp8:
            return float8 if gpu.matmul_mxfp8_tflops is None else gpu.matmul_mxfp8_tflops * 1e12
        case Float8Recipe.nvfp4:
            return NVFP4_SPEEDUP * float8 if gpu.matmul_nvfp4_tflops is None else gpu.matmul_nvfp4_tflops * 1e12
        case _:
            return float8


def step_work(run: Run) -> StepWork | None:
    """Return the work of a run that jobs.plan.legality has passed; None if its GPU's rates are not known."""
    peak, memory = peak_flops_per_s(run), run.gpu.memory_gb_per_s
    if peak is None or memory is None:
        return None
    layout = layout_of(run)
    return StepWork(
        stages=tuple(
            stage_work(run, layout, part, count, peak=peak, memory_bytes_per_s=memory * 1e9)
            for part, count in pipeline_ranks(run).items()
        ),
        micro_batches=accumulation(run),
        bubble=bubble(run),
        last_micro_batches=run.parallelism.pipeline if pipeline_stages_per_rank(run) > 1 else 1,
        links=c.links_of(run),
        pipeline_domains=-(-run.ranks // linked_ranks(run)) if layout.degree(PP) > 1 else 1,
        tokens=run.global_batch_size * run.job.sequence_length,
        ranks=run.ranks,
        imbalance=1.0 if run.parallelism.expert == 1 else IMBALANCE.point,
    )


def stage_work(
    run: Run, layout: Layout, part: Part, ranks: int, *, peak: float, memory_bytes_per_s: float
) -> StageWork:
    """Return the work of the pipeline ranks that hold a part of the model.

    `peak` (FLOP/s) and `memory_bytes_per_s` are the data sheet's: work becomes seconds here, and the constants of
    `slot_time` divide these by the efficiencies.
    """
    dense, layers, has_embedding, has_head = part
    by_kind = {True: dense, False: layers}
    kinds = [(count, run_with_layers(run, dense=kind)) for kind, count in by_kind.items() if count]
    # Recomputation does not repeat the head: its passes are forward and the gradients of input and weight. A frozen
    # head has no gradient of its weight.
    products = [(count, each) for count, kind in kinds for each in m.layer_products(kind)]
    head = m.head_product(run)
    repeats, head_repeats = m.passes(run), (3 if run.job.trains_all_weights else 2) * has_head
    rate = matmul_flops_per_s(run, peak)
    in_layers_rate = flops_in_layers_per_s(run, rate)
    flops = sum(count * each.flops for count, each in products)
    expert_flops = 0.0
    if run.parallelism.expert > 1 and layers:
        expert_flops = layers * sum(each.flops for each in m.feed_forward_products(kinds[-1][1]))
    matrix_s = repeats * flops / in_layers_rate + head_repeats * head.flops / rate
    width = WIDTHS[run.job.precision]
    # Few bits are read; what a product writes, and the head, stay in the type of the arithmetic.
    recipe = engine_of(run).float8_recipe(run)
    read = width if recipe is None else m.NUMBER_BYTES[recipe]
    of_layers = sum(count * (read * each.read + width * each.written) for count, each in products)
    moved = repeats * of_layers + head_repeats * width * (head.read + head.written)
    # A tied embedding and head are one tensor, which is updated and exchanged once.
    ends = max(has_embedding, has_head) if run.model.tie_embeddings else has_embedding + has_head
    weights = [(count, layer_as_stored(kind)) for count, kind in kinds]
    tensor = run.parallelism.tensor
    in_ends = ends * embedding_parameters(run.model) / tensor
    in_layers = sum(count * size(each) for count, each in weights) / tensor
    trained = in_layers + in_ends if run.job.trains_all_weights else 0
    # EP divides experts before FSDP shards them over the rest of the shard group.
    divided = sum(count * size(w for w in each if w.of_expert) for count, each in weights)
    divided = divided if run.parallelism.expert > 1 else 0
    of_experts = divided / run.parallelism.expert / tensor
    others = in_layers - divided / tensor
    # All replicas reduce and update what each of them holds; divided experts only the ranks that have the same ones.
    of_replicas = divided > 0 and engine_of(run).divides_experts_of_replicas and run.job.trains_all_weights
    reduced = trained - divided / tensor if of_replicas else trained
    shards = update_shards(run, layout)
    updated = reduced + of_experts * min(shards, run.parallelism.expert) if of_replicas else trained
    alone = c.Exchange(c.Group(1, 1))
    count, optimizer = dense + layers, optimizer_of(run)
    parts = run.model.experts > 0 and dispatches_parts(run)
    update_flops = sum(
        count * w.copies / (run.parallelism.expert if w.of_expert else 1) * optimizer.update_flops(w)
        for count, each in weights
        for w in each
    )
    return StageWork(
        ranks=ranks,
        layers=dense + layers * (HOST_OF_EXPERTS if run.model.experts else 1),
        passes=1 + m.recomputed_share(run) / 3,
        matrix_s=matrix_s,
        expert_s=repeats * expert_flops / in_layers_rate,
        matrix_bytes_s=moved / memory_bytes_per_s,
        attention_s=count * m.attention_flops(run) / peak,
        element_s=(
            sum(each * (m.element_bytes(kind) + m.rounded_bytes(kind)) for each, kind in kinds)
            + has_head * m.logits_bytes(run)
            + c.copied_bytes(run, layout, others + of_experts + in_ends, others + of_experts)
        )
        / memory_bytes_per_s,
        optimizer_s=moved_bytes(run) * updated / shards / memory_bytes_per_s
        + update_flops / max(run.parallelism.tensor, shards) / rate,
        # Attention, feed-forward, and the head, which gathers its input and reduces that input's gradient.
        tensor=c.tensor_exchange(run, layout, 2 * count + has_head - (layers if parts else 0)),
        expert_tensor=c.expert_tensor_exchange(run, layout, layers) if parts else alone,
        context=c.context_exchange(run, layout, count),
        expert=c.expert_dispatch(run, layout, layers),
        pipeline=c.pipeline_exchange(run, layout, pipeline_stages_per_rank(run)),
        shard=c.shard_exchange(run, layout, others + in_ends, others),
        expert_shard=c.shard_exchange(run, layout, of_experts, of_experts, axes=(DP_SHARD,)),
        replica=c.replica_exchange(run, layout, reduced),
        expert_replica=c.replica_exchange(run, layout, of_experts, (DP_REPLICATE,)) if of_replicas else alone,
        overlap=engine_of(run).overlap(run),
    )


def update_shards(run: Run, layout: Layout) -> int:
    """Return the ranks that share the update of one copy of the weights."""
    # ZeRO 1 and 2 divide the update by all replicas. FSDP's shard group does the update of its own shards only, and
    # HYBRID_SHARD's replicas repeat it: hence without the first axis, DP_REPLICATE.
    if c.shards_optimizer(run):
        return layout.product(c.DATA_AXES)
    return layout.product(c.DATA_AXES[1:]) if c.gathers_weights(run) else 1


def pipeline_ranks(run: Run) -> Counter[Part]:
    """Return how many pipeline ranks hold which part of the model."""
    numbers, is_dense = pipeline_stage_layers(run), run.model.is_dense
    found: Counter[Part] = Counter()
    for place in range(run.parallelism.pipeline):
        stages = pipeline_stages_of(run, place)
        dense = sum(is_dense[layer] for stage in stages for layer in numbers[stage])
        others = sum(len(numbers[stage]) for stage in stages) - dense
        found[Part(dense, others, 0 in stages, len(numbers) - 1 in stages)] += 1
    return found


def bubble(run: Run) -> float:
    """Return the idle slots of a pipeline rank: (PP - 1) / stages per rank (arXiv:2104.04473, section 2.2).

    Zero-bubble schedules fill a part with the gradients of weights (arXiv:2401.10241: ZB-H1 leaves a third).
    """
    p = run.parallelism
    idle = (p.pipeline - 1) / pipeline_stages_per_rank(run)
    match p.schedule:
        case Schedule.ZBVZeroBubble:
            return 0.0
        case Schedule.InterleavedZeroBubble:
            return idle / 3
        case _:
            return idle


def step_time(work: StepWork, constants: StepTimeConstants) -> StepTime:
    """Return the time of a step of some work on a machine with these constants, by cause.

    The causes are those of the slowest pipeline rank. `step_time_s` also takes the largest update and reduction of any
    rank, which may be another one, so it may be a little longer than their sum.
    """
    slots = [slot_time(stage, work, constants) for stage in work.stages]
    # Stages run at the same time, and each micro-batch passes all of them: the slowest one sets the rhythm.
    stage, slot = max(zip(work.stages, slots, strict=True), key=lambda each: each[1].total)
    one = slot_time(stage, work, constants, once=True)
    parts = {
        each.name: (work.micro_batches - 1) * getattr(slot, each.name) + getattr(one, each.name)
        for each in fields(slot)
    }
    parts["data_parallel"] += replica_s(stage, work, slot, constants)
    # An idle slot waits for a micro-batch on other ranks, so it lasts as long as theirs do on average, not the longest.
    parts["bubble"] = work.bubble * mean_slot_s(work, slots)
    parts["optimizer"] = stage.optimizer_s / constants.memory_efficiency
    parts["overhead"] = constants.step_s
    return StepTime(**parts)


def step_time_s(work: StepWork, constants: StepTimeConstants) -> float:
    """Return the time of a step in seconds, with each maximum taken by arithmetic: constants may be arrays of draws."""
    slots = [slot_time(stage, work, constants) for stage in work.stages]
    longest, once = slots[0].total, 0.0
    for stage, slot in zip(work.stages, slots, strict=True):
        longest = larger(longest, slot.total)
        update = stage.optimizer_s / constants.memory_efficiency
        sent = replica_s(stage, work, slot, constants)
        if stage.shard.one != stage.shard.each:
            sent += slot_time(stage, work, constants, once=True).total - slot.total
        once = larger(once, sent + update)
    return work.micro_batches * longest + work.bubble * mean_slot_s(work, slots) + once + constants.step_s


def mean_slot_s(work: StepWork, slots: Sequence[StepTime]) -> float:
    """Return the mean time of a slot over the pipeline ranks."""
    summed = sum(stage.ranks * slot.total for stage, slot in zip(work.stages, slots, strict=True))
    return summed / sum(stage.ranks for stage in work.stages)


def slot_time(stage: StageWork, work: StepWork, k: StepTimeConstants, *, once: bool = False) -> StepTime:
    """Return the time of a forward and backward pass of a micro-batch on a pipeline rank.

    With `once`, of the micro-batch that has what its shard group sends once per step.
    """
    busiest = stage.matrix_s + (work.imbalance - 1) * stage.expert_s
    matrices = busiest / k.matrix_share + stage.matrix_bytes_s / k.memory_efficiency
    attention = stage.attention_s / k.attention_share
    element_wise = stage.element_s / k.memory_efficiency
    computation = matrices + attention + element_wise
    # Without overlap a layer waits for TP's and CP's traffic, because it needs its result.
    tensor = exposed(c.seconds(stage.tensor, work.links, k), stage.overlap.tensor * matrices, k)
    tensor += work.imbalance * c.seconds(stage.expert_tensor, work.links, k)
    context = exposed(c.seconds(stage.context, work.links, k), stage.overlap.context * attention, k)
    # FSDP gathers the next layer during this one.
    sharded = (each.one if once else each.each for each in (stage.shard, stage.expert_shard))
    shard = exposed(sum(c.seconds(each, work.links, k) for each in sharded), computation, k)
    # A layer waits for its tokens, and for the rank that receives the most.
    expert = work.imbalance * c.dispatch_s(stage.expert, work.links, k)
    device = computation + tensor + context + expert + shard
    # A fit to a published sweep, not a mechanism that is understood (constants.pipeline_peer_latency_s).
    waits = (stage.tensor.group.ranks - 1) * k.pipeline_peer_latency_s if work.pipeline_domains > 1 else 0.0
    host = stage.layers * stage.passes * (k.layer_launch_s + waits)
    # Outside `device`: the host launches ahead while the GPU computes, but waits for a message of a neighbour.
    pipeline = exposed(c.seconds(stage.pipeline, work.links, k), stage.overlap.pipeline * computation, k)
    if stage.pipeline.group.ranks > 1:
        pipeline += k.slot_s
    return StepTime(
        matrices=matrices,
        attention=attention,
        element_wise=element_wise,
        launches=smooth_excess(device, host),
        tensor_parallel=tensor,
        context_parallel=context,
        expert_parallel=expert,
        pipeline_parallel=pipeline,
        data_parallel=shard,
    )


def replica_s(stage: StageWork, work: StepWork, slot: StepTime, k: StepTimeConstants) -> float:
    """Return the time that keeping replicas equal adds to a step.

    Gradients are complete in the last micro-batches only, and weights are needed from the first ones on.
    """
    computation = slot.matrices + slot.attention + slot.element_wise
    behind = work.last_micro_batches * (BACKWARD * stage.overlap.gradients + FORWARD * stage.overlap.weights)
    sent_s = sum(c.seconds(each, work.links, k) for each in (stage.replica, stage.expert_replica))
    return exposed(sent_s, behind * computation, k)


def exposed(sent_s: float, computation_s: float, k: StepTimeConstants) -> float:
    """Return the time that traffic adds to the computation that it can hide behind."""
    hidden = smaller(sent_s, OVERLAP * computation_s)
    return sent_s - (1 - k.contention) * hidden


def smooth_excess(device_s: float, host_s: float) -> float:
    """Return by how much the larger of both exceeds the device's time, smoothed."""
    # (d^p + h^p)^(1/p) is 1.19 times either one if both are equal, and the maximum if they differ by far. It is smooth
    # because a fit by derivatives learns nothing about a term that a hard maximum hides.
    summed: float = (device_s**SHARPNESS + host_s**SHARPNESS) ** (1 / SHARPNESS)
    return summed - device_s
