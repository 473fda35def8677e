"""The table of a study as its experiment file asks for it, with published values and ratios in neighbouring columns."""

from __future__ import annotations

from collections.abc import Iterator

from analysis.compare.published import obstacle
from analysis.compare.study import OTHER, Cell, Names, Quantity, Study
from analysis.formatting import ABSENT, significant
from analysis.report.digest import Digest
from analysis.report.figures.study import study_figure
from analysis.report.figures.style import Section, word_of
from analysis.report.sections.published import differences

# More columns leave the differences no room, which then stand above the table.
MOST_COLUMNS = 9
PUBLISHED, RATIO, WHY = "published", "ours / published", "Differences, and the source"


def study_sections(digest: Digest) -> list[Section]:
    """Return the table of each study; empty without any."""
    several = len(digest.studies) > 1
    return [section(study, f"{i}" if several else "") for i, study in enumerate(digest.studies, 1)]


def section(study: Study, number: str) -> Section:
    """Return the table of a study, with the figure of its first quantity."""
    headings = [*study.headings("rows"), *([OTHER] if study.has_other else [])]
    rows = [list(row) for row in study.rows]
    for column in study.columns:
        for quantity in study.quantities:
            more = beside(study, column, quantity)
            headings += [heading(study, column, quantity), *more]
            for row, texts in zip(study.rows, rows, strict=True):
                texts.extend(cells(study.cell(row, column), quantity, more))
    is_published = PUBLISHED in headings
    reasons = [why(study, row) for row in study.rows]
    common = [words for words in reasons[0] if all(words in each for each in reasons)] if len(reasons) > 1 else []
    own = [" ".join(each for each in words if each not in common) for words in reasons]
    above = f" In all rows: {' '.join(common)}" if common else ""
    if is_published and len(headings) < MOST_COLUMNS:
        headings.append(WHY)
        texts_of_last = [words or ABSENT for words in own]
    else:
        headings.append("Repeats")
        texts_of_last = [repeats(study, row) for row in study.rows]
        above += "".join(
            f" {study.label(row, 'rows')}: {words}" for row, words in zip(study.rows, own, strict=True) if words
        )
    for texts, last in zip(rows, texts_of_last, strict=True):
        texts.append(last)
    return Section(study.caption, note(study) + above, headings, rows, study_figure(study, number))


def heading(study: Study, column: Names, quantity: Quantity) -> str:
    """Return the heading of a quantity in a column; with a single one, the note names it."""
    if not column:
        return quantity.heading
    label = study.label(column, "columns")
    return label if len(study.quantities) == 1 else f"{label}: {quantity.heading}"


def beside(study: Study, column: Names, quantity: Quantity) -> list[str]:
    """Return the headings of the columns of published values that a quantity has in a column of the study."""
    own = [study.cell(row, column) for row in study.rows]
    if not any(cell.published(quantity) for cell in own):
        return []
    return [PUBLISHED, *([RATIO] if any(cell.ratio(quantity) is not None for cell in own) else [])]


def cells(cell: Cell, quantity: Quantity, more: list[str]) -> Iterator[str]:
    """Yield a quantity of a cell, and its published value and ratio if these have columns."""
    spread = cell.spread(quantity)
    ends = [quantity.shown(end) for end in (spread.low, spread.high)] if spread else []
    span = f" ({' to '.join(ends)})" if len(set(ends)) > 1 else ""
    yield quantity.shown(spread.median if spread else None) + span
    if PUBLISHED in more:
        yield ", ".join(printed(quantity, figure.value) for figure in cell.published(quantity)) or ABSENT
    if RATIO in more:
        ratio = cell.ratio(quantity)
        yield ABSENT if ratio is None else significant(ratio, 3)


def printed(quantity: Quantity, value: float) -> str:
    """Return a published value in the unit of the study, without zeros that the document does not print."""
    text = quantity.shown(value)
    return text.rstrip("0").rstrip(".") if "." in text else text


def why(study: Study, row: Names) -> list[str]:
    """Return why the values of a row differ from the published ones, and where these are printed."""
    parts: dict[str, None] = {}
    for column in study.columns:
        cell = study.cell(row, column)
        for figure in (figure for quantity in study.quantities for figure in cell.published(quantity)):
            against = obstacle(cell.runs[0], figure)
            parts |= dict.fromkeys([f"No ratio: {against}."] if against else [])
            parts |= dict.fromkeys(differences(cell.runs, figure))
            parts |= dict.fromkeys([f"Published as {figure.as_printed}.", f"Source: {figure.place}."])
    return list(parts)


def repeats(study: Study, row: Names) -> str:
    """Return the number of repeats of the cells of a row."""
    counts = sorted({len(cell.runs) for column in study.columns if (cell := study.cell(row, column)).runs})
    return f"n = {counts[0]}" if len(counts) == 1 else f"n = {counts[0]} to {counts[-1]}"


def note(study: Study) -> str:
    """Return the note of the table: hardware, repeats, and the definitions of its quantities."""
    defined = " ".join(f"{each.metric.name}: {each.metric.definition}" for each in study.quantities)
    only = f"{study.quantities[0].heading}, " if study.keys("columns") and len(study.quantities) == 1 else ""
    return f"{word_of(study.runs)}: {only}medians over repeats, with the smallest and the largest. {defined}"
