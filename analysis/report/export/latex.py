r"""Tables for a paper: LaTeX floats in booktabs style, to `\input`.

That of points has values that all of them share in its caption. Long tables are a longtable, which no float contains.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import pandas as pd

from analysis.formatting import ABSENT, one_line
from analysis.report.export.tables import Table
from analysis.report.figures.style import word
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
PACKAGES = "% \\usepackage{array,booktabs,longtable}\n"
# Rows of a table on one page; the letters of a cell that does not wrap; the share of the line for those that do.
MOST_ROWS_OF_FLOAT = 40
LONGEST_CELL = 28
TEXT_SHARE = 0.6
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
    caption = (
        f"{word(groups)}: medians over n repeats, below them the smallest and the largest. Speedup and efficiency are "
        f"against the point with the fewest ranks of the same line.{same}"
    )
    alignment = "".join("r" if i > 1 else "l" for i, _ in kept)
    styled = table.style.hide(axis="index").set_table_styles(SMALL)
    source = styled.to_latex(
        environment="table*",
        position_float="centering",
        caption=escaped(caption),
        label="tab:points",
        column_format=f"@{{}}{alignment}@{{}}",
        hrules=True,
    )
    return f"{HEAD}{source}"


def any_table(table: Table) -> str:
    """Return a table of the page as LaTeX source; text wraps, and a column of numbers is aligned at its right."""
    kinds = [kind_of([row[i] for row in table.rows if i < len(row)]) for i in range(len(table.headings))]
    words = sum(kind == "p" for kind in kinds)
    width = f"p{{{TEXT_SHARE / max(1, words):.2f}\\linewidth}}"
    columns = "".join(rf">{{\raggedright\arraybackslash}}{width}" if kind == "p" else kind for kind in kinds)
    head = " & ".join(two_lines(heading) for heading in table.headings)
    body = "".join(f"{' & '.join(map(escaped, row))} \\\\\n" for row in table.rows)
    text = ". ".join(filter(None, (table.heading, table.note)))
    caption = rf"\caption{{{escaped(text)}}}\label{{tab:{table.name}}}"
    if len(table.rows) > MOST_ROWS_OF_FLOAT:
        opened = f"\\begin{{longtable}}{{@{{}}{columns}@{{}}}}\n{caption} \\\\\n"
        again = f"\\toprule\n{head} \\\\\n\\midrule\n\\endhead\n"
        return f"{PACKAGES}{{\\footnotesize\n{opened}{again}{body}\\bottomrule\n\\end{{longtable}}}}\n"
    return (
        f"{PACKAGES}\\begin{{table*}}\n\\centering\n{caption}\n\\footnotesize\n\\setlength{{\\tabcolsep}}{{4pt}}\n"
        f"\\begin{{tabular}}{{@{{}}{columns}@{{}}}}\n\\toprule\n{head} \\\\\n\\midrule\n{body}\\bottomrule\n"
        "\\end{tabular}\n\\end{table*}\n"
    )


def kind_of(cells: Sequence[str]) -> str:
    """Return the alignment of a column: right of numbers, p of long text, else left."""
    if max(map(len, cells), default=0) > LONGEST_CELL:
        return "p"
    return "r" if all(cell == ABSENT or re.match(r"-?\d", cell) for cell in cells) else "l"


def all_tables(tables: Sequence[Table]) -> str:
    """Return a document with all tables, to be set as it is."""
    inputs = "".join(f"\\input{{{table.name}}}\n\\clearpage\n" for table in tables)
    return (
        "\\documentclass[landscape]{article}\n\\usepackage[margin=15mm]{geometry}\n"
        "\\usepackage{array,booktabs,longtable}\n\\usepackage[utf8]{inputenc}\n"
        f"\\begin{{document}}\n{inputs}\\end{{document}}\n"
    )


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
