"""Check a run against every rule, so that a user sees all mistakes at once."""

from __future__ import annotations

import math

from jobs.layout import data_degree
from jobs.plan.rules import batch, contest, layout, native, values
from jobs.plan.rules.litgpt import LITGPT
from jobs.plan.rules.nemo import unsupported as unsupported_by_nemo
from jobs.plan.rules.rule import Rule
from jobs.schema import EngineKind, Run

# A larger global batch is never a default.
LARGEST_GLOBAL_BATCH = 16_384
# In this order: later rules rely on what earlier ones have checked.
GENERAL: tuple[tuple[Rule, ...], ...] = (values.VALUES, contest.RULES, layout.GRID, batch.BATCH)


def problems(run: Run) -> list[str]:
    """Return the reasons why a run cannot run; empty if it can."""
    for rules in (*GENERAL, engine_rules(run)):
        found = [sentence for rule in rules if (sentence := rule(run))]
        if found:
            return found
    return []


def value_problems(run: Run) -> list[str]:
    """Return the illegal values of a run, independent of its layout and batch."""
    return [sentence for rule in values.VALUES if (sentence := rule(run))]


def common_global_batch(runs: list[Run]) -> int | None:
    """Return the least global batch, from that of the runs up, which fits them all.

    None where it is beyond reason, as for nodes=1,2,...,30. Runs with another mistake are left out.
    """
    least = max((run.global_batch_size for run in runs), default=1)
    runs = [run for run in runs if not any(rule(run) for rule in (values.counts_are_positive, *layout.GRID))]
    if not any(rule(run) for run in runs for rule in batch.BATCH):
        return least
    unit = math.lcm(*(run.job.micro_batch_size * data_degree(run) * run.parallelism.pipeline for run in runs))
    found = math.ceil(least / unit) * unit
    return found if found <= LARGEST_GLOBAL_BATCH else None


def product_is_illegal(run: Run) -> bool:
    """Return True if the parallelism degrees are illegal, and values and global batch are not."""
    if value_problems(run):
        return False
    return any(rule(run) for rule in (*layout.GRID, batch.pipeline_is_filled, *engine_rules(run)))


def engine_rules(run: Run) -> tuple[Rule, ...]:
    """Return the rules of the run's engine."""
    match run.engine.kind:
        case EngineKind.native:
            return native.RULES
        case EngineKind.nemo:
            return (unsupported_by_nemo,)
        case EngineKind.litgpt:
            return LITGPT


def warnings(run: Run) -> list[str]:
    """Return warnings: settings that run, but are rarely intended."""
    rules = (*layout.WARNINGS, *values.WARNINGS, *native.WARNINGS, *contest.WARNINGS)
    return [sentence for rule in rules if (sentence := rule(run))]
