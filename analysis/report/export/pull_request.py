"""pull_request.md: headline and points for the text of a pull request or an issue on GitHub."""

from __future__ import annotations

from typing import TYPE_CHECKING

from analysis.formatting import markdown_cell as escaped
from analysis.report.points_table import results_note
from analysis.report.runs_table import markdown_table

if TYPE_CHECKING:
    from analysis.report.content import Report

MOST_ROWS = 50


def pull_request(content: Report) -> str:
    """Return the headline, the points with their spread, and, folded, warnings and runs that are not used."""
    parts = [f"### {escaped(content.title)}\n", *(f"- {escaped(sentence)}\n" for sentence in content.headlines), "\n"]
    parts += [
        f"**{escaped(each.heading)}**\n\n{markdown_table(each.headings, each.rows[:MOST_ROWS])}\n"
        for each in content.rankings
    ]
    headings, points = content.points if content.used else ((), [])
    if points:
        table = markdown_table(headings, [row.cells for row in points[:MOST_ROWS]])
        parts.append(f"{escaped(results_note(content.digest.groups))}\n\n{table}\n")
    if content.warnings:
        lines = "".join(f"- {escaped(sentence)}\n" for sentence in content.warnings)
        parts.append(f"<details><summary>{len(content.warnings)} warnings</summary>\n\n{lines}\n</details>\n")
    if content.unused:
        lines = "".join(f"- {escaped(row.run.name)}: {escaped(str(row.run.reason))}\n" for row in content.unused)
        parts.append(f"<details><summary>{len(content.unused)} runs not used</summary>\n\n{lines}\n</details>\n")
    return "".join(parts)
