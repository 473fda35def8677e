"""`slurmscale report DIR...`: run directories in; report.html, report.md, runs.csv and the files of `--format` out.

The page opens offline and fetches nothing: plotly.js is embedded once and a content security policy forbids the
rest. Same inputs, same bytes: no time of day, no random ids. Everything from a file is text: jinja escapes it in HTML
and in the figures' JSON. Imports no torch.
"""

from __future__ import annotations

import base64
import gc
import hashlib
import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import plotly.offline
from markupsafe import Markup

from analysis.compare.loss import loss_doubts
from analysis.failures.runs import failures
from analysis.formatting import ABSENT, listed, one_line, plural, unbroken
from analysis.formatting import markdown_cell as escaped
from analysis.load.account import FileUse, only_listed, summary
from analysis.load.discover import Found, read
from analysis.logs.steps import STEADY_RULE, WARM_UP_RULE
from analysis.report.bottlenecks import Bottlenecks, bottlenecks
from analysis.report.caveats import warnings
from analysis.report.export.formats import chosen_formats, exported, exports_in
from analysis.report.figures.page import figures
from analysis.report.figures.style import Figure, Section
from analysis.report.headline import headlines
from analysis.report.leaderboard import FILE_NAME as LEADERBOARD
from analysis.report.leaderboard import answers as campaign_answers
from analysis.report.leaderboard import sections as campaign_sections
from analysis.report.leaderboard import to_csv as leaderboard_csv
from analysis.report.points_table import interval_words, point_table
from analysis.report.runs_table import Row, fold, markdown_table, rows_of, to_csv
from analysis.report.sections.benchmarks import measurement_sections
from analysis.report.sections.checkpoints import checkpoint_section
from analysis.report.sections.cost import cost_section
from analysis.report.sections.goodput import goodput_section
from analysis.report.sections.laws import fits_section
from analysis.report.sections.layouts import memory_and_communication
from analysis.report.sections.mfu import utilization_section
from analysis.report.sections.mlperf import mlperf_section
from analysis.report.sections.published import published_section
from analysis.report.sections.startup import startup_section
from analysis.report.sections.stragglers import straggler_section
from analysis.run import RunResult, hardware
from analysis.scaling.groups import Group, scaling_groups
from analysis.untrusted import as_list, lookup
from jobs import metrics as m
from jobs.errors import ReportError
from jobs.metrics import Metric
from jobs.output import own_directory, write_file
from jobs.visible import visible, visible_values

MOST_LISTED = 12
# Rows that a table shows; runs.csv has every run.
MOST_ROWS = 1000


@dataclass(frozen=True)
class Report:
    """The content of the page and the tables, before it is written as text."""

    title: str
    lead: str
    headlines: Sequence[str]
    bottlenecks: Sequence[Bottlenecks]
    warnings: Sequence[str]
    groups: Sequence[Group]
    rows: Sequence[Row]
    figures: Sequence[Figure]
    campaigns: Sequence[Section]
    """Leaderboards and ledgers, shown before all other measurements."""
    sections: Sequence[Section]
    measurements: Sequence[Section]
    """Measurements in logs without training: collectives, storage, serving."""
    unknown: Sequence[str]
    """Files of unknown format."""
    account: str
    """The number of files given, by their use."""
    listed: Sequence[FileUse]
    """Files of known format that are neither a run nor a measurement nor a description."""
    foreign_metrics: Sequence[Metric]
    """Metrics of these logs that are not in the registry."""
    facts: Sequence[tuple[str, Sequence[str]]]

    @property
    def used(self) -> list[Row]:
        """The rows of the runs used for the headline."""
        return [row for row in self.rows if row.run.used]

    @property
    def unused(self) -> list[Row]:
        """The rows of the runs that are not used; each has a reason."""
        return [row for row in self.rows if not row.run.used]


def report(paths: list[Path], output: Path | None, formats: Iterable[str] = ()) -> Path:
    """Write report.html, report.md, runs.csv and the files of `formats` into `output`; return the page's path.

    Without `output`, write into the directory given, or into the current one if several are given. Raise ReportError
    if a path does not exist or contains no run, a format is unknown or lacks its package, or writing fails.
    """
    chosen = chosen_formats(formats)
    # 10,000 runs have millions of objects and no garbage: collecting would take half of the time.
    collecting = gc.isenabled()
    gc.disable()
    try:
        content = build(read(paths, may_spawn=True))
        return write(content, output or (paths[0] if len(paths) == 1 else Path()), chosen)
    finally:
        if collecting:
            gc.enable()


def write(content: Report, folder: Path, formats: Iterable[str]) -> Path:
    """Write the three files and those of `formats`; return the page's path. Raise ReportError if writing fails."""
    files: dict[str, str | bytes] = {
        "runs.csv": visible(to_csv(content.rows)),
        "report.md": visible(markdown(content)),
        "report.html": page(content),
    }
    if board := leaderboard_csv([row.run for row in content.rows]):
        files[LEADERBOARD] = visible(board)
    files |= exported(formats, content.rows, content.groups, content.figures)
    earlier = [name for name in exports_in(folder) if name not in files]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            if (folder / name).parent != folder:
                own_directory((folder / name).parent)
            write_file(folder / name, data)
    except OSError as error:
        raise ReportError(
            f"{error.filename or folder} cannot be written: {error.strerror or error}. "
            "Choose another place with --output DIR."
        ) from error
    if earlier:
        names = listed(earlier, MOST_LISTED)
        text = f"{folder} still holds files of an earlier report, which this one did not write: {names}"
        print(one_line(text), file=sys.stderr)
    return folder / "report.html"


def build(found: Found) -> Report:
    """Return the report of these runs and logs: comparisons and warnings."""
    runs = found.runs
    doubts = loss_doubts(runs)
    groups = scaling_groups(runs, doubts.keys())
    used = [run for run in runs if run.used]
    measurements = measurement_sections(found.logs)
    return Report(
        title=report_title(found),
        lead=lead(used, len(runs), len(found.logs), beside=bool(measurements)),
        headlines=[*campaign_answers(runs), *headlines(groups, runs)],
        bottlenecks=bottlenecks(groups),
        warnings=warnings(runs, doubts, groups),
        groups=groups,
        rows=rows_of(runs, groups, doubts, failures(runs)),
        figures=figures(groups),
        campaigns=campaign_sections(runs),
        sections=[
            each
            for each in (
                published_section(groups),
                fits_section(groups),
                mlperf_section(runs),
                utilization_section(used),
                cost_section(groups, used, len(runs) - len(used)),
                startup_section(used),
                goodput_section(used),
                checkpoint_section(used),
                straggler_section(used),
            )
            if each
        ],
        measurements=measurements,
        unknown=found.unknown,
        account=summary(found.uses),
        listed=only_listed(found.uses),
        foreign_metrics=foreign_metrics(found),
        facts=facts(used or runs),
    )


def foreign_metrics(found: Found) -> list[Metric]:
    """Return the metrics of these logs that are not in the registry, by name."""
    of_runs = [metric for run in found.runs for metric in run.values]
    of_logs = [metric for log in found.logs for records in log.records.values() for r in records for metric in r.values]
    return sorted({*of_runs, *of_logs} - set(m.REGISTRY.values()), key=lambda metric: metric.name)


# --- words -----------------------------------------------------------------------------------------------------


def report_title(found: Found) -> str:
    """Return the title: the sweeps of the runs, or the directories of the logs if there is no run."""
    if found.runs:
        return one_line(f"Scaling report: {listed(sorted({run.sweep for run in found.runs}), most=3)}")
    return one_line(f"Report: {listed(sorted({log.path.parent.name for log in found.logs}), most=3)}")


def lead(used: Sequence[RunResult], count: int, logs: int, *, beside: bool) -> str:
    """Return the hardware, size, time and number of used runs of the report; `beside` them are other measurements."""
    if not count:
        return f"{plural(logs, 'log')} without a training run."
    if not used:
        return f"{'No training' if beside else 'Nothing'} measured: 0 of {plural(count, 'run')} can be used."
    devices = sorted({str(run.started.get("device_name", "an unnamed device")) for run in used})
    ranks = sorted({run.ranks for run in used if run.ranks})
    nodes = sorted({nodes for run in used if isinstance(nodes := run.setting("nodes"), int)})
    times = sorted(str(event["time"]) for run in used for event in run.events if "time" in event)
    when = f", {period(times[0], times[-1])}" if times else ""
    where = " on ".join(span(counts, noun) for counts, noun in ((ranks, "rank"), (nodes, "node")) if counts)
    unknown = sum(run.setting("nodes") is None for run in used)
    where += f" ({plural(unknown, 'run')} of unknown nodes)" if nodes and unknown else ""
    runs = "run" if len(used) == 1 else "runs"
    return (
        f"{hardware(used)} {runs} on {listed(devices, MOST_LISTED)}, {where or 'number of ranks unknown'}{when}; "
        f"{len(used):,} of {plural(count, 'run')} used."
    )


def period(first: str, last: str) -> str:
    """Return two ISO 8601 times in UTC to the minute, a common date once."""
    first, last = first[:16].replace("T", " "), last[:16].replace("T", " ")
    if first == last:
        return f"{first} UTC"
    return f"{first} to {last[11:] if first[:10] == last[:10] else last} UTC"


def span(counts: Sequence[int], noun: str) -> str:
    """Return the range of sorted counts: `1 to 8 ranks`."""
    return plural(counts[0], noun) if len(counts) == 1 else f"{counts[0]:,} to {plural(counts[-1], noun)}"


def facts(runs: Sequence[RunResult]) -> list[tuple[str, list[str]]]:
    """Return the provenance: each fact with its distinct values and their numbers of runs."""
    versions = [lookup(run.provenance, "versions") for run in runs]
    commands = [[str(part) for part in as_list(run.provenance.get("command"))] for run in runs]
    dirty = {True: " with uncommitted changes", False: ""}
    commits = [
        f"{commit}{dirty[lookup(run.provenance, 'git.dirty') is True]}"
        for run in runs
        if (commit := lookup(run.provenance, "git.commit"))
    ]
    named: list[tuple[str, Iterable[str]]] = [
        ("Git commit", commits),
        ("Code digest", known(run.provenance.get("code_digest") for run in runs)),
        (
            "Versions",
            [", ".join(f"{k} {v}" for k, v in sorted(each.items())) for each in versions if isinstance(each, dict)],
        ),
        ("Torch of the ranks", known(run.started.get("torch") for run in runs)),
        ("Submitted from", known(run.provenance.get("host") for run in runs)),
        ("Ran on", [", ".join(map(str, as_list(run.started.get("nodes")))) for run in runs if run.started]),
        ("Device", known(run.started.get("device_name") for run in runs)),
        ("Data", known(run.started.get("data") for run in runs)),
        ("Command", [shlex.join(command) for command in commands if command]),
    ]
    return [(name, counted(values)) for name, values in named]


def known(values: Iterable[Any]) -> list[str]:
    """Return the values that are not None, as text."""
    return [str(value) for value in values if value is not None]


def counted(values: Iterable[str]) -> list[str]:
    """Return distinct values, most frequent first, each with its number of runs if there are several."""
    counts = sorted(Counter(values).items(), key=lambda item: (-item[1], item[0]))
    lines = [value if len(counts) == 1 else f"{value} ({plural(count, 'run')})" for value, count in counts]
    return lines[:MOST_LISTED] + ([f"and {len(lines) - MOST_LISTED} more"] if len(lines) > MOST_LISTED else [])


# --- tables ----------------------------------------------------------------------------------------------------

UNUSED_HEADINGS = ("Run", "Sweep", "State", "Reason", "Failure cause", "Evidence", "Remedy")


def unused_cells(row: Row) -> list[str]:
    """Return the cells of a run that is not used, under UNUSED_HEADINGS."""
    ended = row.ended
    failure = [ended.words, ended.proof or ABSENT, ended.cause.advice] if ended else [ABSENT] * 3
    return [row.run.name, row.run.sweep, row.run.state, str(row.run.reason), *failure]


def rows_left_out(count: int) -> str:
    """Return the note below a table with this number of rows; empty if all are shown."""
    return f"The first {MOST_ROWS:,} of {count:,} rows; every run is in runs.csv." if count > MOST_ROWS else ""


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], count: int | None = None) -> str:
    """Return a Markdown table of at most MOST_ROWS rows; `count` is the total if `rows` is only a part."""
    more = rows_left_out(len(rows) if count is None else count)
    return markdown_table(headings, rows[:MOST_ROWS]) + (f"\n{more}\n" if more else "")


def in_words(settings: Sequence[tuple[str, str]]) -> str:
    """Return settings with their values: `Model tiny, GBS 16`."""
    return ", ".join(f"{heading} {value}" for heading, value in settings) + "." if settings else ""


def markdown(content: Report) -> str:
    """Return the report as Markdown."""
    columns, shared = fold(content.used)
    parts = [f"# {escaped(content.title)}\n\n{escaped(content.lead)}\n"]
    parts += [f"\n**{escaped(sentence)}**\n" for sentence in content.headlines]
    for each in content.bottlenecks:
        text = "".join(f"- {escaped(sentence)}\n" for sentence in each.sentences)
        parts.append(f"\n## {escaped(each.heading)}\n\n{text}")
    if content.warnings:
        parts.append("\n## Warnings\n\n" + "".join(f"- {escaped(sentence)}\n" for sentence in content.warnings))
    parts += [f"\n## {escaped(each.heading)}\n\n" + table(each.headings, each.rows) for each in content.campaigns]
    if content.used:
        point_headings, points = point_table(content.groups)
        held_headings, held_rows = memory_and_communication(content.groups)
        runs = [[column.text(row) for column in columns] for row in content.used[:MOST_ROWS]]
        if points:
            parts.append(
                f"\n## Points: median over repeats (smallest to largest)\n\n{interval_words(content.groups)}\n\n"
                + table(point_headings, [row.cells for row in points])
            )
        if held_rows:
            cells = [[text.replace("\n", "; ") for text in row] for row in held_rows]
            parts.append("\n## Memory and communication per rank\n\n" + table(held_headings, cells))
    for section in (*content.sections, *content.measurements):
        parts.append(f"\n## {escaped(section.heading)}\n\n" + table(section.headings, section.rows))
    if content.used:
        parts.append("\n## Runs\n\n" + table([column.heading or "" for column in columns], runs, len(content.used)))
        parts += ["\nThe same in all runs: " + escaped(in_words(shared)) + "\n"] if shared else []
    if content.unused:
        unused = [unused_cells(row) for row in content.unused]
        parts.append("\n## Runs not used, with reasons\n\n" + table(UNUSED_HEADINGS, unused))
    if content.unknown:
        rest = f"\nand {len(content.unknown) - MOST_LISTED:,} more\n" if len(content.unknown) > MOST_LISTED else ""
        names = "".join(f"- {escaped(path)}\n" for path in content.unknown[:MOST_LISTED])
        parts.append(f"\n## Files of unknown format: {len(content.unknown):,}\n\n{names}{rest}")
    parts.append(f"\n## Files given\n\n{content.account}\n")
    parts += [f"- {escaped(each.name)}: {each.reason}\n" for each in content.listed]
    return "".join(parts)


def page(content: Report) -> str:
    """Return the self-contained HTML page."""
    columns, shared = fold(content.used)
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # Of each value: the page as a whole contains the script of plotly.
        finalize=lambda value: visible(value) if type(value) is str else value,
    )
    environment.filters["unbroken"] = unbroken
    template = environment.from_string(resource("page.html.j2"))
    held_headings, held_rows = memory_and_communication(content.groups)
    point_headings, points = point_table(content.groups)
    plots = {figure.name: visible_values(figure.plot.to_plotly_json()) for figure in content.figures if figure.plot}
    own = [row.run for row in content.used if row.run.log is None]
    unmeasured = sorted({run.config["job"]["unmeasured_steps"] for run in own})
    # Neither contains a closing script tag.
    scripts = [plotly.offline.get_plotlyjs(), resource("page.js")] if plots else []
    return template.render(
        report=content,
        columns=columns,
        shared=in_words(shared),
        point_headings=point_headings,
        points=points,
        most_listed=MOST_LISTED,
        intervals=interval_words(content.groups),
        unused_headings=UNUSED_HEADINGS,
        unused_cells=unused_cells,
        held_headings=held_headings,
        held_rows=held_rows,
        held_metric=m.PARAMETERS_HELD,
        sent_metric=m.COLLECTIVE_BYTES,
        metrics=[*m.REGISTRY.values(), *content.foreign_metrics],
        most_rows=MOST_ROWS,
        rows_left_out=rows_left_out,
        unmeasured=listed([str(count) for count in unmeasured], MOST_LISTED),
        warm_up_rule=f"{WARM_UP_RULE} {STEADY_RULE}" if len(own) < len(content.used) else None,
        plots=plots,
        scripts=[Markup(script) for script in scripts],  # noqa: S704 (no text of a run is in them)
        script_sources=Markup(script_sources(scripts)),  # noqa: S704 (digests)
    )


def resource(name: str) -> str:
    """Return the text of a file of this package."""
    return (resources.files("analysis") / "report" / name).read_text(encoding="utf-8")


def script_sources(scripts: Iterable[str]) -> str:
    """Return the `script-src` of the content security policy: only the digests of these scripts."""
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    return " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"
