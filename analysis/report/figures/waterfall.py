"""The way from the baseline to the best attempt as a picture: one bar for each change."""

from __future__ import annotations

import plotly.graph_objects as go

from analysis.compare.campaign import Leaderboard
from analysis.compare.waterfall import Stage
from analysis.formatting import plot_text
from analysis.report.figures.leaderboard import PIXELS_PER_ROW
from analysis.report.figures.style import GREY, INK, Figure, empty_plot, word_of

GAINED, LOST = "#009E73", "#D55E00"


def waterfall_figure(board: Leaderboard, stages: list[Stage], number: int) -> Figure:
    """Return a bar for each stage, from the ratio of the stage before to its own, with the interval of its gain."""
    starts = [1.0, *(stage.total for stage in stages[:-1])]
    ends = [
        [start * bound for bound in stage.interval or (stage.gain, stage.gain)]
        for start, stage in zip(starts, stages, strict=True)
    ]
    names = [plot_text("; ".join(stage.changes), 60) for stage in stages]
    plot = empty_plot()
    plot.add_trace(
        go.Bar(
            orientation="h",
            y=names,
            base=starts,
            x=[stage.total - start for start, stage in zip(starts, stages, strict=True)],
            marker={"color": [GAINED if stage.gain >= 1 else LOST for stage in stages]},
            error_x={
                "type": "data",
                "symmetric": False,
                "array": [high - stage.total for (_, high), stage in zip(ends, stages, strict=True)],
                "arrayminus": [stage.total - low for (low, _), stage in zip(ends, stages, strict=True)],
                "color": INK,
            },
            text=[f"x {stage.gain:.3f}" for stage in stages],
            textposition="inside",
            insidetextanchor="middle",
            hovertext=[plot_text(f"{stage.entry.trial.name}: {stage.total:.3f} in all") for stage in stages],
            hoverinfo="text",
        )
    )
    plot.add_vline(x=1.0, line={"color": GREY, "dash": "dash", "width": 1.5})
    plot.update_layout(height=120 + PIXELS_PER_ROW * max(3, len(stages)), showlegend=False)
    words = plot_text(board.rules.ratio_in_words)
    plot.update_xaxes(title_text=f"{words[:1].upper()}{words[1:]}", showgrid=True)
    plot.update_yaxes(autorange="reversed", showgrid=False, ticks="")
    caption = (
        f"{word_of(board.runs)}: each bar goes from the ratio of the stage before to its own, and names the factor "
        "between them; line: the interval of the factor. The baseline is at 1."
    )
    best = stages[-1].entry.trial.name
    return Figure(f"waterfall-{number}", f"From the baseline to {best}", caption, plot, wide=True)
