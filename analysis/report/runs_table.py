"""One row per run, used or not, for spreadsheets (full precision, SI units) and for people (rounded).

Its columns: analysis.report.runs_columns.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pandas as pd

from analysis.failures.runs import Failure
from analysis.formatting import csv_cell, markdown_cell
from analysis.identity import compared as compared_settings
from analysis.metrics.communication import axis_order
from analysis.report.digest import Digest
from analysis.report.runs_columns import COLUMNS, Column, Row, measured, setting
from analysis.run import RunResult
from jobs import metrics as m
from jobs.metrics import DeclaredMetric


def rows_of(digest: Digest, failures: Mapping[Path, Failure] | None = None) -> list[Row]:
    """Return one row per run, in the order in which they were read."""
    doubts, failures = digest.doubts, failures or {}
    rows: dict[Path, Row] = {}
    for group in digest.groups:
        # Equal for all runs of a line.
        settings = settings_digest(group.repeats[0])
        for point in group.points:
            speedup, efficiency = group.speedup(point), group.efficiency(point)
            for run in point.repeats:
                compared = {
                    m.SPEEDUP: speedup.median if speedup else None,
                    m.EFFICIENCY: efficiency.median if efficiency else None,
                    m.RELATIVE_COST: digest.relative_costs.get(run.path),
                }
                doubt, ended = doubts.get(run.path), failures.get(run.path)
                rows[run.path] = Row(run, group, point, doubt, ended, compared, settings)
    return [
        rows.get(run.path)
        or Row(run, doubt=doubts.get(run.path), ended=failures.get(run.path), settings_digest=settings_digest(run))
        for run in digest.runs
    ]


def settings_digest(run: RunResult) -> str | None:
    """Return the digest of a run's compared settings; None if it is not used."""
    if not run.used:
        return None
    return hashlib.sha256(json.dumps(compared_settings(run), sort_keys=True, default=str).encode()).hexdigest()[:12]


def columns_of(rows: Iterable[Row]) -> list[Column]:
    """Return all columns of these rows, shown on the page or not."""
    rows = list(rows)
    return [*COLUMNS, *program_columns(rows), *sent_columns(rows)]


def program_columns(rows: Sequence[Row]) -> list[Column]:
    """Return a column for each parameter of a program, and for each metric that a program declares."""
    params = dict.fromkeys(name for row in rows for name in row.run.setting("program.params") or ())
    declared = dict.fromkeys(metric for row in rows for metric in row.run.values if isinstance(metric, DeclaredMetric))
    return [*(setting(name, f"program.params.{name}", name) for name in params), *map(measured, declared)]


def sent_columns(rows: Iterable[Row]) -> list[Column]:
    """Return a column of bytes for each axis over which any of these runs recorded collectives."""
    axes = {each.axis for row in rows for each in row.run.collectives or ()}
    return [
        Column(f"{m.COLLECTIVE_BYTES.name}_{axis}", functools.partial(sent_over, axis), metric=m.COLLECTIVE_BYTES)
        for axis in sorted(axes, key=axis_order)
    ]


def sent_over(axis: str, row: Row) -> float | None:
    """Return COLLECTIVE_BYTES over one axis, summed over collectives; None if the run recorded no axis."""
    collectives = row.run.collectives
    return None if collectives is None else sum(each.payload_bytes for each in collectives if each.axis == axis)


def fold(rows: Sequence[Row]) -> tuple[list[Column], str]:
    """Return the columns that a page shows for these rows, and the settings that all of them share as text.

    A column without any value is omitted.
    """
    columns = [*COLUMNS, *program_columns(rows)]
    on_page = [c for c in columns if c.heading and any(c.value(row) is not None for row in rows)]
    if len(rows) < 2:
        return on_page, ""
    first = rows[0]

    def is_shared(column: Column) -> bool:
        text = column.text(first)
        return column.metric is None and all(column.text(row) == text for row in rows)

    shared = [column for column in on_page[1:] if is_shared(column)]
    words = ", ".join(f"{column.heading} {column.text(first)}" for column in shared)
    return [column for column in on_page if column not in shared], f"{words}." if shared else ""


def runs_frame(rows: Sequence[Row]) -> pd.DataFrame:
    """Return one row per run with every column, the values as they are: Python objects, None if absent."""
    return pd.DataFrame({each.name: list(map(each.value, rows)) for each in columns_of(rows)}, dtype=object)


def to_csv(rows: Sequence[Row]) -> str:
    """Return all columns of all rows in full precision, with a line of names; no text is a formula."""
    frame = runs_frame(rows)
    cells = {csv_cell(name): pd.Series(map(csv_cell, values), dtype=object) for name, values in frame.items()}
    return str(pd.DataFrame(cells).to_csv(index=False, lineterminator="\n"))


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; cells are text, whatever they contain."""
    cells = [[markdown_cell(cell) for cell in row] for row in rows]
    frame = pd.DataFrame(cells, columns=[markdown_cell(heading) for heading in headings])
    # Cells are neither padded to the widest one, which may be long, nor parsed as numbers.
    return f"{frame.to_markdown(index=False, tablefmt='github', stralign=None, disable_numparse=True)}\n"
