"""The content of a report: headline, warnings, tables and figures, before it is written as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from analysis.failures.runs import failures
from analysis.formatting import listed, one_line, plural
from analysis.load.account import UNKNOWN_FORMAT, FileUse, Use, summary
from analysis.load.discover import Found
from analysis.load.kinds.train import so_far
from analysis.report.bottlenecks import Bottlenecks, bottlenecks
from analysis.report.caveats import warnings
from analysis.report.digest import DEFAULT, Digest, Training, did_other_work, digest_of
from analysis.report.figures.page import figures
from analysis.report.figures.style import Figure, Section
from analysis.report.headline import headlines
from analysis.report.leaderboard import sections as campaign_sections
from analysis.report.points_table import PointRow, point_table
from analysis.report.provenance import MOST_LISTED, facts, notes_of
from analysis.report.runs_columns import Column, Row
from analysis.report.runs_table import fold, rows_of
from analysis.report.sections.layouts import memory_and_communication
from analysis.report.sections.page import sections
from analysis.report.sections.study import study_sections
from analysis.report.sections.tuning import tuning_sections
from analysis.run import hardware
from jobs import metrics as m
from jobs.metrics import Metric


@dataclass(frozen=True)
class Live:
    """The state of a page that will be written again."""

    line: str
    """The line above it."""
    reload_s: int
    """Seconds after which it reloads itself."""
    running: frozenset[Path]
    """The directories of the runs that are running."""


@dataclass(frozen=True)
class Report:
    """The content of the page and the tables, before it is written as text."""

    digest: Digest
    title: str
    lead: str
    headlines: Sequence[str]
    bottlenecks: Sequence[Bottlenecks]
    warnings: Sequence[str]
    rows: Sequence[Row]
    figures: Sequence[Figure]
    rankings: Sequence[Section]
    """Leaderboards, ledgers, tables of studies and tunings, shown before all other measurements."""
    sections: Sequence[Section]
    unknown: Sequence[str]
    """Files of unknown format."""
    account: str
    """The number of files given, by their use."""
    listed: Sequence[FileUse]
    """Files of known format that are neither a run nor a measurement nor a description."""
    foreign_metrics: Sequence[Metric]
    """Metrics of these logs that are not in the registry."""
    facts: Sequence[tuple[str, Sequence[str]]]
    live: Live | None = None

    @property
    def all_figures(self) -> list[Figure]:
        """The figures of sections and those of the section of figures."""
        of_sections = [section.figure for section in (*self.rankings, *self.sections) if section.figure]
        return [*of_sections, *self.figures]

    @cached_property
    def used(self) -> list[Row]:
        """The rows of the runs used for the headline."""
        return [row for row in self.rows if row.run.used]

    @cached_property
    def unused(self) -> list[Row]:
        """The rows of the runs that are not used; each has a reason."""
        return [row for row in self.rows if not row.run.used and not did_other_work(row.run)]

    # The tables that the page and its text share.

    @cached_property
    def runs(self) -> tuple[list[Column], str]:
        """The columns of the table of used runs, and the settings that all of them share."""
        return fold(self.used)

    @cached_property
    def points(self) -> tuple[Sequence[str], Sequence[PointRow]]:
        """Headings and rows of the table of points."""
        return point_table(self.digest.groups)

    @cached_property
    def layouts(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Headings and rows of the table of memory and communication."""
        return memory_and_communication(self.digest.groups)


def build(found: Found, training: Training = DEFAULT, live: Live | None = None) -> Report:
    """Return the report of these runs and logs: comparisons, warnings, and the cost of a training."""
    running = [so_far(run) for run in found.runs if run.path.resolve() in live.running] if live else []
    digest = digest_of(found, training, running)
    of_runs = [metric for run in found.runs for metric in run.values]
    of_logs = [metric for log in found.logs for records in log.records.values() for r in records for metric in r.values]
    return Report(
        digest=digest,
        title=report_title(found),
        lead=lead(digest),
        headlines=headlines(digest),
        bottlenecks=bottlenecks(digest.groups),
        warnings=warnings(digest),
        rows=rows_of(digest, failures(digest.runs)),
        figures=figures(digest),
        rankings=[*campaign_sections(digest.boards), *study_sections(digest), *tuning_sections(digest)],
        sections=sections(digest),
        unknown=found.unknown,
        account=summary(found.uses),
        listed=[each for each in found.uses if each.use is Use.listed and each.reason != UNKNOWN_FORMAT],
        foreign_metrics=sorted({*of_runs, *of_logs} - set(m.REGISTRY.values()), key=lambda metric: metric.name),
        facts=facts(digest.used or digest.runs),
        live=live,
    )


# --- words -----------------------------------------------------------------------------------------------------


def report_title(found: Found) -> str:
    """Return the title: the sweeps of the runs, or the directories of the logs if there is no run."""
    if found.runs:
        return one_line(f"Scaling report: {listed(sorted({run.sweep for run in found.runs}), most=3)}")
    return one_line(f"Report: {listed(sorted({log.path.parent.name for log in found.logs}), most=3)}")


def lead(digest: Digest) -> str:
    """Return the notes of the sweeps, and the hardware, size, time and number of the runs that measured something."""
    notes = [f"{text.rstrip('.')}. " for text in notes_of(digest.recorded or digest.runs).values() if text]
    return f"{''.join(dict.fromkeys(notes))}{measured_by(digest)}"


def measured_by(digest: Digest) -> str:
    """Return the hardware, size, time and number of the runs that measured something."""
    used, count = digest.recorded, len(digest.runs)
    if not count:
        return f"{plural(len(digest.logs), 'log')} without a training run."
    if not used:
        # Runs that served or tested would be among the used ones.
        what = "No training" if digest.measurements or digest.evaluations else "Nothing"
        return f"{what} measured: 0 of {plural(count, 'run')} can be used."
    devices = sorted({str(name) for run in used if (name := run.started.get("device_name"))})
    of_known = [run for run in used if run.started.get("device_name")]
    unnamed = len(used) - len(of_known)
    named = f"{hardware(of_known)} runs on {listed(devices, MOST_LISTED)}, " if devices else "Runs on "
    ranks = sorted({run.ranks for run in used if run.ranks})
    nodes = sorted({nodes for run in used if isinstance(nodes := run.setting("nodes"), int)})
    times = sorted(str(event["time"]) for run in used for event in run.events if "time" in event)
    when = f", {period(times[0], times[-1])}" if times else ""
    where = " on ".join(span(counts, noun) for counts, noun in ((ranks, "rank"), (nodes, "node")) if counts)
    unknown = sum(run.setting("nodes") is None for run in used)
    lacking = [f"nodes of {plural(unknown, 'run')}"] if nodes and unknown else []
    lacking += [f"device of {plural(unnamed, 'run')}"] if devices and unnamed else []
    where += f" ({' and '.join(lacking)} unknown)" if lacking else ""
    named = named.replace("runs", "run", 1).replace("Runs", "Run", 1) if len(used) == 1 else named
    return f"{named}{where or 'an unknown number of ranks'}{when}; {len(used):,} of {plural(count, 'run')} used."


def period(first: str, last: str) -> str:
    """Return two ISO 8601 times in UTC to the minute, a common date once."""
    first, last = first[:16].replace("T", " "), last[:16].replace("T", " ")
    if first == last:
        return f"{first} UTC"
    return f"{first} to {last[11:] if first[:10] == last[:10] else last} UTC"


def span(counts: Sequence[int], noun: str) -> str:
    """Return the range of sorted counts: `1 to 8 ranks`."""
    return plural(counts[0], noun) if len(counts) == 1 else f"{counts[0]:,} to {plural(counts[-1], noun)}"
