"""`slurmscale report --compare A B`: the report of the runs of both, with A against B first.

Imports no torch. analysis.report.report does not import it, because scipy.stats takes a second.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from analysis.compare.ab import compare_groups
from analysis.compare.loss import loss_doubts
from analysis.formatting import one_line
from analysis.load.discover import Found, read, without_copies
from analysis.report.content import Report, build
from analysis.report.export.formats import chosen_formats
from analysis.report.report import made, write
from analysis.report.sections.ab import order_of_time, ratios_figure, sections, sentences
from analysis.scaling.groups import scaling_groups
from jobs.errors import ReportError


def compare(
    a: Path, b: Path, output: Path | None, formats: Iterable[str] = (), *, follow: bool = False, anonymous: bool = False
) -> tuple[list[str], Path]:
    """Write the report of A and B into `output`, or the current directory; return the sentences and the page's path.

    Raises ReportError if one of them does not exist or contains no run, or if they share a run.
    """
    chosen = chosen_formats(formats)
    sides = found_in("A", a, follow=follow), found_in("B", b, follow=follow)
    shared = {run.path for run in sides[0].runs} & {run.path for run in sides[1].runs}
    if shared:
        where = "are the same" if a.resolve() == b.resolve() else f"share {len(shared)} of their runs"
        raise ReportError(
            f"--compare: {a} and {b} {where}, so there is nothing to compare. Pass two sweeps or run directories, "
            "neither inside the other, for instance: slurmscale report --compare runs/before runs/after"
        )
    text: list[str] = []

    def content() -> Report:
        report, text[:] = compared_report(*sides)
        return replace(report, title=one_line(f"{a} (A) against {b} (B)"))

    _, files = made(content, chosen, [*sides[0].runs, *sides[1].runs] if anonymous else None)
    return text, write(files, output or Path())


def found_in(side: str, path: Path, *, follow: bool) -> Found:
    """Return the runs and logs of one side; raise ReportError with the name of the side if there is none."""
    try:
        return read([path], may_spawn=True, follow=follow)
    except ReportError as error:
        raise ReportError(
            f"--compare: {side}: {error}\nPass two directories: slurmscale report --compare runs/before runs/after"
        ) from error


def compared_report(a: Found, b: Found) -> tuple[Report, list[str]]:
    """Return the report of all runs with A against B first, and the sentences about A against B."""
    of_a = {run.path for run in a.runs}
    runs = sorted([*a.runs, *b.runs], key=lambda run: run.path)
    # `read` has already looked for copies among the logs below each root.
    runs = [*without_copies([run for run in runs if run.log is None]), *(run for run in runs if run.log is not None)]
    doubts = loss_doubts(runs)
    sides = [[run for run in runs if run.used and (run.path in of_a) is is_a] for is_a in (True, False)]
    comparison = compare_groups(*(scaling_groups(side, doubts) for side in sides))
    # With equal settings, runs of A and B would be repeats of one point: different code alone does not separate them.
    separated = [replace(run, config={**run.config, "side": "A" if run.path in of_a else "B"}) for run in runs]
    content = build(Found(separated, [*a.logs, *b.logs], [*a.unknown, *b.unknown], [*a.uses, *b.uses]))
    text = sentences(comparison)
    report = replace(
        content,
        headlines=[*text, *content.headlines],
        warnings=[*order_of_time(*sides), *content.warnings],
        figures=[*ratios_figure(comparison), *content.figures],
        sections=[*sections(comparison), *content.sections],
    )
    return report, text
