"""The counters of filers and switches that were recorded next to the runs: a mean for each run, and lines."""

from __future__ import annotations

from analysis.formatting import ABSENT, percent, significant, title
from analysis.report.digest import Digest
from analysis.report.figures.side_files import side_figure
from analysis.report.figures.style import Section, word_of


def side_section(digest: Digest) -> Section | None:
    """Return a row for each run and side file; None if no run names one."""
    records = digest.side_records
    if not records:
        return None
    metrics = list(dict.fromkeys(metric for record in records for metric in record.means))
    rows = [
        [
            record.run.name,
            record.name,
            *(
                significant(record.means[metric] / metric.display.size, 4) if metric in record.means else ABSENT
                for metric in metrics
            ),
            ABSENT if record.covered is None else percent(record.covered),
            record.remark or ABSENT,
        ]
        for record in records
    ]
    note = (
        f"{word_of(record.run for record in records)}: means of counters that other machines recorded, over the time "
        "of each run from its start to its last event. Rows of one moment, such as those of the nodes of a filer, are "
        "averaged. The clocks are those of the files: nothing shows that they agree with the nodes'."
    )
    headings = ("Run", "File", *map(title, metrics), "Time covered", "Remark")
    return Section("Side files", note, headings, rows, side_figure(records))
