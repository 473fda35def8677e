"""The report as Markdown, and the cells that it shares with the page."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.formatting import ABSENT
from analysis.formatting import markdown_cell as escaped
from analysis.report.content import Report
from analysis.report.points_table import results_note
from analysis.report.provenance import MOST_LISTED
from analysis.report.runs_columns import Row
from analysis.report.runs_table import markdown_table
from analysis.scaling.places import RULE
from jobs.submit.decision.decide import decide

# Rows that a table shows; runs.csv has every run.
MOST_ROWS = 1000
UNUSED_HEADINGS = ("Run", "Sweep", "State", "Reason", "Failure cause", "Evidence", "Remedy")


def unused_cells(row: Row) -> list[str]:
    """Return the cells of a run that is not used, under UNUSED_HEADINGS."""
    ended = row.ended
    failure = [ABSENT] * 3
    if ended:
        failure = [ended.words, ended.proof or ABSENT, f"{decide(ended.cause).words}. {ended.advice}"]
    return [row.run.name, row.run.sweep, row.run.state, str(row.run.reason), *failure]


def rows_left_out(count: int) -> str:
    """Return the note below a table with this number of rows; empty if all are shown."""
    return (
        f"The first {MOST_ROWS:,} of {count:,} rows; the CSV files next to this page have all."
        if count > MOST_ROWS
        else ""
    )


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], count: int | None = None) -> str:
    """Return a Markdown table of at most MOST_ROWS rows; `count` is the total if `rows` is only a part."""
    more = rows_left_out(len(rows) if count is None else count)
    return markdown_table(headings, rows[:MOST_ROWS]) + (f"\n{more}\n" if more else "")


def markdown(content: Report) -> str:
    """Return the report as Markdown."""
    columns, shared = content.runs
    parts = [f"# {escaped(content.title)}\n\n{escaped(content.lead)}\n"]
    parts += [f"\n**{escaped(sentence)}**\n" for sentence in content.headlines]
    for each in content.bottlenecks:
        text = "".join(f"- {escaped(sentence)}\n" for sentence in each.sentences)
        parts.append(f"\n## {escaped(each.heading)}\n\n{text}")
    if content.warnings:
        parts.append("\n## Warnings\n\n" + "".join(f"- {escaped(sentence)}\n" for sentence in content.warnings))
    parts += [f"\n## {escaped(each.heading)}\n\n" + table(each.headings, each.rows) for each in content.rankings]
    if content.used:
        point_headings, points = content.points
        held_headings, held_rows = content.layouts
        runs = [[column.text(row) for column in columns] for row in content.used[:MOST_ROWS]]
        if points:
            note = escaped(results_note(content.digest.groups))
            parts.append(
                f"\n## Points: median over repeats (smallest to largest)\n\n{note}\n\n"
                + table(point_headings, [row.cells for row in points])
                + (f"\n{escaped(RULE)}\n" if len(points) > 1 else "")
            )
        if held_rows:
            cells = [[text.replace("\n", "; ") for text in row] for row in held_rows]
            parts.append("\n## Memory and communication per rank\n\n" + table(held_headings, cells))
    for section in content.sections:
        parts.append(f"\n## {escaped(section.heading)}\n\n" + table(section.headings, section.rows))
    if content.used:
        parts.append("\n## Runs\n\n" + table([column.heading or "" for column in columns], runs, len(content.used)))
        parts += ["\nThe same in all runs: " + escaped(shared) + "\n"] if shared else []
    if content.unused:
        unused = [unused_cells(row) for row in content.unused]
        parts.append("\n## Runs not used, with reasons\n\n" + table(UNUSED_HEADINGS, unused))
    if content.unknown:
        rest = f"\nand {len(content.unknown) - MOST_LISTED:,} more\n" if len(content.unknown) > MOST_LISTED else ""
        names = "".join(f"- {escaped(path)}\n" for path in content.unknown[:MOST_LISTED])
        parts.append(f"\n## Files of unknown format: {len(content.unknown):,}\n\n{names}{rest}")
    parts.append(f"\n## Files given\n\n{content.account}\n")
    parts += [f"- {escaped(each.name)}: {escaped(each.reason)}\n" for each in content.listed]
    return "".join(parts)
