"""Predicted step time and memory beside published measurements: `python -m tests.benchmarks.plan_benchmark`.

Constants of a source and GPU are fitted to at most five rows, which `jobs.plan.predict.fit.choose` selects by their
configurations and not by results: the same rows for step time and memory. A row without a result, or five times as slow
as predicted, is one more try.
Errors and coverage are those of all other rows. The last table is what the prediction's order of trying is worth.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from jobs.layout import pipeline_stages_per_rank, tensor_stays_on_link
from jobs.plan.predict.calibration import Fit
from jobs.plan.predict.constants import MemoryConstants, StepTimeConstants
from jobs.plan.predict.fit import STEP_TIME, Candidates, Sample, choose, fitted, memory_of
from jobs.plan.predict.in_flight import in_flight
from jobs.plan.predict.interval import Interval
from jobs.plan.predict.memory import FRAMEWORK, MemoryWork, counted_bytes, memory, memory_work
from jobs.plan.predict.speed import expected_s
from jobs.plan.predict.states import parameters_held
from jobs.plan.predict.step_time import StepWork, step_time_s, step_work
from jobs.plan.rules.memory import GIB
from jobs.schema import Run
from tests.benchmarks.plan_rows import Measurement
from tests.benchmarks.plan_tables import measurements, mlperf

MOST_CANDIDATES = 400
"""Rows to fit are chosen among so many, evenly spaced in the table."""
FEWEST_LAYOUTS = 4
"""Cells with fewer rows leave nothing to choose."""
LIKELY = 0.95
"""Probability of fitting its GPU of a row that may be chosen: others mostly have no result."""


@dataclass(frozen=True)
class Row:
    """A measurement with what its run does and holds."""

    measured: Measurement
    work: StepWork
    memory: MemoryWork
    """As the source measures it."""
    device: MemoryWork
    """With what is beside tensors."""

    @property
    def step_time_s(self) -> float | None:
        """Return the measured step time."""
        rate = self.measured.tokens_per_s
        return None if rate is None else self.work.tokens / rate


@dataclass(frozen=True)
class Fits:
    """The constants of a source and GPU."""

    step_time: Fit[StepTimeConstants]
    memory: Fit[MemoryConstants]

    def tokens_per_s(self, row: Row) -> Interval:
        """Return the predicted throughput of all GPUs."""
        return self.step_time_s(row).divides(row.work.tokens)

    def step_time_s(self, row: Row) -> Interval:
        """Return the predicted step time."""
        return self.step_time.interval(lambda constants: step_time_s(row.work, constants))

    def memory_bytes(self, row: Row) -> Interval:
        """Return the predicted memory as the source measures it."""
        return self.memory.interval(lambda constants: counted_bytes(row.memory, constants))

    def device_bytes(self, row: Row) -> Interval:
        """Return the predicted memory of the device: that of `plan` where no memory was fitted."""
        if self.memory.fitted_to is None:
            return memory(row.measured.run).device
        return self.memory.interval(lambda constants: counted_bytes(row.device, constants))

    def verdict(self, row: Row) -> str:
        """Return the verdict of `plan` on the memory of a row."""
        size, predicted = gpu_bytes(row), self.device_bytes(row)
        return "fits" if predicted.high <= size else "tight" if predicted.low <= size else "does not fit"

    def chance(self, row: Row) -> float:
        """Return the probability that a row fits its GPU."""
        return self.device_bytes(row).chance_below(gpu_bytes(row))


@dataclass(frozen=True)
class Score:
    """Errors and coverage of the predictions of a source."""

    rows: int
    median: float
    """Median of |predicted / measured - 1|."""
    p90: float
    coverage: float
    """Share of measurements in their interval of 90 %."""
    width: float
    """Median of upper over lower limit."""

    def __str__(self) -> str:
        return f"{self.median:.1%} / {self.p90:.0%}, {self.coverage:.0%}, x{self.width:.2f}".replace("%", " %")


@dataclass(frozen=True)
class Choice:
    """Results of trying the layouts of a cell in the order of their predictions."""

    regret: float | None
    """Step time of the first pick over that of the best, less 1; None if it failed."""
    best_of_three: float
    within_5: int
    """Trials until one is within 5 % of the best."""
    within_2: int


@dataclass(frozen=True)
class Judged:
    """A source and GPU: the rows that fitted its constants, and the others with the constants before and after."""

    chosen: list[Row]
    tried: int
    others: list[Row]
    before: Fits
    after: Fits

    def rows(self, fits: Fits) -> list[Row]:
        """Return the rows that count: by defaults all, if none is left after a fit."""
        return self.others or (self.chosen if fits is self.before else [])

    def speed(self, fits: Fits) -> Score | None:
        """Return the score of the throughput."""
        return score((fits.tokens_per_s(row), row.measured.tokens_per_s) for row in self.rows(fits))

    def undisturbed_speed(self, fits: Fits) -> Score | None:
        """Return the score of the throughput without faulty rows; None if there are none."""
        kept = [row for row in self.others if not row.measured.faulty]
        if len(kept) == len(self.others):
            return None
        return score((fits.tokens_per_s(row), row.measured.tokens_per_s) for row in kept)

    def memory(self, fits: Fits) -> Score | None:
        """Return the score of the memory."""
        return score((fits.memory_bytes(row), row.measured.memory_bytes) for row in self.rows(fits))

    def verdicts(self) -> Counter[tuple[str, str]]:
        """Return the number of rows by verdict and result."""
        ran = [row.measured.run for row in [*self.chosen, *self.others] if row.step_time_s is not None]
        return Counter((self.after.verdict(row), result(row, ran)) for row in self.others)

    def choices(self) -> list[Choice]:
        """Return the choices of the cells with layouts to choose from."""
        cells: dict[str, list[Row]] = defaultdict(list)
        for row in [*self.chosen, *self.others]:
            cells[row.measured.cell].append(row)
        found = []
        for members in cells.values():
            measured = [row.step_time_s for row in members if row.step_time_s is not None]
            if len(measured) >= FEWEST_LAYOUTS:
                order = sorted(members, key=self.expected_s)
                found.append(choice([row.step_time_s for row in order], min(measured)))
        return found

    def expected_s(self, row: Row) -> float:
        """Return the expected time until a success."""
        return expected_s(self.after.step_time_s(row).point, self.after.chance(row))


def main() -> None:
    """Print the tables of errors, verdicts and choices."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--tables", type=Path, required=True, help="directory of CSV files named as in plan_tables")
    found = dict(judged_sources([*measurements(parser.parse_args().tables), *mlperf()]))
    for quantity, scored in (
        ("tokens/s", Judged.speed),
        ("tokens/s, without faulty rows,", Judged.undisturbed_speed),
        ("memory", Judged.memory),
    ):
        print(f"| {quantity} of source / GPU | rows | chosen (tried) | by defaults: median / p90, coverage, width | "
              "by five rows |\n| --- | --: | --: | --: | --: |")  # fmt: skip
        for source, each in found.items():
            if (before := scored(each, each.before)) is not None:
                after = scored(each, each.after) or ""
                print(f"| {source} | {before.rows:,} | {len(each.chosen)} ({each.tried}) | {before} | {after} |")
        print()
    print(f"| source / GPU | predicted | {' | '.join(RESULTS)} |\n| --- | --- | --: | --: | --: |")
    for source, each in found.items():
        counts = each.verdicts()
        for verdict in ("fits", "tight", "does not fit"):
            print(f"| {source} | {verdict} | {' | '.join(f'{counts[verdict, each]:,}' for each in RESULTS)} |")
    print("\n| source / GPU | cells | first pick fails | its regret, median | best of three, median / worst "
          "| trials to 5 %, median / worst | to 2 % |\n| --- | --: | --: | --: | --: | --: | --: |")  # fmt: skip
    for source, each in found.items():
        if choices := each.choices():
            print(f"| {source} | {choice_cells(choices)} |")


def judged_sources(measured_rows: Iterable[Measurement], wanted: str = "") -> Iterator[tuple[str, Judged]]:
    """Yield each source and GPU with its judgement, if `wanted` is a part of its name."""
    by_source: dict[str, list[Row]] = defaultdict(list)
    for measured in measured_rows:
        if wanted not in measured.source:
            continue
        work = step_work(measured.run)
        assert work is not None, "the readers know the GPU's rates"
        if measured.balanced:
            work = replace(work, imbalance=1.0)
        by_source[measured.source].append(Row(measured, work, *memory_works(measured)))
    for source, rows in by_source.items():
        yield source, judged(rows)


def memory_works(measured: Measurement) -> tuple[MemoryWork, MemoryWork]:
    """Return what a run holds as its source measures it, and with what is beside tensors."""
    states = measured.parameter_bytes * parameters_held(measured.run).model

    def tensors(place: int | None) -> MemoryWork:
        return tuple({**moment, "states": moment["states"] + states} for moment in memory_work(measured.run, place))

    def device(place: int | None) -> MemoryWork:
        return tuple({**moment, "framework": FRAMEWORK.point} for moment in tensors(place))

    place = 0 if measured.first_stage else None
    return (device if measured.framework else tensors)(place), device(None)


def judged(rows: Sequence[Row]) -> Judged:
    """Fit constants to the rows that the program chooses, and return them with the other rows."""
    sizes_of = memory_of(rows[0].measured.run.engine.kind)
    before = Fits(STEP_TIME.prior, sizes_of.prior)
    prints_memory = any(row.measured.memory_bytes for row in rows)
    # A run that is made to calibrate measures both: a row that does not print memory, while others do, is none.
    whole = [row for row in rows if row.step_time_s is None or row.measured.memory_bytes or not prints_memory]
    proposed = [row for row in whole if tensor_stays_on_link(row.measured.run)] or whole
    likely = [row for row in proposed if before.chance(row) >= LIKELY] or proposed
    candidates = likely[:: max(1, len(likely) // MOST_CANDIDATES)]
    quantities: list[Candidates[Any, Any]] = [Candidates(STEP_TIME, [row.work for row in candidates])]
    if prints_memory:
        quantities.append(Candidates(sizes_of, [row.memory for row in candidates]))

    def measure(place: int) -> list[float | None] | None:
        row = candidates[place]
        if row.step_time_s is None or STEP_TIME.is_disturbed(row.work, row.step_time_s):
            return None
        return [row.step_time_s, row.measured.memory_bytes][: len(quantities)]

    tried = choose(quantities, measure)
    chosen = [candidates[place] for place in tried if measure(place) is not None]
    speeds = [Sample(row.work, row.step_time_s) for row in chosen if row.step_time_s]
    sizes = [Sample(row.memory, row.measured.memory_bytes) for row in chosen if row.measured.memory_bytes]
    fitted_to = f"{len(chosen)} rows"
    after = Fits(fitted(STEP_TIME, speeds, fitted_to), fitted(sizes_of, sizes, fitted_to) if sizes else sizes_of.prior)
    taken = set(map(id, chosen))
    return Judged(chosen, len(tried), [row for row in rows if id(row) not in taken], before, after)


RESULTS = ("ran", "no result, though as much memory ran", "no result")


def result(row: Row, ran: Iterable[Run]) -> str:
    """Return the result of a row. One that holds no more than another that ran was not out of memory."""
    if row.step_time_s is not None:
        return RESULTS[0]
    return RESULTS[1 if any(holds_as_much(other, row.measured.run) for other in ran) else 2]


def holds_as_much(other: Run, run: Run) -> bool:
    """Return True if a GPU of another run certainly holds as much as one of a run, or more.

    It has the same model and engine, no more GPUs or divisions of the model among them, and no fewer samples at once.
    """
    p, q = run.parallelism, other.parallelism
    same = (other.model, other.gpu, other.job.sequence_length, q.sharding) == (
        run.model, run.gpu, run.job.sequence_length, p.sharding)  # fmt: skip
    engine = replace(other.engine, distributed_optimizer=run.engine.distributed_optimizer)
    return (
        same
        and engine == run.engine
        and other.engine.distributed_optimizer <= run.engine.distributed_optimizer
        and other.ranks <= run.ranks
        and q.tensor <= p.tensor
        and q.pipeline <= p.pipeline
        and q.context <= p.context
        and pipeline_stages_per_rank(other) == pipeline_stages_per_rank(run)
        and in_flight(other, 0) * p.pipeline >= in_flight(run, 0) * q.pipeline
        and other.job.micro_batch_size >= run.job.micro_batch_size
    )


def score(pairs: Iterable[tuple[Interval, float | None]]) -> Score | None:
    """Return the score of some predictions and measurements; None without any measurement."""
    known = [(predicted, measured) for predicted, measured in pairs if measured is not None]
    if not known:
        return None
    errors = [abs(predicted.point / measured - 1) for predicted, measured in known]
    inside = [predicted.low <= measured <= predicted.high for predicted, measured in known]
    widths = [predicted.high / predicted.low for predicted, _ in known]
    p90 = float(np.quantile(errors, 0.9))
    return Score(len(errors), statistics.median(errors), p90, statistics.fmean(inside), statistics.median(widths))


def choice(times: Sequence[float | None], best: float) -> Choice:
    """Return the worth of an order of trying, from the step times in it; None is a failure."""

    def until(share: float) -> int:
        return next(n for n, time in enumerate(times, 1) if time is not None and time <= best * (1 + share))

    first, *_ = times
    three = min((time for time in times[:3] if time is not None), default=math.inf)
    return Choice(None if first is None else first / best - 1, three / best - 1, until(0.05), until(0.02))


def choice_cells(choices: Sequence[Choice]) -> str:
    """Return the cells of a row of the last table."""
    regrets = [each.regret for each in choices if each.regret is not None]
    threes = [each.best_of_three for each in choices]
    parts = [
        str(len(choices)),
        str(len(choices) - len(regrets)),
        f"{100 * statistics.median(regrets):.1f} %" if regrets else "",
        f"{100 * statistics.median(threes):.1f} % / {100 * max(threes):.0f} %",
        *(
            f"{statistics.median(trials):g} / {max(trials)}"
            for trials in ([each.within_5 for each in choices], [each.within_2 for each in choices])
        ),
    ]
    return " | ".join(parts)


def gpu_bytes(row: Row) -> float:
    """Return the memory of a row's GPU."""
    size = row.measured.run.gpu.memory_gb
    assert size is not None, "conf/gpu has the memory of every GPU of the tables"
    return size * GIB


if __name__ == "__main__":
    main()
