"""Whether a run can run: every rule is asked, so that a user at the keyboard sees every mistake at once."""

from __future__ import annotations

from jobs.plan.rules import batch, contest, layout, values
from jobs.plan.rules.litgpt import LITGPT
from jobs.plan.rules.native import NATIVE
from jobs.plan.rules.nemo import unsupported as unsupported_by_nemo
from jobs.plan.rules.rule import Rule
from jobs.schema import EngineKind, Run

# Later rules build on what earlier ones have checked.
STAGES: tuple[tuple[Rule, ...], ...] = (values.VALUES, contest.RULES, layout.GRID, batch.BATCH)


def problems(run: Run) -> list[str]:
    """Why this run cannot run; empty when it can."""
    for rules in (*STAGES, engine_rules(run)):
        found = [sentence for rule in rules if (sentence := rule(run))]
        if found:
            return found
    return []


def value_problems(run: Run) -> list[str]:
    """Why values of this run cannot be, whatever its layout and its batch."""
    return [sentence for rule in values.VALUES if (sentence := rule(run))]


def product_is_illegal(run: Run) -> bool:
    """Whether it is the product of degrees that cannot run, and not a value or the size of the global batch."""
    if value_problems(run):
        return False
    return any(rule(run) for rule in (*layout.GRID, batch.pipeline_is_filled, *engine_rules(run)))


def engine_rules(run: Run) -> tuple[Rule, ...]:
    """What the chosen engine cannot do of what makes sense."""
    match run.engine.kind:
        case EngineKind.native:
            return NATIVE
        case EngineKind.nemo:
            return (unsupported_by_nemo,)
        case EngineKind.litgpt:
            return LITGPT


def warnings(run: Run) -> list[str]:
    """What runs, but is rarely meant."""
    return [sentence for rule in (*layout.WARNINGS, *values.WARNINGS, *contest.WARNINGS) if (sentence := rule(run))]
