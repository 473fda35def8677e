"""runs.parquet: the columns of runs.csv with their types, a metric's unit and definition in its field's metadata.

Text that looks like a formula is not escaped: no spreadsheet evaluates a Parquet file.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from analysis.report.export.data_frames import typed_runs
from analysis.report.runs_columns import Row
from analysis.report.runs_table import columns_of


def runs_parquet(rows: Sequence[Row]) -> bytes:
    """Return the data frame of runs as the bytes of a Parquet file."""
    table = pa.Table.from_pandas(typed_runs(rows), preserve_index=False)
    schema = table.schema
    for i, column in enumerate(columns_of(rows)):
        if column.metric is not None:
            about = {"unit": column.metric.unit, "definition": column.metric.definition}
            schema = schema.set(i, schema.field(i).with_metadata(about))
    file = io.BytesIO()
    pq.write_table(table.cast(schema), file)
    return file.getvalue()
