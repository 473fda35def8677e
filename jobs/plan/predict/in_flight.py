"""Micro-batches whose activations a pipeline rank holds at once, by schedule.

tests/jobs/plan/test_activations.py counts them in torch's own order of passes (torch.distributed.pipelining.schedules).
1F1B: https://arxiv.org/abs/1806.03377; interleaved: https://arxiv.org/abs/2104.04473; zero bubble:
https://arxiv.org/abs/2401.10241.
"""

from __future__ import annotations

from jobs.layout import accumulation, pipeline_stages_per_rank
from jobs.schema import Run


def in_flight(run: Run, place: int) -> float:
    """Return the micro-batches that the layers of a pipeline rank hold; fractions where it holds several stages."""
    p, batches = run.parallelism, accumulation(run)
    if p.pipeline == 1:
        return 1.0
    stages, last = pipeline_stages_per_rank(run), p.pipeline - 1
    behind = last - place
    match p.schedule.name:
        case "GPipe" | "LoopedBFS":
            # All forward passes come before the first backward pass.
            return float(batches)
        case "1F1B":
            # A micro-batch returns after it has passed all ranks behind: one for each of them, and the own one.
            return float(min(batches, behind + 1))
        case "ZBVZeroBubble":
            # Two stages per rank, along a V: no rank holds more than PP whole micro-batches, as the first one of 1F1B.
            passes = 2 * p.pipeline
        case "InterleavedZeroBubble":
            # The gradients of weights come up to `place` passes later.
            passes = (stages - 1) * of_round(batches, p.pipeline) + behind + 1 + place
        case _:
            # Warm-up of interleaved 1F1B in Megatron-LM and torch: a round for each stage but one, and two passes for
            # each rank behind; then a forward pass before the first backward pass.
            passes = (stages - 1) * of_round(batches, p.pipeline) + 2 * behind + 1
    return min(passes, stages * batches) / stages


def of_round(batches: int, ranks: int) -> int:
    """Return the micro-batches that go through one stage before the rank turns to its next one."""
    return batches // max(1, batches // ranks)
