"""The report as an HTML page, which opens offline and fetches nothing.

plotly.js is embedded once, and a content security policy forbids the rest. Everything from a file is text: jinja
escapes it in HTML and in the figures' JSON.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from importlib import resources

import jinja2
from markupsafe import Markup

from analysis.formatting import listed, published, published_values, title, unbroken
from analysis.logs.steps import WARM_UP_RULE
from analysis.metrics.step_variation import STEADY_RULE
from analysis.report.content import Report
from analysis.report.markdown import MOST_ROWS, UNUSED_HEADINGS, rows_left_out, unused_cells
from analysis.report.points_table import results_note
from analysis.report.provenance import MOST_LISTED
from analysis.scaling.places import RULE
from jobs import metrics as m
from jobs.metrics import Metric


def page(content: Report) -> str:
    """Return the self-contained HTML page."""
    columns, shared = content.runs
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # Of each value: the page as a whole contains the script of plotly.
        finalize=lambda value: published(value) if type(value) is str else value,
    )
    environment.filters["unbroken"] = unbroken
    template = environment.from_string(resource("page.html.j2"))
    held_headings, held_rows = content.layouts
    point_headings, points = content.points
    # The first figure is directly below the headline.
    first = next((figure for figure in content.figures[:1] if figure.plot), None)
    shown = shown_metrics(
        content, [*point_headings, *held_headings, *(str(column.heading) for column in columns if content.used)]
    )
    plots = {
        figure.name: published_values(figure.plot.to_plotly_json()) for figure in content.all_figures if figure.plot
    }
    measured = [row.run for row in content.used if row.run.steady_steps]
    # The log of a program's training is read by the rules of logs.
    own = [run for run in measured if run.log is None and "unmeasured_steps" in run.config["job"]]
    unmeasured = sorted({run.config["job"]["unmeasured_steps"] for run in own})
    of_logs = len(own) < len(measured) or any(row.run.log is not None for row in content.used)
    # Neither contains a closing script tag.
    scripts = [resource("plotly.js/plotly-basic.min.js"), resource("page.js")] if plots else []
    return template.render(
        report=content,
        columns=columns,
        shared=shared,
        point_headings=point_headings,
        points=points,
        most_listed=MOST_LISTED,
        results_note=results_note(content.digest.groups),
        first=first,
        further=content.figures[1:] if first else content.figures,
        unused_headings=UNUSED_HEADINGS,
        unused_cells=unused_cells,
        held_headings=held_headings,
        held_rows=held_rows,
        held_metric=m.PARAMETERS_HELD,
        sent_metric=m.COLLECTIVE_BYTES,
        metrics=list(shown.values()),
        defined=shown,
        most_rows=MOST_ROWS,
        rows_left_out=rows_left_out,
        unmeasured=listed([str(count) for count in unmeasured], MOST_LISTED),
        warm_up_rule=WARM_UP_RULE if of_logs else None,
        steady_rule=STEADY_RULE if own or of_logs else None,
        places_rule=RULE if len(points) > 1 else None,
        plots=plots,
        scripts=[Markup(script) for script in scripts],  # noqa: S704 (no text of a run is in them)
        script_sources=Markup(script_sources(scripts)),  # noqa: S704 (digests)
    )


def shown_metrics(content: Report, headings: Iterable[str]) -> dict[str, Metric]:
    """Return the metrics in these headings of tables, in those of sections and in figures, by their own heading."""
    sections = (*content.rankings, *content.sections)
    used = {*headings, *(heading for section in sections for heading in section.headings)}
    used |= {figure.name for figure in content.all_figures}
    used |= {metric.name for figure in content.all_figures for metric in figure.metrics}
    every = (*m.REGISTRY.values(), *content.foreign_metrics)
    return {title(metric): metric for metric in every if not used.isdisjoint({title(metric), metric.name})}


def resource(name: str) -> str:
    """Return the text of a file of this package."""
    return (resources.files("analysis") / "report" / name).read_text(encoding="utf-8")


def script_sources(scripts: Iterable[str]) -> str:
    """Return the `script-src` of the content security policy: only the digests of these scripts."""
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    return " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"
