"""The formats of `slurmscale report --format` and the packages that they need.

The packages are imported only when a format asks for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path

from analysis.report.figures.style import Figure, Section
from analysis.report.runs_columns import Row
from analysis.scaling.groups import Group
from jobs.errors import ReportError
from jobs.files import is_file

# The optional packages of each format; pyproject's extra `paper` names them too.
PACKAGES: dict[str, Sequence[str]] = {
    "parquet": ("pyarrow",),
    "svg": ("matplotlib",),
    "png": ("matplotlib",),
    "latex": (),
}
IMAGES = ("svg", "png")


def chosen_formats(words: Iterable[str]) -> list[str]:
    """Return the formats in comma-separated words, each once.

    Raise ReportError if a format is unknown or its packages are not installed.
    """
    chosen = list(dict.fromkeys(name.strip() for word in words for name in word.split(",")))
    for name in chosen:
        if name not in PACKAGES:
            raise ReportError(
                f"--format {name or repr(name)}: there is no such format. Pass one or several of "
                f"{', '.join(PACKAGES)}, with commas between; report.html, report.md and runs.csv are always written."
            )
        missing = [package for package in PACKAGES[name] if find_spec(package) is None]
        if missing:
            raise ReportError(
                f"--format {name} needs {' and '.join(missing)}, not installed here. Run `pip install "
                f"{' '.join(missing)}`, or leave {name} out of --format."
            )
    return chosen


def exported(
    formats: Iterable[str],
    rows: Sequence[Row],
    groups: Sequence[Group],
    figures: Sequence[Figure],
    tables: Sequence[Section],
) -> dict[str, str | bytes]:
    """Return the files of these formats, by their names in the report's folder."""
    formats = list(formats)
    files: dict[str, str | bytes] = {}
    if "parquet" in formats:
        from analysis.report.export.parquet import runs_parquet

        files["runs.parquet"] = runs_parquet(rows)
    if images := [name for name in formats if name in IMAGES]:
        from analysis.report.export.paper import drawn

        files |= drawn(figures, images)
    if "latex" in formats:
        from analysis.report.export.latex import latex_section, latex_table

        files["points.tex"] = latex_table(groups)
        files |= {f"study-{i}.tex": latex_section(table, f"study-{i}") for i, table in enumerate(tables, 1)}
    return files


def exports_in(folder: Path) -> list[str]:
    """Return the files of any format that reports wrote into a folder, by their names there."""
    names = [name for name in ("runs.parquet", "points.tex") if is_file(folder / name)]
    names += sorted(path.name for path in folder.glob("study-*.tex"))
    # Without the captions that every export writes, the figures are not of a report.
    if is_file(folder / "figures/captions.txt"):
        names += sorted(
            f"figures/{path.name}" for kind in (*IMAGES, "txt") for path in folder.glob(f"figures/*.{kind}")
        )
    return names
