"""report.docx: headline, warnings, every table and every figure, to be edited into a paper."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import docx
from docx.shared import Inches, Pt

from analysis.report.export.office import clean, undated
from analysis.report.export.paper import COLUMN_IN, PAGE_IN, as_text

if TYPE_CHECKING:
    from analysis.report.content import Report
    from analysis.report.export.tables import Table
    from analysis.report.figures.style import Figure

# A document with more rows is not read; the workbook has all of them.
MOST_ROWS = 200
# Between the margins of python-docx's page.
TEXT_WIDTH_IN = 6.0
SMALL_PT = 8


def document(content: Report, tables: Sequence[Table], figures: Sequence[tuple[Figure, Any]]) -> bytes:
    """Return the document: headline, warnings, tables with their notes, and figures with their captions."""
    found = docx.Document()
    found.core_properties.title = clean(content.title)[:255]
    found.core_properties.author = "slurmscale"
    found.add_heading(clean(content.title), 0)
    found.add_paragraph(clean(content.lead))
    for sentence in content.headlines:
        found.add_paragraph(clean(sentence)).runs[0].bold = True
    if content.warnings:
        found.add_heading("Warnings", 1)
    for sentence in content.warnings:
        found.add_paragraph(clean(sentence), style="List Bullet")
    for table in tables:
        found.add_heading(table.heading, 1)
        if table.note:
            found.add_paragraph(clean(table.note))
        rows = [table.headings, *table.rows[:MOST_ROWS]]
        grid = found.add_table(len(rows), len(table.headings), style="Light Grid Accent 1")
        for cells, texts in zip(grid.rows, rows, strict=True):
            for cell, text in zip(cells.cells, texts, strict=False):
                run = cell.paragraphs[0].add_run(clean(text))
                run.font.size = Pt(SMALL_PT)
        if len(table.rows) > MOST_ROWS:
            found.add_paragraph(
                f"The first {MOST_ROWS:,} of {len(table.rows):,} rows; report.xlsx and runs.csv have all."
            )
    for figure, data in figures:
        found.add_heading(clean(as_text(figure.heading)), 1)
        found.add_picture(io.BytesIO(data), width=Inches(min(TEXT_WIDTH_IN, PAGE_IN if figure.wide else COLUMN_IN)))
        found.add_paragraph(clean(as_text(figure.caption)), style="Caption")
    file = io.BytesIO()
    found.save(file)
    return undated(file)
