"""Predicted servers beside published measurements: `python -m tests.benchmarks.server_speed`.

All rows compute in 16 bits. Their lengths, batch and GPUs are in server_rows.csv, with the source of each.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from jobs.plan.predict.interval import Interval
from jobs.schema import Run
from jobs.work.serve.speed import server_speed
from tests.support.composing import one

ROWS = Path(__file__).with_name("server_rows.csv")


def main() -> None:
    """Print each row, and the median error of each quantity."""
    errors: dict[str, list[float]] = {}
    print("| model, GPUs | requests, tokens | quantity | measured | predicted (90 %) | predicted / measured |\n"
          "| --- | --- | --- | --: | --: | --: |")  # fmt: skip
    for row in rows():
        for quantity, measured, predicted in quantities(row):
            errors.setdefault(quantity, []).append(abs(predicted.point / measured - 1))
            print(
                f"| {row['model']}, {row['tensor']} {row['gpu']} | {row['concurrency']}, {row['input_tokens']} + "
                f"{row['output_tokens']} | {quantity} | {measured:g} | {predicted.point:.4g} ({predicted.low:.4g} to "
                f"{predicted.high:.4g}) | {predicted.point / measured:.2f} |"
            )
    for quantity, found in errors.items():
        print(f"{quantity}: {len(found)} rows, median error {100 * statistics.median(found):.0f} %, "
              f"at most {100 * max(found):.0f} %")  # fmt: skip


def rows() -> Iterator[dict[str, str]]:
    """Yield the published rows."""
    with ROWS.open(encoding="utf-8", newline="") as lines:
        yield from csv.DictReader(lines)


def quantities(row: dict[str, str]) -> Iterator[tuple[str, float, Interval]]:
    """Yield the name of each quantity of a row, what was measured and what is predicted."""
    predicted = server_speed(run_of(row))
    assert predicted is not None, "the rates of every GPU of the rows are known"
    for quantity in ("output_tokens_per_s", "time_to_first_token_s"):
        if row[quantity]:
            yield quantity, float(row[quantity]), getattr(predicted, quantity)


def run_of(row: dict[str, str]) -> Run:
    """Return the run of a row: one replica. All its prompts have one length, which no run of slurmscale has."""
    ranks, read, written = (int(row[name]) for name in ("tensor", "input_tokens", "output_tokens"))
    run = one(
        "cluster=xe9680_h100", "experiment=serve_llama2", f"model={row['model']}", f"gpu={row['gpu']}", "nodes=1",
        f"ranks_per_node={ranks}", "parallelism=tp", f"parallelism.tensor={ranks}", "job.precision=bfloat16",
        "gpu.memory_check=false",
    ).run  # fmt: skip
    assert run.serving is not None
    load = replace(
        run.serving, concurrency=int(row["concurrency"]), input_tokens=read, output_tokens=written, replicas=1
    )
    return replace(run, serving=load, job=replace(run.job, sequence_length=read + written))


if __name__ == "__main__":
    main()
