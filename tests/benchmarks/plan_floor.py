"""Errors of predicting rows of a table from its other rows: `python -m tests.benchmarks.plan_floor --tables DIRECTORY`.

A forest of 500 extremely randomized trees (Geurts, Ernst and Wehenkel, Machine Learning 63, 2006) predicts each tenth
of a source's rows from the nine others. It knows nothing of computers and nearly all of the table, where the program
knows arithmetic and five rows: what neither predicts is scatter that no configuration explains. It needs
`pip install scikit-learn`.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Sequence
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
        undisturbed = [row for row in rows if not row.faulty]
        print_speed(f"tokens/s of {source}", rows)
        if len(undisturbed) < len(rows):
            print_speed(f"tokens/s of {source} without faulty rows", undisturbed)
        sizes = [(row, row.memory_bytes) for row in rows if row.memory_bytes is not None]
        if len(sizes) >= FEWEST:
            learned([row for row, _ in sizes], [size for _, size in sizes], f"memory of {source}")


def print_speed(title: str, rows: Sequence[Measurement]) -> None:
    """Print the errors of the throughput, and what trying the layouts of a cell in its order is worth."""
    if len(rows) < FEWEST:
        return
    # What is learned is the rate of arithmetic of a GPU.
    scales = [row.run.ranks / parameters_held(row.run).model for row in rows]
    rates = [(row.tokens_per_s or math.nan) / scale for row, scale in zip(rows, scales, strict=True)]
    cells: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row, point, rate, scale in zip(rows, learned(rows, rates, title), rates, scales, strict=True):
        cells[row.cell].append((point * scale, rate * scale))
    choices = [
        choice([1 / value for _, value in sorted(cell, reverse=True)], min(1 / value for _, value in cell))
        for cell in cells.values()
        if len(cell) >= FEWEST_LAYOUTS
    ]
    if choices:
        print(f"  cells, first picks that fail, regret, best of three, trials to 5 %, to 2 %: {choice_cells(choices)}")


def learned(rows: Sequence[Measurement], values: Sequence[float], title: str) -> NDArray[np.float64]:
    """Return the prediction of each value from nine tenths of the others; print the errors."""
    folds = KFold(10, shuffle=True, random_state=0)
    forest = ExtraTreesRegressor(500, random_state=0)
    points = np.exp(cross_val_predict(forest, [features(row) for row in rows], np.log(values), cv=folds))
    found = score((Interval(x, x, x), value) for x, value in zip(points, values, strict=True))
    assert found is not None
    print(f"{title}: {found.rows:,} rows, {found.median:.1%} in the median, {found.p90:.0%} at p90")
    return np.asarray(points)


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
