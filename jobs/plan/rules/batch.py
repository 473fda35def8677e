"""Rules of the global batch: its division into micro-batches, and the micro-batches that a pipeline needs."""

from __future__ import annotations

from jobs.layout import accumulation, data_degree
from jobs.parallelism import Schedule
from jobs.plan.rules.rule import Rule, either, multiples_near
from jobs.schema import Run, ScalingMode

ROUNDS = (Schedule["Interleaved1F1B"], Schedule["InterleavedZeroBubble"])


def global_batch_is_whole(run: Run) -> str | None:
    """Require GBS = MBS x DP x accumulation."""
    dp = data_degree(run)
    mbs, gbs = run.job.micro_batch_size, run.global_batch_size
    unit = mbs * dp
    if gbs % unit == 0:
        return None
    if run.scaling.mode is ScalingMode.weak:
        allowed = f"scaling.sequences_per_rank to a multiple of {mbs}"
    else:
        allowed = f"scaling.global_batch_size={multiples_near(gbs, unit)}"
    smaller = [n for n in range(1, mbs) if gbs % (n * dp) == 0]
    also = f", or job.micro_batch_size={smaller[-1]}" if smaller else ""
    return f"GBS {gbs} is not a multiple of MBS {mbs} x DP {dp} = {unit}. Set {allowed}{also}."


def pipeline_is_filled(run: Run) -> str | None:
    """Require at least PP micro-batches for a schedule, and equal rounds for an interleaved one."""
    p = run.parallelism
    count = 0 if global_batch_is_whole(run) else accumulation(run)
    if p.pipeline == 1 or not count or p.schedule in (Schedule["GPipe"], Schedule["LoopedBFS"]):
        return None
    if count < p.pipeline:
        return (
            f"parallelism.schedule={p.schedule.name} needs {p.pipeline} micro-batches or more to fill "
            f"parallelism.pipeline={p.pipeline}, and GBS {run.global_batch_size} leaves {count} "
            f"(MBS {run.job.micro_batch_size} x DP {data_degree(run)}). Use a larger global batch, "
            "a smaller job.micro_batch_size, or parallelism.schedule=GPipe."
        )
    rounds = count // p.pipeline
    if p.schedule in ROUNDS and count % rounds:
        near = either((rounds * p.pipeline, (rounds + 1) * p.pipeline))
        return (
            f"parallelism.schedule={p.schedule.name} runs micro-batches in equal rounds, and {count} micro-batches "
            f"do not make {rounds}. Choose a global batch of {near} micro-batches, or set parallelism.schedule=1F1B."
        )
    return None


RULES: tuple[Rule, ...] = (global_batch_is_whole, pipeline_is_filled)
