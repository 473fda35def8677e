"""The table of predicted speeds below the plan table."""

from __future__ import annotations

from rich.table import Table

from jobs.console import plain
from jobs.plan.predict.interval import Interval
from jobs.plan.predict.prediction import predict
from jobs.schema import Run

NOT_PREDICTED = "not predicted"


def predicted_columns(run: Run) -> dict[str, str]:
    """Return the predicted numbers of a run by heading, each with its interval of 90 %; empty where none is known.

    The first begins with `uncalibrated` where no run of the cluster has confirmed its constants.
    """
    found = predict(run)
    if found is None:
        return {}
    source = "calibrated" if found.fitted_to is not None else "uncalibrated"
    return {
        "predicted step": f"{source} {with_interval(found.step_time_s)} s",
        "tokens/s per GPU": with_interval(found.tokens_per_s_per_gpu),
        "MFU": f"{with_interval(Interval(*(100 * value for value in limits(found.mfu))))} %",
        "hours": "depends on the data" if found.hours is None else with_interval(found.hours),
        "GPU-hours": "" if found.gpu_hours is None else with_interval(found.gpu_hours),
    }


def limits(interval: Interval) -> tuple[float, float, float]:
    """Return point, low and high."""
    return interval.point, interval.low, interval.high


def with_interval(interval: Interval) -> str:
    """Return a predicted number with its limits, as in `1.2 (0.9 to 1.6)`."""
    point, low, high = (f"{value:,.2g}" if value < 100 else f"{value:,.0f}" for value in limits(interval))
    return f"{point} ({low} to {high})"


def predicted_table(runs: list[Run]) -> Table | None:
    """Return a table with a row per run; None where no run has a prediction."""
    rows = [(run, predicted_columns(run)) for run in runs]
    headings = next((list(columns) for _, columns in rows if columns), None)
    if headings is None:
        return None
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("predicted, with intervals of 90 %", overflow="fold")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for run, columns in rows:
        table.add_row(plain(run.name or ""), *(columns.get(heading, NOT_PREDICTED) for heading in headings))
    return table
