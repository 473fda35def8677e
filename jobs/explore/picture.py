"""The picture of a search: time against GPU-hours and against memory, with the Pareto set, in one HTML file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from analysis.formatting import plot_text, published_values
from analysis.report.figures.style import AXIS, COLOURS, GREY
from analysis.report.page import resource, script_sources
from jobs.errors import ConfigError
from jobs.explore.propose.predicted import RankedLayout
from jobs.files import parse_json
from jobs.output import write_output
from jobs.plan.rules.memory import GIB

TOKENS = 1e9
"""Time and cost are those of so many tokens, with the chance of not fitting."""
LONGEST = 400
"""Characters of the overrides of a layout."""
SHOWN = (("not in the Pareto set", GREY, 5), ("Pareto set", COLOURS[1], 9))


def draw(order: Sequence[RankedLayout], best: Sequence[RankedLayout], path: Path) -> None:
    """Write the picture; hovering names the overrides of a layout."""
    if path.suffix != ".html":
        raise ConfigError(f"--output {path}: the picture is a page. Set --output {path.with_suffix('.html')}.")
    figure = make_subplots(cols=2, subplot_titles=("cost", "memory of the GPU with the most"))
    chosen = set(map(id, best))
    for pareto, (name, colour, size) in enumerate(SHOWN):
        found = [each for each in order if (id(each) in chosen) is bool(pareto)]
        hours = [TOKENS * each.expected_s / 3600 for each in found]
        for column, values in (
            (1, [TOKENS * each.expected_gpu_s / 3600 for each in found]),
            (2, [each.memory.device.point / 1e9 for each in found]),
        ):
            figure.add_trace(
                go.Scatter(
                    x=hours, y=values, mode="markers", name=name, legendgroup=name, showlegend=column == 1,
                    marker={"color": colour, "size": size},
                    text=[f"{plot_text(each.layout.overrides, LONGEST)}<br>fits: {100 * each.chance:.0f} %"
                          for each in found],
                    hovertemplate="%{text}<br>%{x:.3g} h, %{y:.3g}<extra></extra>",
                ),
                row=1, col=column,
            )  # fmt: skip
    gpu = order[0].layout.run.gpu
    if gpu.memory_gb is not None:
        figure.add_hline(gpu.memory_gb * GIB / 1e9, line_dash="dash", annotation_text=plot_text(gpu.name), row=1, col=2)
    figure.update_xaxes(AXIS | {"type": "log", "title": "expected hours of a billion tokens"})
    figure.update_yaxes(AXIS | {"type": "log", "title": "expected GPU-hours of a billion tokens"}, col=1)
    figure.update_yaxes(AXIS | {"title": "predicted memory (GB)"}, col=2)
    word = order[0].speed.basis.partition(":")[0]
    title = f"{word}: predicted layouts of {plot_text(order[0].layout.run.model.name)}, a point each"
    figure.update_layout(template="none", title=title, legend={"orientation": "h", "y": -0.2})
    plot = json.dumps(published_values(parse_json(figure.to_json())))
    # A closing tag in a name would end the script.
    call = f"Plotly.newPlot('picture', {plot.replace('<', chr(92) + 'u003c')})"
    scripts = [resource("plotly.js/plotly-basic.min.js"), call]
    policy = f"default-src 'none'; script-src {script_sources(scripts)}; style-src 'unsafe-inline'; img-src data: blob:"
    head = f"""<!doctype html>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
<div id="picture"></div>
"""
    write_output(path, head + "".join(f"<script>{script}</script>\n" for script in scripts))
