"""Refuse what a run sets and neither its kind of work nor its engine reads, such as the text data of a run on images.

`refusals` is the only rule that sees the overrides of a point and not its run alone: it refuses whole sections, and a
run has a value of every key, chosen or not. What an experiment's file chooses of them is not refused, so that
`experiment=NAME job=serve` serves the model of a training. A scaling mode is not refused: people set one for all of
their runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from jobs.engines.engine import engine_of
from jobs.errors import Problem
from jobs.plan.rules.native_only import typed
from jobs.plan.rules.rule import value_at
from jobs.schema import Run
from jobs.work.work import kind_of, work_of

PLACES = frozenset({"data.cache_dir"})
"""Keys that a site sets for all of its runs."""


def engine_does_the_work(run: Run) -> str | None:
    """Require an engine that does the work of the run."""
    engine, kind = engine_of(run), kind_of(run)
    lacks_server = kind == "serve" and run.engine.server is None
    if (kind in engine.works or work_of(run).engine is run.engine.kind) and not lacks_server:
        return None
    return engine.work_refusal(run) or work_of(run).engine_refusal(run)


def values_are_read(run: Run) -> str | None:
    """Refuse the first value that work or engine does not read and that is not the one of a run without it."""
    for reader in (work_of(run), engine_of(run)):
        for key, unset in reader.not_read.items():
            value = value_at(run, key)
            if value is not None and typed(value) != unset:
                return reader.not_read_because(run, key, typed(value), f"{key}={unset}")
    return None


def refusals(run: Run, overrides: Iterable[str]) -> list[Problem]:
    """Return a line for each override of a section or key that the work of the run does not read."""
    work, lines = work_of(run), list[Problem]()
    sections = work.unread_of_engine() | work.unread_of_job() | work.unread(run)
    for override in overrides:
        key = override.lstrip("+").partition("=")[0]
        why = next((sections[each] for each in (key, *above(key)) if each in sections), None)
        if why is not None and key not in PLACES:
            text = f"{override} has no effect on job={run.job.name}: {why}. Leave {key} out, or choose another job."
            lines.append(Problem(text, "unread_key", run.name))
    return lines


def above(key: str) -> Iterator[str]:
    """Yield the sections that hold a key, the nearest first."""
    while key := key.rpartition(".")[0]:
        yield key
