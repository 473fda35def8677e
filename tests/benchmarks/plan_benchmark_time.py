"""Predicted throughput beside published measurements, and what the first picks of the prediction are worth.

python -m tests.benchmarks.plan_benchmark_time TABLES

For each source and GPU the constants are fitted to at most five rows, which `jobs.plan.predict.fit.choose` selects by
configuration, not by result; a row without a result is one more try. Errors are those of the other rows.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jobs.layout import accumulation
from jobs.plan.predict.calibration import Calibration, uncalibrated
from jobs.plan.predict.fit import calibrate, choose
from jobs.plan.predict.matrix_products import recomputes_all, tokens
from jobs.plan.predict.prediction import step_interval
from jobs.plan.predict.states import states
from jobs.plan.predict.step_time import Work, work_of
from jobs.plan.rules.memory import GIB
from jobs.schema import Run
from tests.benchmarks.plan_tables import Measurement, measurements

PROBES = 5
MOST_CANDIDATES = 400
"""Probes are chosen among so many rows, evenly spaced in the table."""
FEWEST_LAYOUTS = 4
"""Cells with fewer rows leave nothing to choose."""
MARGIN = 0.75
"""Part of a GPU's memory that a probe may be predicted to take."""
SPREAD = 0.15
"""Standard deviation of the logarithm of predicted memory about what a run needs."""
Fits = Callable[[Run], float]
"""Probability that a run fits the memory of its GPU."""


@dataclass(frozen=True)
class Row:
    """A measurement with the work of its run."""

    measured: Measurement
    work: Work

    @property
    def step_time_s(self) -> float | None:
        """Return the measured step time."""
        rate = self.measured.tokens_per_s
        return None if rate is None else self.work.tokens / rate


@dataclass(frozen=True)
class Score:
    """How predictions of a source compare with its measurements."""

    rows: int
    median: float
    """Of |predicted / measured - 1| of tokens/s."""
    p90: float
    coverage: float
    """Share of measurements in their interval of 90 %."""
    width: float
    """Median of upper over lower limit."""


@dataclass(frozen=True)
class Choice:
    """What the prediction's order of trying the layouts of a cell is worth."""

    regret: float | None
    """Of the first pick over the best, as a share of its step time; None if it failed."""
    best_of_three: float | None
    within_5: int
    """Trials until one is within 5 % of the best."""
    within_2: int


def main() -> None:
    """Print the table of each source."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tables", type=Path, help="directory with files such as nanotron_ultrascale_sweep.csv")
    report(parser.parse_args().tables)


def report(tables: Path, fits: Fits | None = None) -> None:
    """Print errors, coverage, regret and trials of each source and GPU; `fits` is the probability of fitting."""
    fits = fits or likely_fits
    by_source: dict[str, list[Row]] = defaultdict(list)
    for measured in measurements(tables):
        work = work_of(measured.run)
        assert work is not None, "the readers know the GPU's rates"
        by_source[measured.source].append(Row(measured, work))
    print("| source / GPU | rows | probes (tried) | uncalibrated: median / p90, coverage | calibrated: median / p90, "
          "coverage, width |\n| --- | --: | --: | --: | --: |")  # fmt: skip
    calibrated = {}
    for source, rows in by_source.items():
        calibration, probes, tried = calibrate_on(rows, fits)
        calibrated[source] = calibration
        others = [row for row in rows if row.step_time_s is not None and row not in probes]
        before, after = score(others, uncalibrated()), score(others, calibration)
        if after is None or before is None:
            print(f"| {source} | 0 besides probes | {len(probes)} ({tried}) | | |", flush=True)
            continue
        errors = [f"{each.median:.1%} / {each.p90:.0%}, {each.coverage:.0%}" for each in (before, after)]
        tries = f"{len(probes)} ({tried})"
        print(f"| {source} | {after.rows} | {tries} | {errors[0]} | {errors[1]}, x{after.width:.2f} |", flush=True)
    print("\n| source / GPU | cells | first pick fails | its regret, median | best of three, median / worst "
          "| trials to 5 %, median / worst | to 2 % |\n| --- | --: | --: | --: | --: | --: | --: |")  # fmt: skip
    for source, rows in by_source.items():
        choices = cell_choices(rows, calibrated[source], fits)
        if choices:
            print(f"| {source} | {choice_cells(choices)} |", flush=True)


def calibrate_on(rows: Sequence[Row], fits: Fits) -> tuple[Calibration, list[Row], int]:
    """Return the calibration from the probes that the program chooses, these, and the number of tries."""
    likely = [row for row in rows if fits(row.measured.run) >= 0.95] or list(rows)
    candidates = likely[:: max(1, len(likely) // MOST_CANDIDATES)]
    works = [row.work for row in candidates]
    tried, samples = choose(works, lambda place: candidates[place].step_time_s, PROBES)
    probes = [candidates[place] for place in tried if candidates[place].step_time_s is not None]
    return calibrate(samples, f"{len(samples)} rows"), probes, len(tried)


def score(rows: Sequence[Row], calibration: Calibration) -> Score | None:
    """Return the errors of the predictions of some rows; None without rows."""
    errors, inside, widths = [], [], []
    for row in rows:
        predicted, measured = step_interval(row.work, calibration), row.step_time_s
        assert measured is not None, "rows without result are not scored"
        errors.append(abs(measured / predicted.point - 1))
        inside.append(predicted.low <= measured <= predicted.high)
        widths.append(predicted.high / predicted.low)
    if not errors:
        return None
    p90 = float(np.quantile(errors, 0.9))
    return Score(len(errors), statistics.median(errors), p90, statistics.fmean(inside), statistics.median(widths))


def cell_choices(rows: Sequence[Row], calibration: Calibration, fits: Fits) -> list[Choice]:
    """Return the choices of the cells with layouts to choose from."""
    cells: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        cells[row.measured.cell].append(row)
    found = []
    for members in cells.values():
        measured = [row.step_time_s for row in members if row.step_time_s is not None]
        if len(measured) < FEWEST_LAYOUTS:
            continue
        # A failed try costs about as much as a run, so the expected time until a success counts.
        order = sorted(
            members,
            key=lambda row: step_interval(row.work, calibration).point / max(fits(row.measured.run), 1e-9),
        )
        found.append(choice([row.step_time_s for row in order], min(measured)))
    return found


def choice(times: Sequence[float | None], best: float) -> Choice:
    """Return the worth of an order of trying, from the step times in it; None is a failure."""

    def until(share: float) -> int:
        return next(n for n, time in enumerate(times, 1) if time is not None and time <= best * (1 + share))

    three = [time for time in times[:3] if time is not None]
    return Choice(
        None if times[0] is None else times[0] / best - 1,
        min(three) / best - 1 if three else None,
        until(0.05),
        until(0.02),
    )


def choice_cells(choices: Sequence[Choice]) -> str:
    """Return the cells of a row of the second table."""
    regrets = [each.regret for each in choices if each.regret is not None]
    threes = [each.best_of_three if each.best_of_three is not None else math.inf for each in choices]
    parts = [
        str(len(choices)),
        str(len(choices) - len(regrets)),
        f"{statistics.median(regrets):.1%}" if regrets else "",
        f"{statistics.median(threes):.1%} / {max(threes):.0%}",
        *(
            f"{statistics.median(trials):g} / {max(trials)}"
            for trials in ([each.within_5 for each in choices], [each.within_2 for each in choices])
        ),
    ]
    return " | ".join(parts)


def likely_fits(run: Run) -> float:
    """Return the probability that a run fits its GPU, by a rough estimate of its memory.

    States, 34 bytes an activation of a layer and 12 bytes a logit (arXiv:2205.05198), with recomputation 2 and 34 once;
    a first pipeline stage holds the activations of PP micro-batches.
    """
    if run.gpu.memory_gb is None:
        return 1.0
    model, p = run.model, run.parallelism
    waiting = min(p.pipeline, accumulation(run))
    layers = model.layers / p.pipeline * waiting
    width = tokens(run) * model.hidden_size / p.tensor
    activations = width * (2 * layers + 34 if recomputes_all(run) else 34 * layers)
    needed = states(run).total + activations + 12 * tokens(run) * model.vocab_size / p.tensor
    return statistics.NormalDist(0, SPREAD).cdf(math.log(run.gpu.memory_gb * GIB / needed))


if __name__ == "__main__":
    main()
