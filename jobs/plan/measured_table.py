"""A table of measured runs for `slurmscale calibrate`: a CSV file with one row per run.

Columns are keys as in overrides (model, nodes, parallelism.tensor, job.micro_batch_size, ...), a cell the value, and an
empty cell the default. Measured values are in `step_time_s` and `memory_bytes`; empty: not measured.
"""

from __future__ import annotations

import csv
import math
from pathlib import Path

from jobs.errors import ConfigError
from jobs.files import read_bytes, reason
from jobs.metrics import STEP_TIME
from jobs.plan.calibrate import MeasuredRun
from jobs.plan.compose import compose
from jobs.plan.legality import problems_but_memory

MEASURED = (STEP_TIME.name, "memory_bytes")


def read_table(path: Path) -> list[MeasuredRun]:
    """Return the runs of a table; raise ConfigError with the line of what is wrong."""
    try:
        # utf-8-sig: spreadsheets write a byte order mark.
        lines = read_bytes(path).decode("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} cannot be read: {reason(error)}. Pass a table, a sweep or a run directory."
        ) from None
    rows = csv.DictReader(lines)
    if not set(MEASURED) & set(rows.fieldnames or ()):
        raise ConfigError(
            f"{path} has no column {' or '.join(MEASURED)}. Its columns are keys, such as model and nodes, and what "
            "was measured of each run."
        )
    return [read_row(f"{path}:{rows.line_num}", row) for row in rows]


def read_row(where: str, row: dict[str, str | None]) -> MeasuredRun:
    """Return the run of a row, which may be one that is predicted not to fit."""
    overrides = [f"{key}={value}" for key, value in row.items() if key not in MEASURED and value]
    try:
        (point,) = compose(overrides, multirun=False, judge=problems_but_memory, to_submit=False, received=True)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    step_time_s, memory_bytes = (measured(where, key, row.get(key)) for key in MEASURED)
    return MeasuredRun(where, point.run, step_time_s, memory_bytes)


def measured(where: str, key: str, text: str | None) -> float | None:
    """Return a measured number above 0, or None for an empty cell."""
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise ConfigError(f"{where}: {key} is {text!r}. Write a number above 0, or leave the cell empty.")
    return value
