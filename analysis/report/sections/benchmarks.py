"""What logs measure that tell of no training: collectives, storage, serving.

A section a format: a row a file and measurement, the numbers as columns in the units of the page.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence

from analysis.formatting import ABSENT, shown, title
from analysis.logs.file import LogFile
from analysis.parsers.base import Kind, Record, Text
from analysis.report.figures.style import Section
from jobs.metrics import Metric

MOST_ROWS = 200
# Texts that tell the measurements of one file apart.
NAMING = (Text.benchmark, Text.variant, Text.device, Text.event, Text.job_id, Text.job_name, Text.state)
# Formats of which a report needs more than a table of what they say, and has it elsewhere.
ELSEWHERE = {"MLPerf MLLOG", "MLPerf system description"}


def measurement_sections(logs: Sequence[LogFile]) -> list[Section]:
    """A section for each format that measured something but training."""
    told: dict[str, list[tuple[LogFile, Record]]] = defaultdict(list)
    for log in logs:
        for (form, kind), records in log.records.items():
            training = (form, Kind.step) in log.records or form in ELSEWHERE
            if kind in {Kind.measurement, Kind.summary, Kind.job} and not training:
                told[form] += [(log, record) for record in records if record.values]
    return [section(form, rows) for form, rows in sorted(told.items()) if rows]


def section(form: str, rows: Sequence[tuple[LogFile, Record]]) -> Section:
    """The table of one format; the columns are what any of its rows has."""
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
    note = f"As {form} says it, one row a measurement; numbers are defined in the table of metrics."
    note += f" Left out: {left_out:,} further rows." if left_out else ""
    return Section(form, note, ("File", *map(title, metrics), "What"), cells)
