"""`slurmscale report DIR... --reference FILE`: the report of these runs, judged against an earlier report.

The runs are judged by the runs.csv that the report writes, so both sides pass through the same text and columns.
Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from analysis.compare.reference import files_of, parsed, read_reference
from analysis.compare.regression import Regression, regression_of
from analysis.failures.runs import failures
from analysis.load.discover import read
from analysis.report.content import Report, build
from analysis.report.digest import digest_of
from analysis.report.export.formats import chosen_formats
from analysis.report.report import made, write
from analysis.report.runs_table import rows_of, to_csv
from analysis.report.sections.regression import section, sentence
from jobs.errors import ReportError


def regress(
    paths: list[Path],
    reference: Path,
    output: Path | None,
    tolerance: float | None,
    *,
    allow_missing: bool,
    formats: Iterable[str] = (),
    follow: bool = False,
    anonymous: bool = False,
) -> tuple[Regression, list[str], Path]:
    """Write the report of these runs; return the comparison with a reference, the headline and the page's path.

    Raises ReportError if the reference cannot be read, is of other devices, or would be overwritten.
    """
    chosen = chosen_formats(formats)
    if tolerance is not None and not 0 <= tolerance < 1:
        raise ReportError(f"--tolerance={tolerance:g} is not in [0, 1). For 5 %, use --tolerance 0.05")
    folder = output or (paths[0] if len(paths) == 1 else Path())
    kept = read_reference(reference)
    replaced = (folder / "runs.csv").resolve()
    if replaced in {file.resolve() for file in (files_of(reference) if reference.is_dir() else [reference])}:
        raise ReportError(
            f"This report would overwrite {reference} with its own runs.csv. Keep the reference elsewhere, or write "
            "the report elsewhere with --output DIR."
        )
    runs = read(paths, may_spawn=True, follow=follow)
    now = parsed(to_csv(rows_of(digest_of(runs), failures(runs.runs))), "the runs")
    found = regression_of(kept, now, reference, tolerance, allow_missing=allow_missing)

    def content() -> Report:
        report = build(runs)
        headlines = [sentence(found), *report.headlines]
        return replace(report, headlines=headlines, sections=[section(found), *report.sections])

    report, files = made(content, chosen, runs.runs if anonymous else None)
    return found, list(report.headlines), write(files, folder)
