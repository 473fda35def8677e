"""The learning rate of each step: a warm-up, a plateau, a decay."""

from __future__ import annotations

import math
from collections.abc import Callable

from jobs.schema import Decay, Job

SHAPES: dict[Decay, Callable[[float], float]] = {
    Decay.cosine: lambda p: (1 + math.cos(math.pi * p)) / 2,
    Decay.linear: lambda p: 1 - p,
    Decay.sqrt: lambda p: 1 - math.sqrt(p),
    Decay.none: lambda _: 1,
}


def learning_rate(job: Job, step: int, steps: int) -> float:
    """Return the rate of a step: linear warm-up, then learning_rate, at last a decay to min_learning_rate."""
    if step <= job.warmup_steps:
        return job.learning_rate * step / job.warmup_steps
    begin = job.warmup_steps if job.decay_steps is None else max(job.warmup_steps, steps - job.decay_steps)
    progress = max(0, step - begin) / max(1, steps - begin)
    return job.min_learning_rate + (job.learning_rate - job.min_learning_rate) * SHAPES[job.decay](progress)
