"""Check a run against every rule, so that a user sees all mistakes at once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from jobs.engines.engine import engine_of
from jobs.errors import Problem
from jobs.layout import data_degree
from jobs.plan.rules import (
    batch,
    calibration,
    container,
    contest,
    gpu_limits,
    memory,
    network,
    notify,
    parallelism,
    predicted_time,
    profile,
    rehearsal,
    report,
    unused,
    values,
)
from jobs.plan.rules.rule import Rule
from jobs.schema import Run
from jobs.secrets import config_holds_no_secret
from jobs.work.work import work_of

if TYPE_CHECKING:
    from jobs.runtime.steps import Samples  # which imports NumPy

# A larger global batch is never a default.
LARGEST_GLOBAL_BATCH = 16_384
VALUES: tuple[Rule, ...] = (
    *values.OTHERS,
    *network.RULES,
    *gpu_limits.RULES,
    *calibration.RULES,
    *profile.RULES,
    *contest.RULES,
    *rehearsal.RULES,
    *report.RULES,
    *notify.RULES,
    *container.RULES,
)
WARNINGS: tuple[Rule, ...] = (
    *rehearsal.WARNINGS,
    *parallelism.WARNINGS,
    *values.WARNINGS,
    *network.WARNINGS,
    *gpu_limits.WARNINGS,
    *profile.WARNINGS,
    *contest.WARNINGS,
    *calibration.WARNINGS,
    *container.WARNINGS,
)
# They read every key, which takes most of a search's time, and no legal degree or batch changes what they find.
OF_ANY_LAYOUT = (values.counts_are_in_range, values.numbers_are_in_range, config_holds_no_secret)
# Those that know the samples, once they are read.
PREDICTED = (memory.memory_is_tight, predicted_time.predicted_time_exceeds_limit)
# The others are of a language model.
WARNINGS_OF_EVERY_WORK: tuple[Rule, ...] = (
    values.nodes_are_emulated,
    values.ranks_have_one_core,
    *container.WARNINGS,
)


def problems(run: Run) -> list[Problem]:
    """Return the reasons why a run cannot run; empty if it can."""
    # A prediction of an illegal layout has no meaning and may divide by zero; it is also the slowest rule.
    return problems_but_memory(run) or list(broken(memory.RULES, run))


def problems_but_memory(run: Run) -> list[Problem]:
    """Return the reasons why a run cannot run on GPUs with any amount of memory."""
    return next(filter(None, (list(broken(rules, run)) for rules in but_memory(run))), [])


def problems_of_layout(run: Run) -> list[str]:
    """Return problems_but_memory of a run that differs in its layout from one that breaks no rule of OF_ANY_LAYOUT."""
    groups = ([rule for rule in rules if rule not in OF_ANY_LAYOUT] for rules in but_memory(run))
    return next(filter(None, (list(broken(rules, run)) for rules in groups)), [])


def problems_of_grid(run: Run) -> list[Problem]:
    """Return why a run has no rank grid or no batch: a prediction divides by them, whatever the engine can compute."""
    groups = (values.COUNTS, (parallelism.sharding_is_the_engines,), parallelism.RULES, batch.RULES)
    return next(filter(None, (list(broken(rules, run)) for rules in groups)), [])


def but_memory(run: Run) -> tuple[tuple[Rule, ...], ...]:
    """Return the rules that come before those of memory, in groups.

    Each group relies on what those before it have checked. All mistakes of a group are reported at once.
    """
    return (
        # All arithmetic below divides by the counts.
        values.COUNTS,
        # The rules of the layout read the settings of FSDP or ZeRO, which have to be the engine's own.
        (parallelism.sharding_is_the_engines,),
        (*VALUES, unused.engine_does_the_work, unused.values_are_read, *own_values(run), *parallelism.RULES),
        # Micro-batches are counted on a legal grid.
        batch.RULES,
        own_layouts(run),
    )


def own_values(run: Run) -> tuple[Rule, ...]:
    """Return the rules of work and engine that need no legal layout."""
    return (*engine_of(run).value_rules(), *work_of(run).value_rules())


def own_layouts(run: Run) -> tuple[Rule, ...]:
    """Return the rules of work and engine that rely on a legal layout."""
    return (*work_of(run).layout_rules(), *engine_of(run).layout_rules())


def value_problems(run: Run) -> list[Problem]:
    """Return the illegal values of a run, independent of its layout and batch."""
    return list(broken((*values.RULES, unused.engine_does_the_work, unused.values_are_read, *own_values(run)), run))


def warnings(run: Run, samples: Samples | None = None) -> list[str]:
    """Return warnings: settings that run, but are rarely intended."""
    work = work_of(run)
    if not work.is_predicted:
        limited = gpu_limits.WARNINGS if work.predicted_as(run) is not None else ()
        return list(broken((*WARNINGS_OF_EVERY_WORK, *limited, *work.warnings()), run))
    predicted = (partial(rule, samples=samples) for rule in PREDICTED)
    return list(broken((*WARNINGS, *engine_of(run).warnings(), *work.warnings(), *predicted), run))


def broken(rules: Iterable[Rule], run: Run) -> Iterator[Problem]:
    """Yield the lines of the rules that a run breaks; a rule may rely on those before it in `any(broken(...))`."""
    return (
        Problem(line, getattr(rule, "__name__", "warning"), run.name)
        for rule in rules
        for line in (rule(run) or "").splitlines()
    )


def common_global_batch(runs: list[Run]) -> int | None:
    """Return the least global batch, from that of the runs up, which fits them all.

    None if it is beyond reason, as for nodes=1,2,...,30. Runs with another mistake are left out.
    """
    least = max((run.global_batch_size for run in runs), default=1)
    runs = [run for run in runs if not any(broken((values.counts_are_in_range, *parallelism.RULES), run))]
    if not any(any(broken(batch.RULES, run)) for run in runs):
        return least
    # Times PP, so that each run has PP micro-batches or a multiple: that fills a pipeline and makes equal rounds.
    unit = math.lcm(*(run.job.micro_batch_size * data_degree(run) * run.parallelism.pipeline for run in runs))
    found = math.ceil(least / unit) * unit
    return found if found <= LARGEST_GLOBAL_BATCH else None


def layout_is_illegal(run: Run) -> bool:
    """Return True if degrees and sharding make no rank grid, whatever the batch: the cheapest rules."""
    return any(broken((parallelism.sharding_is_the_engines, *parallelism.RULES), run))


def product_is_illegal(run: Run) -> bool:
    """Return True if the parallelism degrees are illegal, and values and global batch are not."""
    of_products = (*parallelism.RULES, batch.pipeline_is_filled, *own_layouts(run))
    return not value_problems(run) and any(broken(of_products, run))


def only_memory_is_short(run: Run) -> bool:
    """Return True if a run would be legal on larger GPUs."""
    return not problems_but_memory(run) and any(broken(memory.RULES, run))
