"""Replay measured spaces through the sampler of `slurmscale tune`: python -m tests.benchmarks.tune_benchmark.

Nothing runs: a proposed point gets the score that was measured for it. The space of this CPU is tune_space.csv; with
`--tables` also every cell of the published tables that tests.benchmarks.plan_benchmark reads, with its predictions.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from analysis.compare.tuning import TrialRun
from analysis.run import RunResult
from jobs.schema import Tune
from jobs.tune.sampler import proposals
from jobs.tune.space import Candidate, Space
from tests.benchmarks import tune_space
from tests.benchmarks.plan_benchmark import FEWEST_LAYOUTS, Judged, Row, judged_sources

SEEDS = 10
BUDGET = 0.1
"""Share of the cost of measuring everything."""
GOAL = 0.02
"""Largest distance from the best."""
PARALLEL = 4
# Rates of a GPU stand in for those of this CPU, so that a step time is predicted: only the order of points matters.
RATES = ("gpu.peak_fp32_tflops=0.1", "gpu.memory_gb_per_s=10")
Choices = tuple[str, ...]


@dataclass(frozen=True)
class Replay:
    """A space whose points were all measured."""

    candidates: Sequence[Candidate]
    scores: dict[Choices, float | None]

    @property
    def best(self) -> float:
        """Return the best score."""
        return max(score for score in self.scores.values() if score)

    def order(self, seed: int, parallel: int) -> Iterator[Choices]:
        """Yield the points in the order in which the sampler proposes them, in batches."""
        space = Space(cast(Any, None), Tune(runs=1, steps=[1], seed=seed), [], self.candidates)
        trials: list[TrialRun] = []
        while chosen := proposals(space, trials, parallel):
            for each in chosen:
                yield each.choices
                trials.append(
                    TrialRun(RunResult(Path()), {"choices": each.choices, "steps": 1}, self.scores[each.choices])
                )

    def trials_to(self, order: Iterator[Choices], share: float) -> int:
        """Return the number of trials until one is within a share of the best."""
        return next(
            number for number, each in enumerate(order, 1) if (self.scores[each] or 0) >= self.best * (1 - share)
        )


def main() -> None:
    """Print the results on the space of this CPU, and on tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--tables", type=Path, help="directory of CSV files named as in tests.benchmarks.plan_tables")
    options = parser.parse_args()
    if tune_space.SPACE.exists():
        print_cpu()
    else:
        print(f"The space of a CPU is not measured. Run python -m tests.benchmarks.tune_space {tune_space.SPACE}\n")
    if options.tables:
        print_tables(options.tables)


# --- the space of this CPU -------------------------------------------------------------------------------------


def print_cpu() -> None:
    """Print how near the best each seed comes with a tenth of the cost of measuring everything."""
    rows = tune_space.rows(tune_space.SPACE)
    scores: dict[Choices, float | None] = dict(tune_space.rates(rows))
    costs: dict[Choices, float] = defaultdict(float)
    for row in rows:
        costs[tuple(row.choices.split(" "))] += row.run_s / len({each.round for each in rows})
    print(tune_space.SPACE.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# "))
    print(f"{len(scores)} configurations, {sum(costs.values()):.0f} s of runs for one round of all\n")
    print("| order | within 2 % of the best with a tenth of the cost | distance, median / worst |\n| --- | --: | --: |")
    points = candidates_of(scores)
    plain = Replay([replace(each, predicted_step_s=None) for each in points], scores)
    predicted = Replay(points, scores)
    shuffled = {seed: random.Random(seed).sample(list(scores), len(scores)) for seed in range(SEEDS)}
    orders: dict[str, Callable[[int], Iterator[Choices]]] = {
        "tuner": lambda seed: plain.order(seed, PARALLEL),
        "tuner with predictions": lambda seed: predicted.order(seed, PARALLEL),
        "random": lambda seed: iter(shuffled[seed]),
    }
    for name, order in orders.items():
        found = [1 - reached(order(seed), scores, costs) / plain.best for seed in range(SEEDS)]
        within, median, worst = sum(each <= GOAL for each in found), statistics.median(found), max(found)
        print(f"| {name} | {within} of {SEEDS} seeds | {100 * median:.1f} % / {100 * worst:.1f} % |")
    print()


def candidates_of(scores: dict[Choices, float | None]) -> list[Candidate]:
    """Return the points of the space with predicted step times, the first value of every key first."""
    with tempfile.TemporaryDirectory() as where:
        found = tune_space.space(Path(where), *RATES).candidates
    return [each for each in found if each.choices in scores]


def reached(order: Iterator[Choices], scores: dict[Choices, float | None], costs: dict[Choices, float]) -> float:
    """Return the best score of the points of an order that cost at most the budget together."""
    left, best = BUDGET * sum(costs.values()), 0.0
    for each in order:
        left -= costs[each]
        if left < 0:
            break
        best = max(best, scores[each] or 0)
    return best


# --- published tables ------------------------------------------------------------------------------------------


def print_tables(tables: Path) -> None:
    """Print, for each source, the regret of the first pick and the trials to near the best, over its cells."""
    print(
        "| source / GPU | cells | first pick fails | its regret, median | trials to 5 %, median / worst | to 2 % "
        "| random: to 5 % | to 2 % |\n| --- | --: | --: | --: | --: | --: | --: | --: |"
    )
    for source, judged in judged_sources(tables):
        cells = [cell for rows in cells_of(judged) if (cell := replay_of(rows, judged)) is not None]
        if cells:
            print(f"| {source} | {table_cells(cells)} |", flush=True)


def table_cells(cells: Sequence[Replay]) -> str:
    """Return the row of a source."""
    firsts = [cell.scores[next(cell.order(0, 1))] for cell in cells]
    regrets = [cell.best / first - 1 for cell, first in zip(cells, firsts, strict=True) if first]
    trials = {share: [cell.trials_to(cell.order(0, 1), share) for cell in cells] for share in (0.05, 0.02)}
    chance = {share: [random_trials(cell, share) for cell in cells] for share in (0.05, 0.02)}
    return " | ".join(
        [
            str(len(cells)),
            str(len(cells) - len(regrets)),
            f"{100 * statistics.median(regrets):.1f} %" if regrets else "",
            *(f"{statistics.median(each):g} / {max(each)}" for each in trials.values()),
            *(f"{statistics.median(each):.0f}" for each in chance.values()),
        ]
    )


def random_trials(cell: Replay, share: float) -> float:
    """Return the expected trials of a random order until one is within a share of the best: (n + 1) / (k + 1)."""
    near = sum((score or 0) >= cell.best * (1 - share) for score in cell.scores.values())
    return (len(cell.scores) + 1) / (near + 1)


def cells_of(judged: Judged) -> Iterator[list[Row]]:
    """Yield the rows of each cell."""
    cells: dict[str, list[Row]] = defaultdict(list)
    for row in [*judged.chosen, *judged.others]:
        cells[row.measured.cell].append(row)
    yield from cells.values()


def replay_of(rows: Sequence[Row], judged: Judged) -> Replay | None:
    """Return a cell as a space, the best expected first; None with too few layouts to choose from."""
    ordered = sorted(rows, key=judged.expected_s)
    found = {choices_of(row): row for row in reversed(ordered)}
    points = [
        Candidate(choices, cast(Any, None), judged.after.chance(row), judged.after.step_time_s(row).point)
        for choices, row in reversed(found.items())
    ]
    scores: dict[Choices, float | None] = {
        choices: 1 / row.step_time_s if row.step_time_s else None for choices, row in found.items()
    }
    return Replay(points, scores) if sum(score is not None for score in scores.values()) >= FEWEST_LAYOUTS else None


def choices_of(row: Row) -> Choices:
    """Return the layout of a row as overrides."""
    run, p = row.measured.run, row.measured.run.parallelism
    values = {
        "tp": p.tensor, "pp": p.pipeline, "cp": p.context, "sharding": p.sharding, "zero": p.strategy,
        "mbs": run.job.micro_batch_size, "checkpointing": run.engine.activation_checkpointing,
        "float8": run.engine.float8, "virtual": p.stages_per_rank, "sequence": run.job.sequence_length,
        "ranks": run.ranks, "distributed": run.engine.distributed_optimizer,
    }  # fmt: skip
    return tuple(f"{key}={value}" for key, value in values.items())


if __name__ == "__main__":
    main()
