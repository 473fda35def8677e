"""Replay measured spaces through the sampler of `slurmscale tune`: python -m tests.benchmarks.tune_benchmark.

Nothing runs: a proposed point gets the score that was measured for it. The space of this CPU is tune_space.csv; with
`--tables` also every cell of the published tables that tests.benchmarks.plan_benchmark reads, with its predictions.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from analysis.compare.tuning import TrialRun
from analysis.run import RunResult
from jobs.explore.propose.gaussian_process import proposals
from jobs.explore.space import Candidate, Space
from jobs.schema import Tune
from tests.benchmarks import tune_space
from tests.benchmarks.plan_benchmark import FEWEST_LAYOUTS, Choice, Judged, Row, choice, choice_cells, judged_sources
from tests.benchmarks.plan_tables import measurements

SEEDS = 10
BUDGET = 0.1
"""Share of the cost of measuring everything."""
GOAL = 0.02
"""Largest distance from the best."""
Choices = tuple[str, ...]
Scores = dict[Choices, float | None]


def main() -> None:
    """Print the results on the space of a CPU, and on tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--tables", type=Path, help="directory of CSV files named as in tests.benchmarks.plan_tables")
    parser.add_argument("--source", default="", help="part of the name of the sources to replay; default: all")
    options = parser.parse_args()
    print_cpu(tune_space.rows(tune_space.SPACE))
    if options.tables:
        print_tables(options.tables, options.source)


def order(candidates: Sequence[Candidate], scores: Scores, *, seed: int = 0, parallel: int = 1) -> Iterator[Choices]:
    """Yield the points in the order in which the sampler proposes them, so many at once; it sees their scores."""
    space = Space(cast(Any, None), Tune(runs=1, steps=[1], parallel=parallel, seed=seed), [], candidates)
    trials: list[TrialRun] = []
    while chosen := proposals(space, trials, parallel):
        for each in chosen:
            yield each.choices
            facts = {"choices": list(each.choices), "steps": 1}
            trials.append(TrialRun(RunResult(Path(str(len(trials)))), facts, scores[each.choices]))


# --- published tables ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """The layouts of one cell, the best expected first, with their step times; None is a failure."""

    candidates: Sequence[Candidate]
    times_s: dict[Choices, float | None]

    @property
    def best_s(self) -> float:
        """Return the shortest step time."""
        return min(time for time in self.times_s.values() if time)

    def choice(self) -> Choice:
        """Return what the tuner's order is worth."""
        scores = {choices: 1 / time if time else None for choices, time in self.times_s.items()}
        tried: list[float | None] = []
        for each in order(self.candidates, scores):
            tried.append(self.times_s[each])
            if len(tried) >= 3 and any(time is not None and time <= self.best_s * (1 + GOAL) for time in tried):
                break
        return choice(tried, self.best_s)

    def random_trials(self, share: float) -> float:
        """Return the expected trials of a random order until one is within a share of the best: (n + 1) / (k + 1)."""
        near = sum(time is not None and time <= self.best_s * (1 + share) for time in self.times_s.values())
        return (len(self.times_s) + 1) / (near + 1)


def print_tables(tables: Path, wanted: str = "") -> None:
    """Print, for each source with a part of its name, what the tuner's choices in its cells are worth."""
    print(
        "| source / GPU | cells | first pick fails | its regret, median | best of three, median / worst "
        "| trials to 5 %, median / worst | to 2 % | random order: to 5 % | to 2 % |"
    )
    print(f"|{' --- |' * 9}")
    for source, judged in judged_sources(measurements(tables), wanted):
        if cells := [cell for rows in cells_of(judged) if (cell := cell_of(rows, judged)) is not None]:
            chance = [statistics.median(cell.random_trials(share) for cell in cells) for share in (0.05, 0.02)]
            found = choice_cells([cell.choice() for cell in cells])
            print(f"| {source} | {found} | {' | '.join(f'{each:.1f}' for each in chance)} |", flush=True)


def cells_of(judged: Judged) -> Iterator[list[Row]]:
    """Yield the rows of each cell."""
    cells: dict[str, list[Row]] = defaultdict(list)
    for row in [*judged.chosen, *judged.others]:
        cells[row.measured.cell].append(row)
    yield from cells.values()


def cell_of(rows: Sequence[Row], judged: Judged) -> Cell | None:
    """Return a cell of these rows; None with too few layouts to choose from."""
    if sum(row.step_time_s is not None for row in rows) < FEWEST_LAYOUTS:
        return None
    found: dict[Choices, Row] = {}
    for row in sorted(rows, key=judged.expected_s):
        # Rows of one layout: repeats, or differences that no key states. The first one stands for it.
        found.setdefault(choices_of(row), row)
    candidates = [
        Candidate(choices, cast(Any, None), judged.after.verdict(row) != "fits", judged.expected_s(row))
        for choices, row in found.items()
    ]
    return Cell(candidates, {choices: row.step_time_s for choices, row in found.items()})


def choices_of(row: Row) -> Choices:
    """Return the layout of a row as overrides."""
    run, p = row.measured.run, row.measured.run.parallelism
    values = {
        "job.micro_batch_size": run.job.micro_batch_size, "job.sequence_length": run.job.sequence_length,
        "engine.activation_checkpointing": run.engine.activation_checkpointing.name, "engine.float8": run.engine.float8,
        "engine.distributed_optimizer": run.engine.distributed_optimizer, "ranks": run.ranks, "tensor": p.tensor,
        "pipeline": p.pipeline, "stages_per_rank": p.stages_per_rank, "context": p.context, "sharding": p.sharding,
    }  # fmt: skip
    return tuple(f"{key}={value}" for key, value in values.items())


# --- the space of a CPU ----------------------------------------------------------------------------------------


def print_cpu(rows: Sequence[tune_space.Measured]) -> None:
    """Print how near the best each seed comes with a tenth of the cost of measuring everything once."""
    rates: dict[Choices, list[float]] = defaultdict(list)
    seconds: dict[Choices, list[float]] = defaultdict(list)
    for row in rows:
        rates[row.choices].append(row.tokens_per_s)
        seconds[row.choices].append(row.run_s)
    truth = {choices: statistics.median(found) for choices, found in rates.items()}
    costs = {choices: statistics.median(found) for choices, found in seconds.items()}
    noise = statistics.median(max(found) / min(found) - 1 for found in rates.values())
    print(tune_space.SPACE.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# "))
    print(
        f"{len(truth)} configurations, {len(rows)} runs; {sum(costs.values()):.0f} s for one run of each; repeats "
        f"differ by {100 * noise:.1f} % in the median; the best is {max(truth.values()) / min(truth.values()):.1f} "
        "times as fast as the slowest.\n"
    )
    print(
        "| order | within 2 % of the best with a tenth of the cost | within the noise | distance, median / worst |\n"
        "| --- | --: | --: | --: |"
    )
    # The first value of every key, as the tuner's baseline.
    candidates = [Candidate(each, cast(Any, None), tight=False) for each in tune_space.in_order(truth)]

    def tuned(seed: int, seen: Scores) -> Iterator[Choices]:
        return order(candidates, seen, seed=seed)

    def shuffled(seed: int, seen: Scores) -> Iterator[Choices]:
        return iter(random.Random(seed).sample(list(seen), len(seen)))

    orders: dict[str, Callable[[int, Scores], Iterator[Choices]]] = {"tuner": tuned, "random": shuffled}
    for name, tries in orders.items():
        found = []
        for seed in range(SEEDS):
            draw = random.Random(seed)
            seen: Scores = {choices: draw.choice(values) for choices, values in rates.items()}
            found.append(1 - truth[best_within(tries(seed, seen), seen, costs)] / max(truth.values()))
        near, alike = (sum(each <= limit for each in found) for limit in (GOAL, noise))
        print(
            f"| {name} | {near} of {SEEDS} seeds | {alike} | {100 * statistics.median(found):.1f} % / "
            f"{100 * max(found):.1f} % |"
        )
    print()


def best_within(tries: Iterator[Choices], seen: Scores, costs: dict[Choices, float]) -> Choices:
    """Return the point with the best score that was seen, of those that cost at most the budget together."""
    left, tried = BUDGET * sum(costs.values()), list[Choices]()
    for each in tries:
        left -= costs[each]
        if left < 0 and tried:
            break
        tried.append(each)
    return max(tried, key=lambda choices: seen[choices] or 0)


if __name__ == "__main__":
    main()
