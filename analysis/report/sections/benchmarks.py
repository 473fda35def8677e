"""Tables of benchmark logs: collectives, storage, serving.

One section a format, one row a file and measurement; the columns are numbers in the units of the page.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence

from analysis.formatting import ABSENT, shown, title
from analysis.logs.file import LogFile
from analysis.parsers.base import Record, Text
from analysis.report.figures.style import Section
from jobs.metrics import Metric

MOST_ROWS = 200
# Texts that distinguish the measurements of one file.
NAMING = (Text.benchmark, Text.variant, Text.device, Text.event, Text.job_id, Text.job_name, Text.state)


def measurement_sections(logs: Sequence[LogFile]) -> list[Section]:
    """Return a section for each format with measurements other than training steps."""
    found: dict[str, list[tuple[LogFile, Record]]] = defaultdict(list)
    for log in logs:
        for form, records in log.measurements.items():
            found[form] += [(log, record) for record in records]
    return [section(form, rows) for form, rows in sorted(found.items()) if rows]


def section(form: str, rows: Sequence[tuple[LogFile, Record]]) -> Section:
    """Return the table of one format; its columns are the metrics of any row."""
    metrics: dict[Metric, None] = {}
    for _, record in rows:
        metrics |= dict.fromkeys(record.values)
    above = os.path.commonpath([log.path.parent for log, _ in rows])
    cells = [
        [
            os.path.relpath(log.path, above),
            *(shown(metric, record.values.get(metric)) for metric in metrics),
            ", ".join(record.texts[text] for text in NAMING if text in record.texts) or ABSENT,
        ]
        for log, record in rows[:MOST_ROWS]
    ]
    left_out = len(rows) - len(cells)
    note = f"As reported by {form}, one row a measurement; the table of metrics defines the columns."
    note += f" Left out: {left_out:,} further rows." if left_out else ""
    return Section(form, note, ("File", *map(title, metrics), "Details"), cells)
