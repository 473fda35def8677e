"""The formats of `slurmscale report --format` and the packages that they need.

The packages are imported only when a format asks for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.report.export.tables import tables_of
from analysis.report.export.tracked import tracked
from jobs.errors import ReportError
from jobs.files import is_file

if TYPE_CHECKING:
    from analysis.report.content import Report

# The modules that each format needs; pyproject's extras `paper`, `office` and `trackers` have their packages.
PACKAGES: dict[str, Sequence[str]] = {
    "parquet": ("pyarrow",),
    "svg": ("matplotlib",),
    "png": ("matplotlib",),
    "latex": (),
    "docx": ("docx", "matplotlib"),
    "xlsx": ("openpyxl", "matplotlib", "PIL"),
    "mlflow": ("mlflow", "sqlalchemy", "alembic"),
    "wandb": ("wandb",),
    "tensorboard": ("tensorboard",),
    "prometheus": ("prometheus_client",),
    "github": (),
}
IMAGES = ("svg", "png")
OFFICE = ("docx", "xlsx")
TRACKERS = ("mlflow", "wandb", "tensorboard", "prometheus")
EXTRAS = {"office": OFFICE, "trackers": TRACKERS}
# All tables in one document: without it, the others are not of a report.
ALL_TABLES = "tables/all.tex"
SINGLE = (
    "runs.parquet", "points.tex", "report.docx", "report.xlsx", "trackers/mlflow.db", "slurmscale.prom",
    "pull_request.md",
)  # fmt: skip


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
            extra = next((each for each, names in EXTRAS.items() if name in names), None)
            wanted = f"'slurmscale[{extra}]'" if extra else " ".join(missing)
            raise ReportError(
                f"--format {name} needs {' and '.join(missing)}, not installed here. Run `pip install {wanted}`, or "
                f"leave {name} out of --format."
            )
    return chosen


def exported(formats: Iterable[str], content: Report) -> dict[str, str | bytes]:
    """Return the files of these formats, by their names in the report's folder."""
    formats = list(formats)
    files: dict[str, str | bytes] = {}
    if "parquet" in formats:
        from analysis.report.export.parquet import runs_parquet

        files["runs.parquet"] = runs_parquet(content.rows)
    if images := [name for name in formats if name in IMAGES]:
        from analysis.report.export.paper import drawn

        files |= drawn(content.all_figures, images)
    # Both take every table.
    tables = tables_of(content) if {"latex", *OFFICE} & set(formats) else []
    if "latex" in formats:
        from analysis.report.export.latex import all_tables, any_table, latex_table

        files["points.tex"] = latex_table(content.digest.groups)
        files |= {f"tables/{table.name}.tex": any_table(table) for table in tables}
        files[ALL_TABLES] = all_tables(tables)
    if office := [name for name in formats if name in OFFICE]:
        from analysis.report.export.paper import drawn

        pictures = drawn(content.all_figures, ["png"])
        figures = [
            (each, data)
            for each in content.all_figures
            if (data := pictures.get(f"figures/{each.name}.png")) is not None
        ]
        if "docx" in office:
            from analysis.report.export.document import document

            files["report.docx"] = document(content, tables, figures)
        if "xlsx" in office:
            from analysis.report.export.workbook import workbook

            files["report.xlsx"] = workbook(content, tables, figures)
    if "mlflow" in formats:
        from analysis.report.export.mlflow_database import mlflow_database

        files["trackers/mlflow.db"] = mlflow_database(tracked(content))
    if "wandb" in formats:
        from analysis.report.export.wandb_runs import wandb_runs

        files |= wandb_runs(tracked(content))
    if "tensorboard" in formats:
        from analysis.report.export.tensorboard_events import tensorboard_events

        files |= tensorboard_events(tracked(content))
    if "prometheus" in formats:
        from analysis.report.export.exposition import exposition

        files["slurmscale.prom"] = exposition(content)
    if "github" in formats:
        from analysis.report.export.pull_request import pull_request

        files["pull_request.md"] = pull_request(content)
    return files


def exports_in(folder: Path) -> list[str]:
    """Return the files of any format that reports wrote into a folder, by their names there."""
    names = [name for name in SINGLE if is_file(folder / name)]
    # Without the captions that every export writes, the figures are not of a report.
    if is_file(folder / "figures/captions.txt"):
        names += sorted(
            f"figures/{path.name}" for kind in (*IMAGES, "txt") for path in folder.glob(f"figures/*.{kind}")
        )
    if is_file(folder / ALL_TABLES):
        names += sorted(f"tables/{path.name}" for path in folder.glob("tables/*.tex"))
    for kind in ("wandb/*/run-*.wandb", "tensorboard/*/events.out.tfevents.*"):
        names += sorted(str(path.relative_to(folder)) for path in folder.glob(f"trackers/{kind}"))
    return names
