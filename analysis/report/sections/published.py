"""Measured next to published: the results of the runs, the published ones of the same experiment, and the differences.

A ratio is shown only for the same metric, model and task (analysis.compare.published). Other differences are listed
next to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from analysis.compare.published import Published, figures_for, measured, obstacle
from analysis.formatting import ABSENT, shown, shown_spread, significant, title
from analysis.intervals import Spread
from analysis.report.digest import Digest
from analysis.report.figures.style import Section
from analysis.run import RunResult, hardware
from analysis.scaling.groups import Group, Point

HEADING = "Measured and published"
HEADINGS = ("Line", "Metric", "n", "Measured", "Published", "Measured / published", "Differences, and the source")
NOT_STATED = "not stated"


def published_section(digest: Digest) -> Section | None:
    """Return a row for each point and each figure published of its experiment or settings; None if there are none."""
    # Lines may share a point (analysis.identity).
    first = {point: group for group in reversed(digest.groups) for point in group.points}
    points = [
        (group, point, figures_for(point.runs[0]))
        for group in digest.groups
        for point in group.points
        if first[point] is group
    ]
    rows = [row for group, point, figures in points for row in rows_of(group, point, figures)]
    if not rows:
        return None
    measured_on = hardware(run for _, point, figures in points if figures for run in point.runs)
    found = [figure for _, _, figures in points for figure in figures]
    documents = {figure.document.citation: None for figure in found}
    metrics = {figure.metric.name: figure.metric.definition for figure in found}
    note = (
        f"{measured_on}: medians over n repeats, with the smallest and the largest, and published results. The "
        "ratio is measured / published; for a time, below 1 is faster. There is no ratio if the metric was not "
        "measured, or if model, size or task differ; rates of one GPU are compared over sizes, and of each program the "
        "nearest number of GPUs is shown. MFU is compared with that of models of similar size. "
        "Documents seldom state which phases a time includes. "
        f"{'. '.join(documents)}. " + " ".join(f"{name}: {definition}" for name, definition in metrics.items())
    )
    return Section(HEADING, note, HEADINGS, rows)


def rows_of(group: Group, point: Point, figures: Sequence[Published]) -> Iterator[list[str]]:
    """Yield the cells of a point's published results, the hardware first; equal differences are listed once."""
    listed = None
    for figure in figures:
        values = [value for run in point.runs if (value := measured(run, figure.metric)) is not None]
        spread = Spread.of(values) if values else None
        against = obstacle(point.runs[0], figure)
        differs = " ".join(differences(point.runs, figure))
        words = (
            "The loss is not believed." if point.doubtful else "",
            "" if spread else "Not measured by this run.",
            f"No ratio: {against}." if against else "",
            "Differs as above." if differs == listed else differs,
            f"{figure.source}.",
        )
        listed = differs
        yield [
            f"{hardware(point.runs)}: {group.described} on {point.place}",
            title(figure.metric),
            f"{len(values):,}",
            shown_spread(figure.metric, spread),
            shown(figure.metric, figure.value),
            ratio(spread.over(figure.value)) if spread and against is None else ABSENT,
            " ".join(filter(None, words)),
        ]


def ratio(spread: Spread) -> str:
    """Return a ratio with its smallest and largest repeat, if these differ."""
    middle, low, high = (significant(value, 3) for value in (spread.median, spread.low, spread.high))
    return middle if low == high else f"{middle} ({low} to {high})"


def differences(runs: Sequence[RunResult], figure: Published) -> Iterator[str]:
    """Yield the differences of repeats from a published figure, except in their task: the machines first."""
    run = runs[0]
    yield f"{hardware(runs)} ({run.started.get('device_name', 'unnamed')}); published: {machine(figure)}."
    settings = {
        "Software": (software(run), figure.software),
        "Precision": (run.setting("job.precision"), figure.precision),
        "TP": (run.setting("parallelism.tensor"), figure.tensor),
        "PP": (run.setting("parallelism.pipeline"), figure.pipeline),
        "MBS": (run.setting("job.micro_batch_size"), figure.micro_batch_size),
        "Data": (run.setting("data.name"), figure.data_as_published),
    }
    for name, (ours, theirs) in settings.items():
        if ours != theirs:
            yield f"{name}: {'unknown' if ours is None else ours}; published: {theirs or NOT_STATED}."


def machine(figure: Published) -> str:
    """Return the hardware of a figure: `8 NVIDIA H100 SXM, Dell PowerEdge XE9680, RoCE enabled`."""
    gpus = f"{figure.gpus} {figure.gpu or 'GPUs'}"
    return ", ".join(filter(None, (gpus, figure.hardware, figure.variant)))


def software(run: RunResult) -> str:
    """Return the engine, and the version of torch if it is known."""
    engine, torch = run.setting("engine.kind"), run.started.get("torch")
    return ", ".join(f"{name}{value}" for name, value in (("engine ", engine), ("torch ", torch)) if value is not None)
