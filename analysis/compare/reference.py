"""Read a runs.csv back, as the reference of a later report.

The file may have been kept for months, cut short or saved by a spreadsheet. Anything that differs from the form of
analysis.report.runs_table is refused with its line and column and never guessed.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from analysis.formatting import short
from analysis.scaling.groups import RATES
from analysis.untrusted import printed_number
from jobs import metrics as m
from jobs.errors import ReportError
from jobs.files import read_bytes, reason
from jobs.metrics import Better
from jobs.parallelism import AXIS_NAMES

# Only the first rate that a point has is checked.
CHECKED = (*RATES, m.MEMORY_PEAK, m.FINAL_LOSS)
# Two rows are the same point if they agree in each of these columns that the reference has.
IDENTITY = (
    "model",
    "parameters",
    "data",
    "job",
    "steps",
    "epochs",
    "sequence_length",
    "parallelism",
    "engine",
    *AXIS_NAMES,
    "nodes",
    "ranks",
    "micro_batch_size",
    "accumulation",
    "global_batch_size",
    "scaling",
    "precision",
)
HOSTS = "hosts"
SOURCE = "report"
"""A key of rows: the file that they come from, if the reference is a directory; no column of a file."""
DEVICE = ("device", "device_name", "emulated_nodes")
NEEDED = ("name", "model", "parallelism", "nodes", "ranks", *DEVICE, "not_used_because", m.TOKENS_PER_S.name)
MOST_FILES = 1000
MAKE_ONE = "A reference is a runs.csv written by an earlier `slurmscale report DIR`; make one and keep it elsewhere."


@dataclass(frozen=True)
class RunsTable:
    """A runs.csv: its columns, and its rows as text by column."""

    columns: Sequence[str]
    rows: Sequence[Mapping[str, str]]

    @property
    def used(self) -> list[Mapping[str, str]]:
        """The rows that were measured and whose loss is believed."""
        return [row for row in self.rows if not row["not_used_because"] and not row.get("loss_doubt")]


def read_reference(path: Path) -> RunsTable:
    """Read the table of a file, or those of a directory as one, whose rows then have SOURCE.

    Raise ReportError with line and column if a file is not a runs.csv, and if there is no valid run.
    """
    if not path.is_dir():
        return used(read_table(path), path)
    tables = {str(file.relative_to(path)): read_table(file) for file in files_of(path)}
    if not tables:
        raise ReportError(f"{path} has no runs*.csv and no directory with a runs.csv. {MAKE_ONE}")
    first = next(iter(tables.values())).columns
    columns = [name for name in first if all(name in table.columns for table in tables.values())]
    return used(
        RunsTable(columns, [{**row, SOURCE: name} for name, table in tables.items() for row in table.rows]), path
    )


def files_of(directory: Path) -> list[Path]:
    """Return the reports of a reference that is a directory, in the order of their names."""
    found = sorted([*directory.glob("runs*.csv"), *directory.glob("*/runs.csv")])
    if len(found) > MOST_FILES:
        raise ReportError(f"{directory} has {len(found):,} reports, more than {MOST_FILES:,}. Keep the latest ones.")
    return found


def used(table: RunsTable, path: Path) -> RunsTable:
    """Return a table that has a valid run."""
    if not table.used:
        raise ReportError(f"{path} contains no valid run to compare with.")
    return table


def read_table(path: Path) -> RunsTable:
    """Read the table of a file."""
    try:
        text = read_bytes(path).decode("utf-8-sig")
    except OSError as error:
        raise ReportError(f"{path} cannot be read: {reason(error)}. {MAKE_ONE}") from error
    except UnicodeDecodeError as error:
        raise ReportError(f"{path} is not UTF-8 text (byte {error.start}). {MAKE_ONE}") from error
    return parsed(text, str(path))


def parsed(text: str, where: str) -> RunsTable:
    """Parse the table of a text; raise ReportError with `where`, line and column."""
    # Strict: a quote that is never closed is a torn file, not a long cell.
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        columns = next(reader, [])
        refuse_other_tables(columns, text, where)
        rows = []
        for cells in reader:
            if len(cells) != len(columns):
                raise ReportError(
                    f"{where}, line {reader.line_num}: {len(cells)} cells for {len(columns)} columns: "
                    "the file is cut short or was edited. Take the original, or write it again."
                )
            row = dict(zip(columns, cells, strict=True))
            refuse_impossible_values(row, f"{where}, line {reader.line_num}")
            rows.append(row)
    except csv.Error as error:
        raise ReportError(
            f"{where}, line {reader.line_num}: not CSV ({error}): the file is cut short or was edited. Take the "
            "original, or write it again."
        ) from error
    return RunsTable(columns, rows)


def refuse_other_tables(columns: Sequence[str], text: str, where: str) -> None:
    """Raise ReportError unless these are the columns of a runs.csv."""
    missing = [name for name in NEEDED if name not in columns]
    if missing:
        first = text.split("\n", 1)[0]
        saved = " It contains semicolons: a spreadsheet saved it in another form." if ";" in first else ""
        raise ReportError(
            f"{where} has no column {missing[0]}; its first line begins {short(first, 60)!r}.{saved} {MAKE_ONE}"
        )
    twice = sorted({name for name in columns if columns.count(name) > 1})
    if twice:
        raise ReportError(f"{where} contains the column {twice[0]!r} more than once: it was edited. Take the original.")


def refuse_impossible_values(row: Mapping[str, str], where: str) -> None:
    """Raise ReportError if a checked metric of a used row is not a number or is out of range."""
    for metric in CHECKED:
        text = row.get(metric.name, "")
        if not text or row["not_used_because"]:
            continue
        value = printed_number(text)
        positive = metric.better is Better.high
        if value is None or value < 0 or (value == 0 and positive):
            raise ReportError(
                f"{where}, column {metric.name}: {short(text, 40)!r} is not a {metric.name} "
                f"({'a number above 0' if positive else 'a number, not negative'}, in {metric.unit}). "
                "Take the original file, or write it again."
            )
