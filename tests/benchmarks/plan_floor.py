"""How well the rows of a table predict each other: `python -m tests.benchmarks.plan_floor --tables DIRECTORY`.

A forest of 500 extremely randomized trees (Geurts, Ernst and Wehenkel, Machine Learning 63, 2006) predicts each tenth
of a source's rows from the nine others. It knows nothing of computers and nearly all of the table, where the program
knows arithmetic and five rows: what neither predicts is scatter that no configuration explains. It needs
`pip install scikit-learn`.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.model_selection import KFold, cross_val_predict

from jobs.layout import accumulation, data_degree
from jobs.plan.predict.interval import Interval
from jobs.plan.predict.states import parameters_held
from tests.benchmarks.plan_benchmark import FEWEST_LAYOUTS, choice, choice_cells, score
from tests.benchmarks.plan_rows import Measurement
from tests.benchmarks.plan_tables import measurements

FEWEST = 50
"""Rows of a source to learn from."""


def main() -> None:
    """Print the errors of the forest, and what trying in the order of its predictions is worth."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--tables", type=Path, required=True)
    by_source: dict[str, list[Measurement]] = defaultdict(list)
    for each in measurements(parser.parse_args().tables):
        if each.tokens_per_s is not None:
            by_source[each.source].append(each)
    for source, rows in by_source.items():
        kept = [row for row in rows if not row.faulty]
        print_floor(f"tokens/s of {source}", rows, lambda row: row.tokens_per_s)
        if len(kept) < len(rows):
            print_floor(f"tokens/s of {source} without faulty rows", kept, lambda row: row.tokens_per_s)
        print_floor(f"memory of {source}", rows, lambda row: row.memory_bytes)


def print_floor(title: str, rows: Sequence[Measurement], measured: Callable[[Measurement], float | None]) -> None:
    """Print the errors of one quantity of a source, and for throughput the choices."""
    rows = [row for row in rows if measured(row) is not None]
    if len(rows) < FEWEST:
        return
    values = np.log([measured(row) or np.nan for row in rows])
    # Throughput is learned as the rate of arithmetic of a GPU.
    scale = np.log([row.run.ranks / parameters_held(row.run).model for row in rows]) if "tokens" in title else 0.0
    folds = KFold(10, shuffle=True, random_state=0)
    forest = ExtraTreesRegressor(500, random_state=0)
    learned = scale + cross_val_predict(forest, [features(row) for row in rows], values - scale, cv=folds)
    points = np.exp(learned)
    found = score((Interval(x, x, x), measured(row)) for x, row in zip(points, rows, strict=True))
    assert found is not None
    print(f"{title}: {found.rows:,} rows, {found.median:.1%} in the median, {found.p90:.0%} at p90")
    if "tokens" not in title:
        return
    cells: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row, point, value in zip(rows, points, np.exp(values), strict=True):
        cells[row.cell].append((point, value))
    choices = [
        choice([1 / value for _, value in sorted(cell, reverse=True)], min(1 / value for _, value in cell))
        for cell in cells.values()
        if len(cell) >= FEWEST_LAYOUTS
    ]
    if choices:
        print(f"  cells, first picks that fail, regret, best of three, trials to 5 %, to 2 %: {choice_cells(choices)}")


def features(row: Measurement) -> NDArray[np.float64]:
    """Return logarithms of the numbers of a configuration, and what a step or its memory is proportional to."""
    run, p = row.run, row.run.parallelism
    logs = np.log2(
        [
            parameters_held(run).model * p.tensor * p.pipeline,
            run.ranks,
            data_degree(run),
            p.tensor,
            p.pipeline,
            run.job.micro_batch_size,
            accumulation(run),
            run.global_batch_size,
            run.job.sequence_length,
            run.model.layers,
            run.model.hidden_size,
        ]
    )
    model, _, data, tensor, pipeline, micro_batch, steps, *_ = logs
    share = model - tensor - pipeline
    shards = p.sharding is not None or run.engine.distributed_optimizer
    return np.array(
        [
            *logs,
            share,
            share + micro_batch + steps,
            share - shards * data,
            micro_batch - tensor,
            (p.pipeline - 1) / accumulation(run),
            shards,
            run.engine.activation_checkpointing.name != "none",
            run.engine.float8,
        ]
    )


if __name__ == "__main__":
    main()
