"""report.xlsx: a sheet for headline and warnings, one for each table with numbers as numbers, one with the figures."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import openpyxl
from openpyxl.drawing.image import Image
from openpyxl.styles import Font

from analysis.formatting import ABSENT
from analysis.report.export.office import clean, undated
from analysis.report.export.paper import DPI, as_text

if TYPE_CHECKING:
    from analysis.report.content import Report
    from analysis.report.export.tables import Table
    from analysis.report.figures.style import Figure

WIDEST_COLUMN = 60
MOST_SHEET_LETTERS = 31
SCREEN_DPI = 96
# Of a row of a sheet, in pixels.
ROW_HEIGHT = 20
NUMBER = re.compile(r"-?\d{1,3}(?:,\d{3})*(?:\.\d+)?|-?\d+(?:\.\d+)?(?:e[+-]\d+)?")


def workbook(content: Report, tables: Sequence[Table], figures: Sequence[tuple[Figure, Any]]) -> bytes:
    """Return the workbook: a sheet for headline and warnings, one for each table, and one with the figures."""
    found = openpyxl.Workbook()
    sheet = found.active
    sheet.title = "Report"
    warnings = ["", "Warnings", *content.warnings] if content.warnings else []
    for row, text in enumerate([content.title, content.lead, "", *content.headlines, *warnings], 1):
        fill(sheet.cell(row, 1), text)
    names = {"report"}
    for table in tables:
        sheet = found.create_sheet(sheet_name(table.heading, names))
        fill(sheet.cell(1, 1), f"{table.heading}. {table.note}")
        for column, text in enumerate(table.headings, 1):
            cell = sheet.cell(2, column)
            fill(cell, text)
            cell.font = Font(bold=True)
            widest = max(len(each[column - 1]) for each in [table.headings, *table.rows] if len(each) >= column)
            sheet.column_dimensions[cell.column_letter].width = min(WIDEST_COLUMN, widest + 2)
        for number, texts in enumerate(table.rows, 3):
            for column, text in enumerate(texts, 1):
                fill(sheet.cell(number, column), text, numeric=True)
        sheet.freeze_panes = "A3"
    if figures:
        sheet, row = found.create_sheet(sheet_name("Figures", names)), 1
        for figure, data in figures:
            fill(sheet.cell(row, 1), f"{as_text(figure.heading)}. {as_text(figure.caption)}")
            picture = Image(io.BytesIO(data))
            picture.width, picture.height = (size * SCREEN_DPI / DPI for size in (picture.width, picture.height))
            sheet.add_image(picture, f"A{row + 1}")
            row += 3 + int(picture.height / ROW_HEIGHT)
    file = io.BytesIO()
    found.save(file)
    return undated(file)


def fill(cell: Any, text: str, *, numeric: bool = False) -> None:
    """Set a cell of a sheet: a number where the text is one, else text that no program reads as a formula."""
    text = clean(text)
    if numeric and NUMBER.fullmatch(text):
        cell.value = float(text.replace(",", ""))
        return
    cell.value = "" if numeric and text == ABSENT else text
    cell.data_type = "s"


def sheet_name(heading: str, taken: set[str]) -> str:
    """Return a heading as the name of a sheet, and remember it: names differ in more than the case of letters."""
    name = re.sub(r"[\[\]:*?/\\']", " ", heading)[: MOST_SHEET_LETTERS - 3].strip() or "Table"
    found = next(each for i in range(1, 999) if (each := name if i == 1 else f"{name} {i}").lower() not in taken)
    taken.add(found.lower())
    return found
