"""`slurmscale report --compare A B`: the report of the runs of both, with A against B first.

Imports no torch; analysis.report does not import it, since scipy takes a second.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from analysis.checks import loss_doubts
from analysis.find import read_runs, without_copies
from analysis.formats import one_line
from analysis.pairs import compare_groups
from analysis.pairs_page import doubts_of_time, ratios_figure, sections, sentences
from analysis.records import RunResult
from analysis.report import Report, build, write
from analysis.scaling import scaling_groups
from jobs.errors import ReportError


def compare(a: Path, b: Path, output: Path | None) -> tuple[list[str], Path]:
    """Write the report of A and B into `output`, or the current directory; returns the answer and the page's path.

    Raises ReportError when one of them does not exist or holds no run, or when they share a run.
    """
    sides = [runs_of("A", a), runs_of("B", b)]
    shared = {run.path for run in sides[0]} & {run.path for run in sides[1]}
    if shared:
        where = "are the same" if a.resolve() == b.resolve() else f"share {len(shared)} of their runs"
        raise ReportError(
            f"--compare: {a} and {b} {where}, so there is nothing to tell apart. Give two sweeps or directories of "
            "runs of which neither lies in the other, for instance: slurmscale report --compare runs/before runs/after"
        )
    content, answer = compared_report(*sides)
    title = one_line(f"{a} (A) against {b} (B)")
    return answer, write(replace(content, title=title), output or Path())


def runs_of(side: str, path: Path) -> list[RunResult]:
    """The runs of one side; raises ReportError with the side when there is none."""
    try:
        return read_runs([path])
    except ReportError as error:
        raise ReportError(
            f"--compare: {side}: {error}\nIt takes two of them: slurmscale report --compare runs/before runs/after"
        ) from error


def compared_report(a: list[RunResult], b: list[RunResult]) -> tuple[Report, list[str]]:
    """The usual report of all runs with A against B first, and the sentences of the latter."""
    of_a = {run.path for run in a}
    runs = without_copies(sorted([*a, *b], key=lambda run: run.path))
    doubts = loss_doubts(runs)
    sides = [[run for run in runs if run.used and (run.path in of_a) is is_a] for is_a in (True, False)]
    comparison = compare_groups(*(scaling_groups(side, doubts) for side in sides))
    # Equal settings would make runs of A and B repeats of one point, as other code alone does not tell them apart.
    told_apart = [replace(run, config={**run.config, "side": "A" if run.path in of_a else "B"}) for run in runs]
    content, answer = build(told_apart), sentences(comparison)
    report = replace(
        content,
        answers=[*answer, *content.answers],
        warnings=[*doubts_of_time(*sides), *content.warnings],
        figures=[*ratios_figure(comparison), *content.figures],
        sections=[*sections(comparison), *content.sections],
    )
    return report, answer
