"""Rules of the global batch: its division into micro-batches, and the micro-batches that a pipeline needs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

from jobs.engines.engine import engine_of
from jobs.layout import accumulation, data_degree
from jobs.parallelism import Schedule
from jobs.plan.rules.rule import Rule, either
from jobs.schema import Run, ScalingMode
from jobs.work.work import work_of

ROUNDS = (Schedule["Interleaved1F1B"], Schedule["InterleavedZeroBubble"])


def global_batch_is_whole(run: Run) -> str | None:
    """Require GBS = MBS x DP x accumulation."""
    dp = data_degree(run)
    mbs, gbs = run.job.micro_batch_size, run.global_batch_size
    unit = mbs * dp
    if gbs % unit == 0:
        return None
    smaller = [n for n in range(1, mbs) if gbs % (n * dp) == 0]
    also = f", or job.micro_batch_size={smaller[-1]}" if smaller else ""
    return f"GBS {gbs} is not a multiple of MBS {mbs} x DP {dp} = {unit}. Set {batch_to_set(run)}{also}."


def pipeline_is_filled(run: Run) -> str | None:
    """Require at least PP micro-batches for a schedule, and equal rounds for an interleaved one."""
    p = run.parallelism
    count = 0 if global_batch_is_whole(run) else accumulation(run)
    if not count or makes_rounds(run, count):
        return None
    if count < p.pipeline:
        return (
            f"parallelism.schedule={p.schedule.name} needs {p.pipeline} micro-batches or more to fill "
            f"parallelism.pipeline={p.pipeline}, and GBS {run.global_batch_size} leaves {count} "
            f"(MBS {run.job.micro_batch_size} x DP {data_degree(run)}). Set {batch_to_set(run)}"
            f"{', or parallelism.schedule=GPipe' if engine_of(run).chooses_schedule else ''}."
        )
    return (
        f"parallelism.schedule={p.schedule.name} runs micro-batches in equal rounds, and {count} micro-batches "
        f"do not make {count // p.pipeline}. Set {batch_to_set(run)}, or {one_stage_a_rank(run)}."
    )


def makes_rounds(run: Run, count: int) -> bool:
    """Return whether a number of micro-batches fills the pipeline, in equal rounds if the schedule needs them."""
    p = run.parallelism
    # A server fills its pipeline with requests, and a test of storage has none.
    if not work_of(run).has_batch or p.pipeline == 1 or p.schedule in (Schedule["GPipe"], Schedule["LoopedBFS"]):
        return True
    # torch's interleaved schedules divide the micro-batches into count // PP rounds and refuse a remainder.
    return count >= p.pipeline and (p.schedule not in ROUNDS or count % (count // p.pipeline) == 0)


def batch_to_set(run: Run, fits: Callable[[Run, int], bool] = makes_rounds) -> str:
    """Return the assignment of the batch next to the given one, below and above, whose micro-batches fit."""
    weak = run.scaling.mode is ScalingMode.weak
    # The key counts sequences per rank in weak scaling, so the global batch is of_key times its value; `step` is the
    # smallest change of the key that keeps whole micro-batches.
    unit, of_key = run.job.micro_batch_size * data_degree(run), run.ranks if weak else 1
    step = unit // math.gcd(unit, of_key)
    start = run.global_batch_size // of_key // step * step
    below = (n for n in range(start, 0, -step) if fits(run, n * of_key // unit))
    above = (n for n in itertools.count(start + step, step) if fits(run, n * of_key // unit))
    near = either([*itertools.islice(below, 1), next(above)])
    return f"scaling.{'sequences_per_rank' if weak else 'global_batch_size'}={near}"


def one_stage_a_rank(run: Run) -> str:
    """Return the assignment of the schedule that takes any number of micro-batches from PP up."""
    given = (key for key in ("stages_per_rank", "stage_layers") if getattr(run.parallelism, key) is not None)
    return " ".join(["parallelism.schedule=1F1B", *(f"parallelism.{key}=null" for key in given)])


RULES: tuple[Rule, ...] = (global_batch_is_whole, pipeline_is_filled)
