"""`slurmscale calibrate`: fit the constants of predictions to measured runs and write a dated file of the site."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

from jobs.answers import FileAnswer
from jobs.errors import ConfigError
from jobs.layout import gpu_limits, tensor_stays_on_link
from jobs.plan.predict.calibration import Fit, key_of, queue_of, record, shortened, site_directory, write_calibration
from jobs.plan.predict.fit import DISTURBED, FAULT, STEP_TIME, Candidates, Quantity, Sample, choose, fitted, memory_of
from jobs.plan.predict.interval import Interval
from jobs.plan.predict.memory import memory_work
from jobs.plan.predict.step_time import step_work
from jobs.plan.rules.rule import counted
from jobs.rundir import as_file_name
from jobs.schema import Run
from jobs.work.work import work_of


@dataclass(frozen=True)
class MeasuredRun:
    """A run and what was measured of it; None if nothing was."""

    name: str
    run: Run
    step_time_s: float | None = None
    """Median of the steady steps."""
    memory_bytes: float | None = None
    """Peak of tensors of the rank with the most."""
    whole_time_s: float | None = None
    """Wall time of all steps of a program."""
    wait_s: float | None = None
    """Time in the queue, of a job for this run alone."""


@dataclass(frozen=True)
class Measured:
    """One quantity of the runs of one GPU and engine."""

    key: str
    unit: str
    quantity: Quantity[Any, Any]
    works: Sequence[Any]
    """Counted work of each run, or its bytes; None if they cannot be counted."""
    values: Sequence[float | None]

    def usable(self, place: int) -> float | None:
        """Return the measured value of a run whose work is known."""
        return None if self.works[place] is None else self.values[place]

    def predicted(self, place: int, fit: Fit[Any]) -> Interval:
        """Return the prediction of a run whose work is known."""
        return fit.interval(lambda constants: self.quantity.predict(self.works[place], constants))

    def is_disturbed(self, place: int) -> bool:
        """Return whether a run must be measured again before it counts among few."""
        return self.works[place] is not None and self.quantity.is_disturbed(self.works[place], self.values[place])

    def fit(self, places: Sequence[int], fitted_to: Callable[[int], str]) -> Fit[Any] | None:
        """Return the fit to some runs; None if nothing was measured of them."""
        known = {place: value for place in places if (value := self.usable(place)) is not None}
        samples = [Sample(self.works[place], value) for place, value in known.items()]
        return fitted(self.quantity, samples, fitted_to(len(samples))) if samples else None


def calibrate_on(
    measured: Sequence[MeasuredRun], output: Path | None, today: date, most: int | None = None
) -> FileAnswer:
    """Write the calibration that fits some runs, and return it.

    With `most` only that many runs of a GPU and engine, chosen by their configurations; the others are predicted.
    """
    if most is not None and most < 1:
        raise ConfigError(f"--most {most}: fit to 1 run or more, 5 identify most constants. Set --most 5.")
    by_key: dict[tuple[str, str], list[MeasuredRun]] = {}
    for each in measured:
        # A CPU's rates are not known, so there is no work in seconds to fit to; limits make a GPU another one.
        if each.run.gpu.name != "none" and measures_speed(each) and not gpu_limits(each.run):
            by_key.setdefault(key_of(each.run), []).append(each)
    limited = sum(bool(gpu_limits(each.run)) and measures_speed(each) for each in measured)
    lines = [f"{counted(limited)} left out: their GPUs were limited (cluster.gpu_...)"] if limited else []
    fits = []
    for (gpu, engine), runs in sorted(by_key.items()):
        found = calibrated(runs, f"on {gpu} by {engine}, {today.isoformat()}", most)
        if found is None:
            continue
        lines += [f"{gpu}, engine={engine}:", *(f"    {line}" for line in found.lines)]
        fits.append({"gpu": gpu, "engine": engine, **found.record})
    whole = whole_runs(measured)
    lines += [f"{each['name']}: wall times of {counted(len(each['times']))}" for each in whole]
    queues = queue_waits(measured)
    for queue in queues:
        waits, partition = len(queue["times"]), f", partition {queue['partition']}" if queue["partition"] else ""
        lines.append(f"{queue['cluster']}{partition}: {waits} wait{'s' * (waits > 1)} in the queue")
    if not fits and not whole and not queues:
        raise ConfigError(
            "No finished run on a known GPU, and none of a program: a calibration needs measured step times or memory, "
            "and peak and memory bandwidth of the GPU (gpu=NAME, see conf/gpu), the wall time of a program, or a wait "
            "in a queue. Pass sweeps, run directories or tables of such runs."
        )
    # That of a run that counted.
    cluster = next(x.run.cluster.name for x in measured if x.run.gpu.name != "none" or x.whole_time_s or x.wait_s)
    path = output or site_directory() / "calibration" / f"{as_file_name(cluster)}-{today.isoformat()}.yaml"
    write_calibration(path, fits, whole, queues)
    return FileAnswer(str(path), "\n".join([*lines, f"{path}: set cluster.calibration={path}"]))


def whole_runs(measured: Sequence[MeasuredRun]) -> list[dict[str, Any]]:
    """Return the wall times of runs by their settings, as the file of a calibration contains them."""
    found: dict[str, dict[str, Any]] = {}
    for each in measured:
        if each.whole_time_s is not None and (digest := work_of(each.run).settings_digest(each.run)) is not None:
            row = {"name": each.run.model.name, "digest": digest, "times": []}
            found.setdefault(digest, row)["times"].append([each.run.nodes, shortened(each.whole_time_s)])
    return list(found.values())


def measures_speed(measured: MeasuredRun) -> bool:
    """Return True if step time or memory of a run was measured."""
    return measured.step_time_s is not None or measured.memory_bytes is not None


def queue_waits(measured: Sequence[MeasuredRun]) -> list[dict[str, Any]]:
    """Return the waits of jobs by cluster and partition, as the file of a calibration contains them."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for each in measured:
        if each.wait_s is not None:
            cluster, partition = queue_of(each.run)
            row = {"cluster": cluster, "partition": partition, "times": []}
            found.setdefault((cluster, partition), row)["times"].append([each.run.nodes, shortened(each.wait_s)])
    return list(found.values())


@dataclass(frozen=True)
class Calibrated:
    """The fits of one GPU and engine, as text and as the file contains them."""

    record: dict[str, Any]
    lines: list[str]


def calibrated(runs: Sequence[MeasuredRun], where: str, most: int | None) -> Calibrated | None:
    """Return the fits to runs of one GPU and engine; None if nothing can be fitted."""
    quantities = quantities_of(runs)
    places = list(range(len(runs))) if most is None else chosen(quantities, choosable(runs), most)
    entry: dict[str, Any] = {}
    lines: list[str] = []
    rows: list[dict[str, Any]] = [row_of(runs[place]) for place in places]
    for each in quantities:
        fit = each.fit(places, lambda count: f"{counted(count)} {where}")
        if fit is None:
            continue
        entry[each.key] = record(fit)
        if most is not None:
            lines += disturbed_lines(each, runs)
        lines += [*changed_lines(fit, each.quantity.prior), *residual_lines(each, fit, runs, places, rows)]
        if others := [place for place in range(len(runs)) if place not in places and each.usable(place) is not None]:
            lines.append(held_out_line(each, fit, others))
    return Calibrated(entry | {"runs": rows}, lines) if entry else None


def quantities_of(runs: Sequence[MeasuredRun]) -> list[Measured]:
    """Return step time and memory of runs of one GPU and engine."""
    memory = memory_of(runs[0].run.engine.kind)
    return [
        Measured("step_time", "s", STEP_TIME, [step_work(each.run) for each in runs], [x.step_time_s for x in runs]),
        Measured("memory", "B", memory, [memory_work(each.run) for each in runs], [x.memory_bytes for x in runs]),
    ]


def choosable(runs: Sequence[MeasuredRun]) -> list[int]:
    """Return the runs whose TP groups stay inside a node, as those of `plan --search` do; all if none does."""
    return [i for i, each in enumerate(runs) if tensor_stays_on_link(each.run)] or list(range(len(runs)))


def chosen(quantities: Sequence[Measured], choosable: Sequence[int], most: int) -> list[int]:
    """Return the runs that identify the constants best, by their configurations, of those that may be chosen."""
    usable = [each for each in quantities if any(each.usable(place) is not None for place in range(len(each.works)))]
    places = [i for i in choosable if all(each.works[i] is not None for each in usable)]
    if not usable or not places:
        return []
    candidates = [Candidates(each.quantity, [each.works[place] for place in places]) for each in usable]

    def measure(place: int) -> list[float | None] | None:
        values = [each.usable(places[place]) for each in usable]
        disturbed = any(each.is_disturbed(places[place]) for each in usable)
        return None if disturbed or all(value is None for value in values) else values

    return [places[place] for place in choose(candidates, measure, most) if measure(place) is not None]


def row_of(measured: MeasuredRun) -> dict[str, Any]:
    """Return a run as its calibration lists it."""
    return {"name": measured.name, "model": measured.run.model.name, "ranks": measured.run.ranks}


def changed_lines(fit: Fit[Any], prior: Fit[Any]) -> list[str]:
    """Return a line for each constant: its value, and the default that it started from."""
    before = asdict(prior.constants)
    return [f"{name} {value:.3g} (default {before[name]:.3g})" for name, value in asdict(fit.constants).items()]


def disturbed_lines(each: Measured, runs: Sequence[MeasuredRun]) -> Iterator[str]:
    """Yield a line for each run that is not among the chosen ones because it must be measured again."""
    for place, run in enumerate(runs):
        if each.is_disturbed(place):
            usual = each.quantity.predict(each.works[place], each.quantity.prior.constants)
            yield (
                f"{run.name}: {each.key.replace('_', ' ')} measured {each.usable(place):.4g} {each.unit}, over "
                f"{DISTURBED:g} times the {usual:.4g} {each.unit} of the defaults: measure it again; it was not chosen"
            )


def residual_lines(
    each: Measured, fit: Fit[Any], runs: Sequence[MeasuredRun], places: Sequence[int], rows: list[dict[str, Any]]
) -> list[str]:
    """Return a line for each run with its measured and fitted value, and add both to its row."""
    lines = []
    for place, row in zip(places, rows, strict=True):
        if (value := each.usable(place)) is None:
            continue
        point = each.quantity.predict(each.works[place], fit.constants)
        row |= {f"measured_{each.key}": shortened(value), f"fitted_{each.key}": shortened(point)}
        unexplained = abs(math.log(point / value)) > FAULT
        lines.append(
            f"{runs[place].name}: {each.key.replace('_', ' ')} measured {value:.4g} {each.unit}, fitted {point:.4g} "
            f"{each.unit} ({100 * (point / value - 1):+.1f} %)"
            + (", which the fit does not explain: check this run, and measure it again" if unexplained else "")
        )
    return lines


def held_out_line(each: Measured, fit: Fit[Any], places: Sequence[int]) -> str:
    """Return the error of the predictions of runs that the constants were not fitted to, and their coverage."""
    errors, inside = [], 0
    for place in places:
        predicted, value = each.predicted(place, fit), each.usable(place)
        errors.append(abs(predicted.point / value - 1) if value else math.nan)
        inside += value is not None and predicted.low <= value <= predicted.high
    return (
        f"{each.key.replace('_', ' ')} of {counted(len(places))} held out: median error "
        f"{100 * statistics.median(errors):.1f} %, {inside} inside the interval of 90 %"
    )
