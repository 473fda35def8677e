r"""The tables of points and of studies for a paper: a LaTeX float each in booktabs style, to `\input`.

Values that all points share are in the caption.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import pandas as pd

from analysis.formatting import ABSENT, one_line
from analysis.report.figures.style import Section, word
from analysis.report.points_table import PLACE_COLUMNS, point_table
from analysis.scaling.groups import Group

SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_\allowbreak{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\char34{}",
    "-": "{-}",
    "`": r"\textasciigrave{}",
    "'": r"{'}",
    ABSENT: "--",
}
HEAD = r"""% \usepackage{booktabs}
\providecommand{\medianrange}[3]{\begin{tabular}[t]{@{}r@{}}#1\\[-1pt]{\tiny #2--#3}\end{tabular}}
"""
# Commands before the tabular, as pandas takes them.
SMALL = [{"selector": "footnotesize", "props": ":{};"}, {"selector": "setlength", "props": r":{\tabcolsep}{4pt};"}]
EMPTY = "% No run can be used: there is no point to show.\n"


def escaped(text: str) -> str:
    """Return one line of text, escaped for LaTeX."""
    return "".join(SPECIAL.get(letter, letter) for letter in one_line(text))


def latex_table(groups: Sequence[Group]) -> str:
    """Return the table of the report's points as LaTeX source; its caption starts with the hardware."""
    headings, points = point_table(groups, of_steps=False)
    if not points:
        return EMPTY
    rows = [point.cells for point in points]
    kept: list[tuple[int, str]] = []
    shared: list[tuple[int, str]] = []
    for i, heading in enumerate(headings):
        is_shared = len(rows) > 1 and i > 0 and heading in PLACE_COLUMNS and len({row[i] for row in rows}) == 1
        (shared if is_shared else kept).append((i, heading))
    table = pd.DataFrame(
        [[cell(row[i], numeric=i > 1) for i, _ in kept] for row in rows],
        columns=[two_lines(heading) for _, heading in kept],
    )
    same = "".join(f" {heading}: {rows[0][i]}." for i, heading in shared)
    alignment = "".join("r" if i > 1 else "l" for i, _ in kept)
    caption = (
        f"{word(groups)}: medians over n repeats, below them the smallest and the largest. Speedup and efficiency are "
        f"against the point with the fewest ranks of the same line.{same}"
    )
    return floating(table, caption, "points", alignment)


def latex_section(section: Section, label: str) -> str:
    """Return the table of a study as LaTeX source, without its last column, which is text for the page."""
    first = next((i for i in range(1, len(section.headings)) if is_numeric(row[i] for row in section.rows)), 1)
    table = pd.DataFrame(
        [[cell(text, numeric=i >= first) for i, text in enumerate(row[:-1])] for row in section.rows],
        columns=list(map(two_lines, section.headings[:-1])),
    )
    alignment = "".join("r" if i >= first else "l" for i in range(len(section.headings) - 1))
    hardware = section.note.partition(":")[0]
    return floating(table, f"{hardware}: {section.heading}.", label, alignment)


def is_numeric(texts: Iterable[str]) -> bool:
    """Return True if all cells of a column begin with a digit, or are empty."""
    return all(text[:1].isdigit() or text == ABSENT for text in texts)


def floating(table: pd.DataFrame, caption: str, label: str, alignment: str) -> str:
    """Return a table as a float of the page's width."""
    styled = table.style.hide(axis="index").set_table_styles(SMALL)
    source = styled.to_latex(
        environment="table*",
        position_float="centering",
        caption=escaped(caption),
        label=f"tab:{label}",
        column_format=f"@{{}}{alignment}@{{}}",
        hrules=True,
    )
    return f"{HEAD}{source}"


def two_lines(heading: str) -> str:
    """Return a heading with its unit below it."""
    name, _, unit = heading.partition(" (")
    return rf"\shortstack{{{escaped(name)}\\({escaped(unit)}}}" if unit else escaped(heading)


def cell(text: str, *, numeric: bool) -> str:
    """Return a cell; the range of a number is below it and smaller."""
    ranged = re.fullmatch(r"(.+) \((.+) to (.+)\)", text) if numeric else None
    if not ranged:
        return escaped(text)
    middle, low, high = (escaped(part) for part in ranged.groups())
    return rf"\medianrange{{{middle}}}{{{low}}}{{{high}}}"
