"""The content of a report: headline, warnings, tables and figures, before it is written as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from analysis.compare.attempt_labels import attempts_of, labelled_by_attempt
from analysis.compare.loss import loss_doubts
from analysis.failures.runs import failures
from analysis.formatting import listed, one_line, plural
from analysis.load.account import FileUse, only_listed, summary
from analysis.load.discover import Found
from analysis.logs.measurements import Measurement, measurements
from analysis.report.bottlenecks import Bottlenecks, bottlenecks
from analysis.report.caveats import warnings
from analysis.report.figures.benchmarks import benchmark_figures
from analysis.report.figures.page import figures
from analysis.report.figures.serving import serving_figures
from analysis.report.figures.style import Figure, Section
from analysis.report.headline import headlines
from analysis.report.leaderboard import sections as campaign_sections
from analysis.report.leaderboard_text import answers as campaign_answers
from analysis.report.provenance import MOST_LISTED, facts
from analysis.report.runs_columns import Row
from analysis.report.runs_table import rows_of
from analysis.report.sections.benchmarks import benchmark_headlines, measurement_sections
from analysis.report.sections.checkpoints import checkpoint_section
from analysis.report.sections.cost import cost_section
from analysis.report.sections.customization import customization_section
from analysis.report.sections.data import data_section
from analysis.report.sections.evaluations import evaluation_headlines, evaluation_section
from analysis.report.sections.goodput import goodput_section
from analysis.report.sections.images import image_section
from analysis.report.sections.laws import fits_section
from analysis.report.sections.log_figures import log_figures_section
from analysis.report.sections.mfu import utilization_section
from analysis.report.sections.mlperf import mlperf_section
from analysis.report.sections.node_use import node_use_section
from analysis.report.sections.predictions import predictions_section
from analysis.report.sections.profile import kernel_section, profile_section
from analysis.report.sections.published import published_section
from analysis.report.sections.served_loads import load_section, replicas_section, search_section
from analysis.report.sections.serving import serving_headlines, serving_section
from analysis.report.sections.startup import startup_section
from analysis.report.sections.storage import phases_section, storage_section
from analysis.report.sections.storage_tests import storage_test_headlines, storage_test_sections
from analysis.report.sections.stragglers import straggler_section
from analysis.report.sections.training_cost import DEFAULT, Training, training_cost_section
from analysis.report.sections.tuning import tuning_sections
from analysis.run import RunResult, hardware
from analysis.scaling.groups import Group, scaling_groups
from jobs import metrics as m
from jobs.metrics import Metric


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
    rankings: Sequence[Section]
    """Leaderboards, ledgers and tunings, shown before all other measurements."""
    sections: Sequence[Section]
    measurements: Sequence[Measurement]
    """Measurements in logs without training: collectives, storage, serving."""
    measurement_sections: Sequence[Section]
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
    def all_figures(self) -> list[Figure]:
        """The figures of sections and those of the section of figures."""
        of_sections = [section.figure for section in (*self.rankings, *self.sections) if section.figure]
        return [*of_sections, *self.figures]

    @property
    def used(self) -> list[Row]:
        """The rows of the runs used for the headline."""
        return [row for row in self.rows if row.run.used]

    @property
    def unused(self) -> list[Row]:
        """The rows of the runs that are not used; each has a reason."""
        return [row for row in self.rows if not row.run.used and not did_other_work(row.run)]


def build(found: Found, training: Training = DEFAULT) -> Report:
    """Return the report of these runs and logs: comparisons, warnings, and the cost of a training."""
    runs = found.runs
    doubts = loss_doubts(runs)
    groups = labelled_by_attempt(scaling_groups(runs, doubts.keys()))
    # The sentence of a campaign is that of its leaderboard.
    others, campaigns = [group for group in groups if not attempts_of(group)], campaign_sections(runs)
    used = [run for run in runs if run.used]
    recorded = [run for run in runs if run.used or did_other_work(run)]
    tests = storage_test_sections(runs)
    beside = measurements(found.logs)
    return Report(
        title=report_title(found),
        lead=lead(
            recorded,
            len(runs),
            len(found.logs),
            beside=bool(beside or evaluation_section(runs) or serving_section(runs) or tests),
        ),
        headlines=[
            *campaign_answers(runs),
            *(
                headlines(
                    others,
                    [run for run in runs if not did_other_work(run)],
                    [
                        *benchmark_headlines(beside),
                        *evaluation_headlines(runs),
                        *serving_headlines(runs),
                        *storage_test_headlines(runs),
                    ],
                    measured=bool(beside),
                )
                if others or beside or not campaigns
                else []
            ),
        ],
        bottlenecks=bottlenecks(groups),
        warnings=warnings(runs, doubts, groups),
        groups=groups,
        rows=rows_of(runs, groups, doubts, failures(runs)),
        figures=[*figures(groups), *benchmark_figures(beside), *serving_figures(runs)],
        rankings=[*campaigns, *tuning_sections(runs)],
        sections=[
            each
            for each in (
                published_section(groups),
                image_section(used),
                fits_section(groups),
                mlperf_section(runs),
                utilization_section(used),
                predictions_section(used),
                cost_section(groups, used, len(runs) - len(used)),
                training_cost_section(groups, training),
                customization_section(runs),
                evaluation_section(runs),
                serving_section(runs),
                search_section(runs),
                load_section(runs),
                replicas_section(runs),
                *tests,
                data_section(runs),
                startup_section(used),
                goodput_section(used),
                checkpoint_section(used),
                storage_section(recorded),
                phases_section(recorded),
                node_use_section(recorded),
                straggler_section(used),
                profile_section(used),
                kernel_section(used),
                log_figures_section(found.logs),
            )
            if each
        ],
        measurements=beside,
        measurement_sections=measurement_sections(beside),
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


def did_other_work(run: RunResult) -> bool:
    """Return True for a run that trained nothing, and whose results are in a section of their own."""
    return run.state in {"served", "tested"} or (run.state == "evaluated" and m.EVALUATION_LOSS in run.values)


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
