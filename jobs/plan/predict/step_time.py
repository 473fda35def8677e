"""Step time of a run, as work that arithmetic counts and constants that a cluster has.

    step = slots x slot + gradients + optimizer + constant          slots = micro-batches + bubble
    slot = max(matrices + attention + element-wise, launches) + exposed TP, CP, PP and FSDP traffic

A slot is the forward and backward pass of a micro-batch on the pipeline rank with the most work.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from jobs.layout import Layout, accumulation, layout_of, pipeline_stages_of, pipeline_stages_per_rank
from jobs.parallelism import PP, Schedule
from jobs.plan.cost import embedding_parameters, layer_parameters
from jobs.plan.pipeline_stages import layer_counts
from jobs.plan.predict import communication as c
from jobs.plan.predict import matrix_products as m
from jobs.plan.predict.constants import FLOAT8_SPEEDUP, Constants
from jobs.schema import Precision, Run

OVERLAP = 0.8
"""Share of computation behind which the traffic of sharded weights can hide (arXiv:2304.11277, section 5)."""
STATE_BYTES = 28
"""Bytes of a weight's update by AdamW in float32: read weight, gradient and two moments; write all but the gradient."""
SHARPNESS = 4
"""Exponent of the smooth maximum of device and host time, which differ from layer to layer."""


@dataclass(frozen=True)
class Work:
    """What the busiest pipeline rank of a run does, without constants."""

    micro_batches: int
    bubble: float
    """Idle slots of a pipeline."""
    layers: float
    passes: float
    """Forward and backward passes of a layer, in units of one of each: 4/3 with full recomputation."""
    matrix_s: float
    """Matrix products of a slot at the peak."""
    matrix_bytes_s: float
    """Their operands, at the bandwidth of the memory."""
    attention_s: float
    element_s: float
    optimizer_s: float
    tensor: c.Exchange
    context: c.Exchange
    pipeline: c.Exchange
    shard: c.Exchange
    replica: c.Exchange
    links: c.Links
    spans_nodes: bool
    """Whether the pipeline has ranks on more than one node."""
    tokens: float
    """Tokens of a step, of all ranks."""
    ranks: int


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step by cause; their sum is the step time."""

    matrices: float
    attention: float
    element_wise: float
    launches: float
    tensor_parallel: float
    context_parallel: float
    pipeline_parallel: float
    data_parallel: float
    bubble: float
    optimizer: float
    step: float

    @property
    def total(self) -> float:
        """Return the step time in seconds."""
        return sum(getattr(self, each.name) for each in fields(self))


def peak_flops_per_s(run: Run) -> float | None:
    """Return the dense peak of a run's GPU in its arithmetic; None where it is not known."""
    peaks = {
        Precision.bfloat16: run.gpu.peak_bf16_tflops,
        Precision.float16: run.gpu.peak_fp16_tflops,
        Precision.float32: run.gpu.peak_fp32_tflops,
    }
    peak = peaks[run.job.precision]
    return None if peak is None else peak * 1e12


def work_of(run: Run) -> Work | None:
    """Return the work of a run that jobs.plan.legality has passed; None where its GPU's rates are not known."""
    peak, memory = peak_flops_per_s(run), run.gpu.memory_gb_per_s
    if peak is None or memory is None:
        return None
    layout, memory = layout_of(run), memory * 1e9
    layers, has_head = busiest(run)
    products = m.layer_products(run)
    head = m.head_product(run)
    speedup = FLOAT8_SPEEDUP if run.engine.float8 else 1.0
    repeats = m.passes(run)
    head_repeats = 3 if has_head else 0
    width = m.BYTES[run.job.precision]
    held = (layers * layer_parameters(run.model) + has_head * embedding_parameters(run.model)) / run.parallelism.tensor
    return Work(
        micro_batches=accumulation(run),
        bubble=bubble(run),
        layers=layers,
        passes=1 + (1 / 3 if m.recomputes_all(run) else 0),
        matrix_s=(
            repeats * layers * sum(each.flops for each in products) / speedup + head_repeats * head.flops
        )
        / peak,
        matrix_bytes_s=width
        * (repeats * layers * sum(each.elements for each in products) + head_repeats * head.elements)
        / memory,
        attention_s=layers * m.attention_flops(run) / peak,
        element_s=(layers * m.element_bytes(run) + has_head * m.logits_bytes(run)) / memory,
        optimizer_s=0.0 if run.job.lora is not None else STATE_BYTES * held / update_shards(run, layout) / memory,
        tensor=c.tensor_exchange(run, layout, layers + has_head / 2),
        context=c.context_exchange(run, layout, layers),
        pipeline=c.pipeline_exchange(run, layout, pipeline_stages_per_rank(run)),
        shard=c.shard_exchange(run, layout, 0 if run.job.lora is not None else held),
        replica=c.replica_exchange(run, layout, 0 if run.job.lora is not None else held),
        links=c.links_of(run),
        spans_nodes=layout.degree(PP) > 1 and layout.nodes > 1,
        tokens=run.global_batch_size * run.job.sequence_length,
        ranks=run.ranks,
    )


def update_shards(run: Run, layout: Layout) -> int:
    """Return the ranks that share the update of one copy of the weights."""
    if c.shards_optimizer(run):
        return layout.product(c.DATA_AXES)
    return layout.product(c.DATA_AXES[1:]) if c.gathers_weights(run) else 1


def busiest(run: Run) -> tuple[int, bool]:
    """Return the layers of the pipeline rank with the most matrix work, and whether it has the head."""
    counts, p = layer_counts(run), run.parallelism.pipeline
    last = len(counts) - 1
    head = embedding_parameters(run.model)
    layer = layer_parameters(run.model)
    places = [pipeline_stages_of(run, place) for place in range(p)]
    found = [(sum(counts[stage] for stage in stages), last in stages) for stages in places]
    return max(found, key=lambda each: each[0] * layer + each[1] * head)


def bubble(run: Run) -> float:
    """Return the idle slots of a pipeline rank: (PP - 1) / stages per rank (arXiv:2104.04473, section 2.2).

    Zero-bubble schedules fill a part with the gradients of weights (arXiv:2401.10241, table 1: ZB-H1 leaves a third).
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


def step_time(work: Work, k: Constants) -> StepTime:
    """Return the time of a step of some work on a machine with these constants."""
    matrices = work.matrix_s / k.matrix_efficiency + work.matrix_bytes_s / k.memory_efficiency
    attention = work.attention_s / k.attention_efficiency
    element_wise = work.element_s / k.memory_efficiency
    device = matrices + attention + element_wise
    launches = smooth_excess(device, work.layers * work.passes * k.layer_launch_s)
    tensor = c.seconds(work.tensor, work.links, k)
    context = c.seconds(work.context, work.links, k)
    pipeline = c.seconds(work.pipeline, work.links, k)
    if work.pipeline.group.ranks > 1:
        pipeline += k.slot_s
    if work.spans_nodes:
        pipeline += work.layers * (work.tensor.group.ranks - 1) * k.pipeline_peer_latency_s
    shard = max(0.0, c.seconds(work.shard, work.links, k) - OVERLAP * (device + launches))
    slot = device + launches + tensor + context + pipeline + shard
    n = work.micro_batches
    replica = c.seconds(work.replica, work.links, k)
    return StepTime(
        matrices=n * matrices,
        attention=n * attention,
        element_wise=n * element_wise,
        launches=n * launches,
        tensor_parallel=n * tensor,
        context_parallel=n * context,
        pipeline_parallel=n * pipeline,
        data_parallel=n * shard + replica,
        bubble=work.bubble * slot,
        optimizer=work.optimizer_s / k.memory_efficiency,
        step=k.step_s,
    )


def smooth_excess(device_s: float, host_s: float) -> float:
    """Return by how much the larger of both exceeds the device's time, smoothed."""
    largest = max(device_s, host_s)
    if largest == 0:
        return 0.0
    return largest * ((device_s / largest) ** SHARPNESS + (host_s / largest) ** SHARPNESS) ** (1 / SHARPNESS) - device_s


