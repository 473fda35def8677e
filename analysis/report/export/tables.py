"""Every table of a report, in the order of its page, for the formats that write all of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analysis.formatting import one_line
from analysis.report.points_table import results_note

if TYPE_CHECKING:
    from analysis.report.content import Report

PROVENANCE = "Provenance"
MOST_LETTERS = 40


@dataclass(frozen=True)
class Table:
    """A table as text."""

    name: str
    """Part of a file name, different for each table of a report."""
    heading: str
    note: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


def tables_of(content: Report) -> list[Table]:
    """Return the tables of a report: rankings, points, sections, runs, provenance."""
    found: list[tuple[str, str, Sequence[str], Sequence[Sequence[str]]]] = [
        (each.heading, each.note, each.headings, each.rows) for each in content.rankings
    ]
    headings, points = content.points
    found.append(
        ("Results", results_note(content.digest.groups) if points else "", headings, [p.cells for p in points])
    )
    held_headings, held_rows = content.layouts
    found.append(("Memory and communication per rank", "", held_headings, held_rows))
    found += [(each.heading, each.note, each.headings, each.rows) for each in content.sections]
    columns, shared = content.runs if content.used else ([], "")
    runs = [[column.text(row) for column in columns] for row in content.used]
    same = f"The same in all runs: {shared}" if shared else ""
    found.append(("Runs", same, [column.heading or "" for column in columns], runs))
    facts = [[name, "; ".join(values)] for name, values in content.facts]
    found.append((PROVENANCE, "", ("Fact", "Values"), facts))
    tables: list[Table] = []
    names: set[str] = set()
    for heading, note, columns_of, rows in found:
        if rows:
            name = unique(heading, names)
            names.add(name)
            cells = [[one_line(cell.replace("\n", "; ")) for cell in row] for row in rows]
            tables.append(Table(name, one_line(heading), one_line(note), list(map(one_line, columns_of)), cells))
    return tables


def unique(heading: str, taken: set[str]) -> str:
    """Return a heading as part of a file name, with a number if another table has that name."""
    name = re.sub(r"[^a-z0-9]+", "-", one_line(heading).lower())[:MOST_LETTERS].strip("-") or "table"
    return next(each for i in range(1, len(taken) + 2) if (each := name if i == 1 else f"{name}-{i}") not in taken)
