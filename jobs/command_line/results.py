"""Commands that read results: report."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.answers import ReportAnswer
from jobs.command_line.command import START, Answered, Argument, Command, Effect, OneOf, chosen, given_path

if TYPE_CHECKING:
    from analysis.compare.regression import Regression

REGRESSED = 3
"""The exit code of a regression."""


def report(options: argparse.Namespace) -> int:
    """Write a report, a comparison of A and B, or a comparison with a reference."""
    refuse_arguments(options)
    if options.reference:
        from analysis.report.sections.regression import show as show_checks

        found, _, page = compared(options)
        show_checks(found, page)
        return 0 if found.passed else REGRESSED
    from analysis.report.report import show

    if options.live:
        return keep_live(options)
    answer, page = written(options)
    show(answer, page)
    return open_page(page) if options.open else 0


def keep_live(options: argparse.Namespace) -> int:
    """Write a report until its runs have ended, and print the last headline."""
    from analysis.report.live import live
    from analysis.report.report import show

    how = chosen(options, "follow", "anonymous")
    opened = open_page if options.open else bool
    answer, page, code = live(options.paths, options.output, options.format, options.cost_of, opened=opened, **how)
    show(answer, page)
    return code


def refuse_arguments(options: argparse.Namespace) -> None:
    """Raise ReportError for arguments that do not belong together, or a path without runs."""
    from analysis.load.paths import require
    from jobs.errors import ReportError

    if options.reference is None and (options.tolerance is not None or options.allow_missing):
        raise ReportError(
            "--tolerance and --allow-missing apply to a comparison with a reference. Add --reference runs.csv."
        )
    if options.open and options.reference:
        raise ReportError("--open shows the page of a report or of --compare. Leave it out with --reference.")
    if options.live and (options.compare or options.reference):
        raise ReportError("--live writes the report of sweeps. Leave --compare and --reference out.")
    if options.compare and options.paths:
        raise ReportError("--compare takes its two directories itself. Run `slurmscale report --compare A B`.")
    if not options.paths and not options.compare:
        raise ReportError("no DIR given. Pass sweep or run directories, for instance: slurmscale report runs/demo")
    for path in options.compare or options.paths:
        require(path)  # before pandas and plotly are imported


def written(options: argparse.Namespace) -> tuple[list[str], Path]:
    """Write a report, or a comparison of A and B; return the sentences of its headline and the page's path."""
    how = chosen(options, "follow", "anonymous")
    if options.compare:
        from analysis.report.compare import compare

        a, b = options.compare
        return compare(a, b, options.output, options.format, **how)
    from analysis.report.report import answered

    return answered(options.paths, options.output, options.format, options.cost_of, **how)


def compared(options: argparse.Namespace) -> tuple[Regression, list[str], Path]:
    """Write a report against a reference; return the comparison, the sentences of the headline and the page's path."""
    from analysis.report.against_reference import regress

    return regress(
        options.paths,
        options.reference,
        options.output,
        options.tolerance,
        allow_missing=options.allow_missing,
        formats=options.format,
        **chosen(options, "follow", "anonymous"),
    )


def report_answer(options: argparse.Namespace) -> tuple[Any, int]:
    """Write a report, and return its headline and files."""
    from analysis.report.export.formats import exports_in
    from analysis.report.report import ALWAYS
    from jobs.errors import ReportError

    if options.open or options.live:
        raise ReportError("--json names the files of a report that is written once. Leave --open and --live out.")
    refuse_arguments(options)
    reference, code = None, 0
    if options.reference:
        from analysis.report.sections.regression import answer_of

        found, answer, page = compared(options)
        reference, code = answer_of(found), 0 if found.passed else REGRESSED
    else:
        answer, page = written(options)
    folder = page.parent.absolute()
    return ReportAnswer(answer, [str(folder / name) for name in (*ALWAYS, *exports_in(folder))], reference), code


def open_page(page: Path) -> int:
    """Open a page in the browser of this session; return 1 if there is none."""
    import webbrowser

    if webbrowser.open(page.resolve().as_uri()):
        return 0
    print(f"No browser could be opened. Copy {page} to a machine with one, or set BROWSER.", file=sys.stderr)
    return 1


COMMANDS = (
    Command(
        "report",
        "write report.html, report.md and runs.csv from runs and logs",
        report,
        (
            Argument(
                "paths",
                type=given_path,
                nargs="*",
                metavar="DIR",
                help="sweeps, run directories, or logs of other programs",
            ),
            OneOf(
                Argument(
                    "--compare",
                    type=given_path,
                    nargs=2,
                    metavar=("A", "B"),
                    help="compare two of them: throughput of B relative to A, with intervals",
                ),
                Argument(
                    "--reference",
                    type=given_path,
                    metavar="FILE|DIR",
                    help="compare with earlier runs.csv: one, or a directory of them; exit code 3 if one got worse",
                ),
                Argument(
                    "--cost-of",
                    metavar="TOKENS[@RANKS]",
                    help="report the cost of a training: 100B tokens, or 100B@64,128 on ranks that were not measured "
                    "(default 1B)",
                ),
            ),
            Argument(
                "--tolerance",
                type=float,
                metavar="SHARE",
                help="largest relative worsening against FILE that passes (default: by the spread of its repeats, "
                "0.05 if it has fewer than three)",
            ),
            Argument("--allow-missing", action="store_true", help="accept points of FILE that were not measured"),
            Argument(
                "--follow",
                action="store_true",
                help="read links that lead out of DIR, in folders that you did not submit too",
            ),
            Argument(
                "--anonymous",
                action="store_true",
                help="replace names of users, nodes, accounts, partitions, jobs and paths in all files: user 1, node 1",
            ),
            Argument(
                "-o",
                "--output",
                type=given_path,
                help="output directory (default: DIR if only one is given, else this one)",
            ),
            Argument("--open", action="store_true", help="open the page in a browser"),
            Argument(
                "--live",
                action="store_true",
                help="write the files again while runs of the sweeps wait or run; the page reloads itself",
            ),
            Argument(
                "--format",
                action="append",
                default=[],
                metavar="LIST",
                help="also write parquet (runs.parquet), svg, png (figures/), latex (points.tex, tables/), docx, xlsx "
                "(report.docx, report.xlsx), mlflow, wandb, tensorboard, prometheus, github: --format svg,latex",
            ),
        ),
        heading=START,
        examples=(
            "report runs/first --open",
            "report runs/first --live --open",
            "report --compare runs/first runs/second",
            "report runs/second --reference runs/first/runs.csv",
        ),
        manual="analysis/report/README.md",
        answer=Answered(ReportAnswer, report_answer, Effect.writes),
        exit_codes={1: "with --open: there is no browser", 3: "with --reference: a point got worse"},
    ),
)
