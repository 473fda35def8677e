"""measurements.csv and its data frame: benchmarks that are not training, one row per value."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from analysis.formatting import csv_cell
from analysis.logs.measurements import Measurement

FILE_NAME = "measurements.csv"
COLUMNS = ("format", "benchmark", "details", "axis", "at", "axis_unit", "metric", "value", "unit", "path", "line")


def measurements_frame(found: Sequence[Measurement]) -> pd.DataFrame:
    """Return a row for each value, with the size or load at which it was measured; Python objects, None if absent."""
    rows = [
        (
            each.form,
            each.benchmark,
            each.details or None,
            axis.name if (axis := each.axis) else None,
            each.at(axis) if axis else None,
            axis.unit if axis else None,
            metric.name,
            value,
            metric.unit,
            str(each.path),
            each.line or None,
        )
        for each in found
        for metric, value in each.values.items()
        if metric is not each.axis
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS), dtype=object)


def to_csv(found: Sequence[Measurement]) -> str:
    """Return all rows in full precision and SI units, with a line of names; no text is a formula."""
    return str(measurements_frame(found).map(csv_cell).to_csv(index=False, lineterminator="\n"))
