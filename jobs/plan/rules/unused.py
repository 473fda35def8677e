"""Refuse what a user chose and the work of a run does not read, such as the text data of a run on images.

The only rule that sees the overrides of a point and not its run alone: a run has a value of every key, chosen or not.
What an experiment's file chooses is not refused, so that `experiment=NAME job=serve` serves the model of a training. A
scaling mode is not refused: people set one for all of their runs.
"""

from __future__ import annotations

from collections.abc import Iterable

from jobs.schema import Run
from jobs.work.work import work_of

PLACES = frozenset({"data.cache_dir"})
"""Keys that a site sets for all of its runs."""


def refusals(run: Run, overrides: Iterable[str]) -> list[str]:
    """Return a line for each override of a section that the work of the run does not read."""
    sections, lines = work_of(run).unread(run), []
    for override in overrides:
        key = override.lstrip("+").partition("=")[0]
        section = key.partition(".")[0]
        if section in sections and key not in PLACES:
            lines.append(
                f"{override} has no effect on job={run.job.name}: {sections[section]}. Leave {key} out, or choose "
                "another job."
            )
    return lines
