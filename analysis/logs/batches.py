"""The global batch over a training: one that grows makes segments, and rates are those of the last one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

from analysis.formatting import listed, plural, significant
from analysis.logs.step import LogStep
from analysis.logs.steps import LogRun
from analysis.parsers import log_metrics as a
from jobs import metrics as m

MOST_NAMED = 6


def last_batch(steps: Sequence[LogStep]) -> float | None:
    """Return the last reported global batch; a torn last line may have none."""
    return next((size for step in reversed(steps) if (size := step.values.get(a.GLOBAL_BATCH_SIZE))), None)


def batch_by_counts(run: LogRun, ranks: int | None) -> int | None:
    """Return ranks x micro-batch x micro-batches per step, as far as a log counts both; None if one is unknown.

    The global batch that older LitGPT is given is that of a node.
    """
    counts = [(step.values.get(a.MICRO_BATCHES_DONE), step.values.get(m.STEP)) for step in run.steps]
    known = [(done, step) for done, step in counts if done is not None and step is not None]
    size = run.settings.get(a.MICRO_BATCH_SIZE)
    if not ranks or not size or len(known) < 2 or known[-1][1] <= known[0][1]:
        return None
    done, steps = known[-1][0] - known[0][0], known[-1][1] - known[0][1]
    if all(m.STEP_TIME in step.values for step in run.steps):  # lines of whole steps
        each = done / steps
        return round(size * ranks * each) if each == round(each) else None
    # The first and the last line lie anywhere in their steps: of the whole numbers that allow that, there must be one.
    whole = math.floor(done / (steps + 1)) + 1
    most = done / (steps - 1) if steps > 1 else math.inf
    return round(size * ranks * whole) if whole < most <= whole + 1 else None


def of_last_batch(counted: Sequence[LogStep]) -> tuple[list[LogStep], str]:
    """Return the steady steps with the last reported batch, and a sentence on the others if there are any.

    Samples and time of steps with other batches are another experiment: their mean is the rate of none.
    """
    segments = [
        (size, list(steps)) for size, steps in groupby(counted, lambda step: step.values.get(a.GLOBAL_BATCH_SIZE))
    ]
    # Without a batch: programs that report it once, and torn lines.
    known = [(size, steps) for size, steps in segments if size is not None]
    last = last_batch(counted)
    if len({size for size, _ in known}) < 2 or last is None:
        return list(counted), ""
    grown = [f"{size:,.0f} in {plural(len(steps), 'step')} {rate_of(size, steps)}".strip() for size, steps in known]
    kept = [step for step in counted if step.values.get(a.GLOBAL_BATCH_SIZE) == last]
    return kept, (
        f"its global batch changed ({listed(grown, MOST_NAMED)}); rates and step times are those of the last batch, "
        f"{last:,.0f}, in {plural(len(kept), 'steady step')}"
    )


def rate_of(size: float, steps: Sequence[LogStep]) -> str:
    """Return the samples per second of steps with one batch in brackets; empty if they have no times."""
    known = [step.values[m.STEP_TIME] for step in steps if m.STEP_TIME in step.values]
    return f"({significant(size * len(known) / sum(known), 4)} samples/s)" if known else ""
