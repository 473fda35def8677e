"""Legality of a run: all rules of a stage are checked, so that one refusal names every mistake."""

from __future__ import annotations

import math

from jobs.layout import data_degree
from jobs.plan.rules import batch, contest, layout, values
from jobs.plan.rules.litgpt import LITGPT
from jobs.plan.rules.native import NATIVE
from jobs.plan.rules.nemo import unsupported as unsupported_by_nemo
from jobs.plan.rules.rule import Rule
from jobs.schema import EngineKind, Run

# A default beyond it is nobody's choice.
LARGEST_GLOBAL_BATCH = 16_384
# Later rules build on what earlier ones have checked.
STAGES: tuple[tuple[Rule, ...], ...] = (values.VALUES, contest.RULES, layout.GRID, batch.BATCH)


def problems(run: Run) -> list[str]:
    """Return the reasons why a run cannot run; an empty list when it can."""
    for rules in (*STAGES, engine_rules(run)):
        found = [sentence for rule in rules if (sentence := rule(run))]
        if found:
            return found
    return []


def value_problems(run: Run) -> list[str]:
    """Return what is wrong with single values of a run, whatever its layout and batch."""
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
    """Return whether the product of degrees makes a run illegal, not a value or the size of the global batch."""
    if value_problems(run):
        return False
    return any(rule(run) for rule in (*layout.GRID, batch.pipeline_is_filled, *engine_rules(run)))


def engine_rules(run: Run) -> tuple[Rule, ...]:
    """Return the rules of the chosen engine."""
    match run.engine.kind:
        case EngineKind.native:
            return NATIVE
        case EngineKind.nemo:
            return (unsupported_by_nemo,)
        case EngineKind.litgpt:
            return LITGPT


def warnings(run: Run) -> list[str]:
    """Return a warning for each setting that is legal and rarely meant."""
    return [sentence for rule in (*layout.WARNINGS, *values.WARNINGS, *contest.WARNINGS) if (sentence := rule(run))]
