"""Predicted training on images beside published measurements: `python -m tests.benchmarks.image_speed`.

The rows are ResNet-50 v1.5 at 224 pixels with images that do not limit the GPUs; image_rows.csv has the source of each.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Iterator
from pathlib import Path

from jobs.plan.predict.interval import Interval
from jobs.work.images.speed import image_speed
from tests.support.composing import one

ROWS = Path(__file__).with_name("image_rows.csv")
PRECISIONS = {
    "mixed": ("job.precision=float16",),
    "TF32": ("job.precision=float32", "engine.tf32=true"),
    "FP32": ("job.precision=float32", "engine.tf32=false"),
}


def main() -> None:
    """Print each row, and by framework the median error and how many rows are inside the interval."""
    found: dict[str, list[tuple[float, Interval]]] = {}
    print("| framework | GPUs | arithmetic | measured images/s | predicted (90 %) | predicted / measured |\n"
          "| --- | --- | --- | --: | --: | --: |")  # fmt: skip
    for row in rows():
        measured, predicted = float(row["images_per_s"]), predicted_rate(row)
        found.setdefault(row["framework"], []).append((measured, predicted))
        print(
            f"| {row['framework']} | {row['gpus']} {row['gpu']} | {row['arithmetic']} | {measured:,.0f} | "
            f"{predicted.point:,.0f} ({predicted.low:,.0f} to {predicted.high:,.0f}) | "
            f"{predicted.point / measured:.2f} |"
        )
    for framework, pairs in found.items():
        errors = [abs(predicted.point / measured - 1) for measured, predicted in pairs]
        inside = sum(predicted.low <= measured <= predicted.high for measured, predicted in pairs)
        print(f"{framework}: {len(pairs)} rows, median error {100 * statistics.median(errors):.0f} %, at most "
              f"{100 * max(errors):.0f} %, {inside} inside")  # fmt: skip


def rows() -> Iterator[dict[str, str]]:
    """Yield the published rows."""
    with ROWS.open(encoding="utf-8", newline="") as lines:
        yield from csv.DictReader(lines)


def predicted_rate(row: dict[str, str]) -> Interval:
    """Return the predicted images/s of a row; the nodes of MLPerf's A100 have 4 GPUs."""
    count = int(row["gpus"])
    per_node = 4 if row["framework"] == "MXNet, MLPerf" and count > 8 else count
    found = image_speed(
        one(
            "job=image_train", "images.decoder=dali", "images.path=/nowhere", f"gpu={row['gpu']}",
            "cluster=xe9680_h100", f"nodes={-(-count // per_node)}", f"ranks_per_node={per_node}",
            f"cluster.ranks_per_node={per_node}",
            "job.micro_batch_size=128", "gpu.memory_check=false", *PRECISIONS[row["arithmetic"]],
            "parallelism=" + ("ddp" if row["gpus"] != "1" else "single"),
        ).run
    )  # fmt: skip
    assert found is not None, "the rates of every GPU of the rows are known"
    return found.images_per_s


if __name__ == "__main__":
    main()
