"""The table of predictions below the plan table: memory against that of the GPU, step time and what follows from it."""

from __future__ import annotations

from jobs.answers import EstimateAnswer
from jobs.console import plain
from jobs.fitted_table import FittedTable
from jobs.plan.predict.interval import Interval
from jobs.plan.predict.memory import memory
from jobs.plan.predict.speed import POWER_SHARE, speed
from jobs.plan.rules.memory import verdict
from jobs.schema import Run
from jobs.work.work import work_of

NOT_PREDICTED = "not predicted"


def predicted_columns(run: Run) -> dict[str, str]:
    """Return the predicted numbers of a run by heading, each with its interval of 90 %; empty if none is predicted.

    The first column is `uncalibrated` where no run of the cluster has confirmed the constants.
    """
    own, like = work_of(run).predicted_columns(run), work_of(run).predicted_as(run)
    if own or like is None or (found := speed(like)) is None:
        return own
    held = memory(like)
    compared = verdict(like, held)
    price, heading = run.cluster.price_per_gpu_hour, f"price ({plain(run.cluster.currency)})"
    sources = [each.basis.partition(":")[0] for each in (found, held)]
    return {
        "constants": sources[0] if sources[0] == sources[1] else f"{sources[0]}, memory {sources[1]}",
        "memory": "" if compared is None else compared.value,
        "step (s)": with_interval(found.step_time_s),
        "tokens/s per GPU": with_interval(found.tokens_per_s_per_gpu),
        "MFU (%)": with_interval(found.mfu.scaled(100).at_most(100)),
        "hours": "depends on the data" if found.hours is None else with_interval(found.hours),
        "GPU-hours": "" if found.gpu_hours is None else with_interval(found.gpu_hours),
        **({} if price is None or found.gpu_hours is None else {heading: with_interval(found.gpu_hours.scaled(price))}),
    }


def with_interval(interval: Interval | EstimateAnswer, unit: float = 1.0) -> str:
    """Return a predicted number with its limits in a unit, as in `1.2 (0.9 to 1.6)`."""
    point, low, high = (shown(value / unit) for value in (interval.point, interval.low, interval.high))
    return f"{point} ({low} to {high})"


def shown(value: float) -> str:
    """Return a number with two digits, and the whole part of a large one."""
    return f"{value:,.2g}" if value < 99.5 else f"{value:,.0f}"


def predicted_table(runs: list[Run]) -> FittedTable | None:
    """Return a table with one row per run; None if no run has a predicted speed."""
    rows = [(run, predicted_columns(run)) for run in runs]
    headings = list(dict.fromkeys(heading for _, columns in rows for heading in columns))
    if not headings:
        return None
    table = FittedTable()
    table.whole("predicted (90 %)")
    for heading in headings:
        table.number(heading)
    for run, columns in rows:
        absent = "" if columns else NOT_PREDICTED
        table.add_row(plain(run.name or ""), *(columns.get(heading, absent) for heading in headings))
    return table


def step_time_table(runs: list[Run]) -> FittedTable | None:
    """Return the terms of the predicted step time of each run, with their shares; None if no run has one."""
    like = [(run, work_of(run).predicted_as(run)) for run in runs]
    found = [(run, predicted) for run, each in like if each is not None and (predicted := speed(each)) is not None]
    if not found:
        return None
    table = FittedTable()
    table.whole("name")
    table.whole("term")
    for column in ("s", "share"):
        table.number(column)
    table.text("prediction")
    for run, predicted in found:
        terms = sorted(vars(predicted.terms).items(), key=lambda item: -item[1])
        for i, (term, seconds) in enumerate(each for each in terms if each[1]):
            share = f"{100 * seconds / predicted.terms.total:.0f} %"
            table.add_row("" if i else plain(run.name or ""), term.replace("_", " "), shown(seconds), share, "")
        table.add_row("", "step time", shown(predicted.step_time_s.point), "", predicted.basis)
    return table


def energy_lines(runs: list[Run]) -> list[str]:
    """Return a line on the predicted energy of each run whose hours and GPU's power are known."""
    like = [(run, work_of(run).predicted_as(run)) for run in runs]
    found = [(run, speed(each)) for run, each in like if each is not None]
    return [
        f"energy ({run.name}): uncalibrated: the GPUs take {with_interval(predicted.energy_kwh)} kWh, {shares()} of "
        f"{predicted.board_w:g} W each; nodes and cooling take more"
        for run, predicted in found
        if predicted is not None and predicted.energy_kwh is not None
    ]


def shares() -> str:
    """Return the mean power over the largest as text."""
    return f"{POWER_SHARE.point:g} ({POWER_SHARE.low:g} to {POWER_SHARE.high:g})"
