"""Predicted memory beside published measurements: `python -m tests.benchmarks.plan_benchmark --tables DIR`.

Each source is a reader of one CSV by its name and layout (READERS); files that are missing are left out. At most five
rows of each source and GPU, which jobs.plan.predict.calibration chooses without their measured memory, fit its factors;
errors and coverage are those of all other rows.
"""

from __future__ import annotations

import argparse
import csv
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from jobs.layout import data_degree
from jobs.plan.compose import compose
from jobs.plan.cost import embedding_parameters, layer_parameters, norm_parameters
from jobs.plan.nearest import applied
from jobs.plan.pipeline_stages import pipeline_stage_layers
from jobs.plan.predict.activations import tokens_of
from jobs.plan.predict.calibration import Calibration, Features, calibrated, chosen, total_of
from jobs.plan.predict.interval import Interval
from jobs.plan.predict.memory import Terms, other_moments
from jobs.schema import Run

GIB = 2**30
GB = 1e9
STACK = ("cluster=xe9680_h100", "gpu.memory_gb=null", "engine=nemo", "data=random", "parallelism=pp",
         "parallelism.pipeline=1", "job.precision=bfloat16", "job.micro_batch_size=1")  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """One row of a table."""

    features: Features
    """Predicted bytes by term."""
    memory_bytes: float | None
    """Measured; None if the run has no result."""
    gpu: str
    gpu_bytes: float | None = None
    """Memory of the GPU; None where all rows of a source ran."""


def nanotron(rows: list[dict[str, str]]) -> Iterator[Measured]:
    """Read nanotron_ultrascale_sweep.csv.

    Shapes: huggingface/nanotron, scripts/scaling_benchmarks.py. Weights and gradients in bfloat16, and float32 sums of
    gradients: 8 bytes a parameter; AdamW and float32 weights: 12, divided by ZeRO stage 1.
    """
    shapes = {"1B": (16, 2048, 8192, "true"), "8B": (32, 4096, 14336, "false")}
    for row in rows:
        layers, hidden, wide, tied = shapes[row["model"]]
        run = sized(composed(
            f"model.layers={layers}", f"model.hidden_size={hidden}", f"model.intermediate_size={wide}",
            "model.heads=32", "model.kv_heads=32", f"model.head_size={hidden // 32}", "model.vocab_size=131072",
            f"model.tie_embeddings={tied}", "job.sequence_length=4096", "parallelism.stage_split=balanced",
        ), row)  # fmt: skip
        divided = data_degree(run) if row["zero_stage"] == "1" else 1
        ran = row["status"] == "ok" and row["memory_gb"]
        yield Measured(
            features(run, 8 + 12 / divided), float(row["memory_gb"]) * GIB if ran else None, row["gpu"], 79.6 * GIB
        )


def simumax(rows: list[dict[str, str]]) -> Iterator[Measured]:
    """Read simumax_b200.csv: Llama-3-70B of 12 layers by Megatron-LM with the distributed optimizer.

    Weights in bfloat16 and gradients in float32: 6 bytes a parameter; 12 are divided over DP and CP.
    """
    for row in rows:
        case = row["case"]
        degrees = {name: int(size) for name, size in re.findall(r"(tp|pp|cp|dp|mbc|seq)(\d+)", case)}
        degrees["cp"], length = degrees.get("cp", 1), degrees.get("seq", 4096)
        run = composed("model=llama3_70b", "model.layers=12", f"job.sequence_length={length}",
                       f"model.max_sequence_length={length}")  # fmt: skip
        sizes = {"mbs": "1", "gbs": str(degrees["mbc"] * degrees["dp"]), "n_nodes": "1", "n_gpus": "8"}
        run = sized(run, sizes | {name: str(degrees[name]) for name in ("tp", "pp", "cp")})
        divided = degrees["dp"] * degrees["cp"]
        yield Measured(features(run, 6 + 12 / divided), float(row["memory_allocated_gib"]) * GIB, row["gpu"])


READERS: dict[str, Callable[[list[dict[str, str]]], Iterator[Measured]]] = {
    "nanotron_ultrascale_sweep.csv": nanotron,
    "simumax_b200.csv": simumax,
}


@cache
def composed(*overrides: str) -> Run:
    """Return a run of a model on one rank, whatever the rules of our engines."""
    model = [] if any(line.startswith("model=") for line in overrides) else ["model=llama3_8b"]
    return compose([*STACK, *model, *overrides], multirun=False, judge=lambda _run: [])[0].run


def sized(run: Run, row: Mapping[str, str]) -> Run:
    """Return the run with the degrees and batch of a row."""
    nodes = int(row["n_nodes"])
    values: dict[str, Any] = {
        "nodes": nodes, "ranks_per_node": int(row["n_gpus"]) // nodes, "parallelism.tensor": int(row["tp"]),
        "parallelism.pipeline": int(row["pp"]), "parallelism.context": int(row.get("cp", 1)),
        "job.micro_batch_size": int(row["mbs"]), "scaling.global_batch_size": int(row["gbs"]),
    }  # fmt: skip
    return applied(run, tuple(values.items()))


def features(run: Run, bytes_each: float) -> Features:
    """Return the predicted terms of the pipeline rank with the most; `bytes_each` of states a parameter."""
    x = tokens_of(run)
    found = []
    for place, layers in enumerate(map(len, pipeline_stage_layers(run))):
        last = place == run.parallelism.pipeline - 1
        ends = (place == 0) + (last and not (place == 0 and run.model.tie_embeddings))
        parameters = layers * layer_parameters(run.model) + ends * embedding_parameters(run.model)
        states = bytes_each * (parameters + last * norm_parameters(run.model)) / run.parallelism.tensor
        found += [{"states": states, **grouped(moment)} for moment in other_moments(run, place, x, {})]
    return max(found, key=total_of)


def grouped(moment: Terms) -> dict[str, float]:
    """Return the terms of a moment by the factors of the calibration."""
    return {
        "activations": moment["activations"] + moment.get("backward", 0.0),
        "loss": moment.get("loss", 0.0),
        "constant": GB,
    }


@dataclass(frozen=True)
class Judged:
    """Rows that a calibration was not fitted to, with their predictions."""

    calibration: Calibration
    rows: list[tuple[Measured, Interval]]

    def errors(self) -> list[float]:
        """Return the relative errors of the rows with a result."""
        return [abs(x.point / row.memory_bytes - 1) for row, x in self.rows if row.memory_bytes]

    def coverage(self) -> float:
        """Return the share of the rows with a result that lie in their interval."""
        inside = [x.low <= row.memory_bytes <= x.high for row, x in self.rows if row.memory_bytes]
        return sum(inside) / len(inside)

    def verdicts(self) -> Counter[tuple[str, str]]:
        """Return the numbers of rows by verdict and result, where the memory of the GPU is known."""
        found: Counter[tuple[str, str]] = Counter()
        for row, x in self.rows:
            if row.gpu_bytes is not None:
                verdict = "fits" if x.high <= row.gpu_bytes else "tight" if x.low <= row.gpu_bytes else "does not fit"
                found[verdict, "ran" if row.memory_bytes else "no result"] += 1
        return found


def judged(rows: list[Measured]) -> Judged:
    """Calibrate to the rows that the program chooses and judge it by all others.

    A calibration needs runs with results, so it chooses among those; it does not see them.
    """
    ran = [row for row in rows if row.memory_bytes]
    fitted = [ran[i] for i in chosen([row.features for row in ran])]
    calibration = calibrated([(row.features, row.memory_bytes) for row in fitted if row.memory_bytes])
    return Judged(calibration, [(row, calibration.predict(row.features)) for row in rows if row not in fitted])


def judged_tables(folder: Path) -> dict[tuple[str, str], Judged]:
    """Return the judgement of each file and GPU in a directory."""
    found = {}
    for name, reader in READERS.items():
        file = folder / name
        if file.exists():
            with file.open(newline="") as lines:
                rows = sorted(reader(list(csv.DictReader(lines))), key=lambda row: row.gpu)
            for gpu, members in groupby(rows, key=lambda row: row.gpu):
                found[name, gpu] = judged(list(members))
    return found


def main() -> None:
    """Print a table of errors, and one of verdicts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tables", type=Path, required=True, help="directory of CSV files named as in READERS")
    found = judged_tables(parser.parse_args().tables)
    print("| table | GPU | rows | median error (%) | p90 (%) | in the 90 % interval (%) | factors |")
    print("| --- | --- | --: | --: | --: | --: | --- |")
    for (name, gpu), each in found.items():
        errors = sorted(each.errors())
        p90 = errors[int(0.9 * (len(errors) - 1))]
        factors = ", ".join(f"{term} {factor:.2f}" for term, factor in each.calibration.factors.items())
        print(f"| {name} | {gpu} | {len(errors):,} | {100 * statistics.median(errors):.1f} | {100 * p90:.1f} | "
              f"{100 * each.coverage():.0f} | {factors} |")  # fmt: skip
    print("\n| table | GPU | predicted | ran | no result |\n| --- | --- | --- | --: | --: |")
    for (name, gpu), each in found.items():
        counts = each.verdicts()
        for verdict in ("fits", "tight", "does not fit") if counts else ():
            print(f"| {name} | {gpu} | {verdict} | {counts[verdict, 'ran']:,} | {counts[verdict, 'no result']:,} |")


if __name__ == "__main__":
    main()
