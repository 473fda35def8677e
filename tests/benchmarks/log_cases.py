"""Compare what is read from small logs with known values: one folder a case, and `truth.json` beside them.

`python -m tests.benchmarks.log_cases [DIRECTORY]` prints a line for each wrong or missing figure, then the numbers.
Exit code 1: a figure is wrong or missing, or a case has no figure that this module compares.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.failures.verdict import in_words
from analysis.load.discover import Found, read
from analysis.logs.measurements import measurements
from analysis.parsers import log_metrics as a
from analysis.parsers.base import Text
from analysis.report.content import build
from analysis.run import RunResult
from jobs import metrics as m
from jobs.metrics import Metric
from tests.benchmarks.corpus import Figure, print_report
from tests.support.paths import ROOT

# Values of the only run of a case, with the factor from their base unit to that of the figure.
VALUES: Mapping[str, tuple[Metric, float]] = {
    "step_time_median_s": (m.STEP_TIME_MEDIAN, 1),
    "step_time_s": (m.STEP_TIME_MEDIAN, 1),
    "training_time_s": (a.TRAINING_TIME, 1),
    "time_to_train_s": (a.TIME_TO_TRAIN, 1),
    "evaluation_loss": (m.EVALUATION_LOSS, 1),
    "evaluation_score": (a.EVALUATION_SCORE, 1),
    "final_loss": (m.FINAL_LOSS, 1),
    "samples_per_s": (a.SAMPLES_PER_S, 1),
    "tokens_per_s_per_rank": (m.TOKENS_PER_S_PER_RANK, 1),
    "tflops_claimed": (a.FLOPS_PER_S_PER_RANK, 1e-12),
    "tflops_per_device": (a.FLOPS_PER_S_PER_RANK, 1e-12),
}
# Largest values over the measurements of a case.
PEAKS: Mapping[str, tuple[Metric, float]] = {
    "gflops": (a.SOLVER_FLOPS_PER_S, 1e-9),
    "N": (a.PROBLEM_SIZE, 1),
    "time_s": (a.DURATION, 1),
    "bus_bandwidth_of_4MiB_GBps": (a.BUS_BANDWIDTH, 1e-9),
    "latency_us_1MiB": (a.MESSAGE_LATENCY, 1e6),
}
WITHIN = 1e-3


def first(found: Found) -> RunResult | None:
    """Return the first run of a case."""
    return found.runs[0] if found.runs else None


def value(found: Found, name: str) -> float | None:
    """Return a value of the run, or the peak of the measurements, in the unit of the figure."""
    metric, unit = {**VALUES, **PEAKS}[name]
    if name in PEAKS:
        known = [each.values[metric] for each in measurements(found.logs) if metric in each.values]
        return max(known) * unit if known else None
    run = first(found)
    return run.values[metric] * unit if run and metric in run.values else None


def warned(found: Found, *words: str) -> bool:
    """Return True if one warning, or the reason for which a run is not used, has all of these words."""
    texts = [*build(found).warnings, *(run.reason for run in found.runs if run.reason)]
    return any(all(word in text for word in words) for text in texts)


def average_bandwidth(found: Found, _: Any) -> float | None:
    """Return the average of the summary of nccl-tests in GB/s."""
    summaries = [each.values[a.BUS_BANDWIDTH] for each in measurements(found.logs) if a.MESSAGE_SIZE not in each.values]
    return summaries[0] / 1e9 if summaries else None


def rows(found: Found, _: Any) -> int:
    """Return the number of rows of a table: sizes of messages, else operations."""
    all_of = measurements(found.logs)
    sizes = {each.values[a.MESSAGE_SIZE] for each in all_of if a.MESSAGE_SIZE in each.values}
    return len(sizes) or len(all_of)


FOUND: Mapping[str, Callable[[Found, Any], Any]] = {
    "steps": lambda found, _: max(run.losses or run.step_times_s) if (run := first(found)) else None,
    "ranks": lambda found, _: (run.ranks if (run := first(found)) else measurements(found.logs)[0].at(a.RANKS)),
    "nodes": lambda found, _: (run := first(found)) and run.setting("nodes"),
    "ranks_per_node": lambda found, _: (run := first(found)) and run.setting("ranks_per_node"),
    "global_batch_size": lambda found, _: (run := first(found)) and run.plan.get("global_batch_size"),
    "device_name": lambda found, _: (run := first(found)) and run.started.get("device_name"),
    "diverged": lambda found, true: (
        [run.name for run in found.runs if run.state == "diverged"] if isinstance(true, list)
        else all(run.state == "diverged" for run in found.runs)
    ),
    "headline_must_not_crown": lambda found, name: (
        name if all(name not in each for each in build(found).headlines) else ""
    ),
    "lines": lambda found, _: len(build(found).digest.groups),
    "n": lambda found, _: len(build(found).digest.groups[0].points[0].runs),
    "rows": rows,
    "half_rows": lambda found, _: sum(a.MESSAGE_SIZE in each.values for each in measurements(found.logs)),
    "avg_bus_bandwidth_GBps": average_bandwidth,
    "file_removal_ops_per_s": lambda found, _: [
        each.values[a.IO_OPERATIONS_PER_S] for each in measurements(found.logs)
        if each.texts.get(Text.benchmark) == "file removal"
    ],
    "passed": lambda found, _: all(Text.state not in each.texts for each in measurements(found.logs)),
    "must_name": lambda found, _: [
        f"rank {verdict.rank}" if word == 0 else verdict.host
        for verdict in [found.logs[0].verdict] if verdict for word in (0, 1)
    ],
    "useful_steps": lambda found, true: true if all(not run.used for run in found.runs) else None,
    "doubt": lambda found, true: true if warned(found, "skipped") else None,
    "warning": lambda found, true: true if warned(found, "40 %") else None,
    "samples_per_s_first_half": lambda found, true: true if warned(found, f"{true:.1f} samples/s before") else None,
    "second_half": lambda found, true: true if warned(found, f"{true:.1f} samples/s after") else None,
    "cause": lambda found, true: (
        true
        if (verdict := found.logs[0].verdict) and "timeout" not in in_words(verdict.cause, verdict.possible)
        else None
    ),
}  # fmt: skip
# Remarks for readers.
NO_FIGURES = {"trap"}


def figures_of(cases: Path) -> Iterator[Figure]:
    """Yield every comparison."""
    for case, content in json.loads((cases / "truth.json").read_text(encoding="utf-8")).items():
        found = read([cases / case])
        for name, true in content["truth"].items():
            if name in NO_FIGURES:
                continue
            if isinstance(true, dict):
                known: Any = {run.name: run.values.get(VALUES[name][0]) for run in found.runs}
            elif name in VALUES or name in PEAKS:
                known = value(found, name)
            else:
                known = FOUND[name](found, true) if name in FOUND else None
            yield Figure(case, name, true, known, WITHIN)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", nargs="?", type=Path, default=ROOT.parent / "shared" / "log_cases")
    cases: Path = parser.parse_args(arguments).directory
    if not (cases / "truth.json").is_file():
        print(f"Nothing is compared: there is no truth.json in {cases}. Pass its directory.")
        return 0
    counts = print_report(figures_of(cases))
    print(f"{counts['compared']} figures of small logs compared: {counts['right']} right")
    return 0 if counts["right"] == counts["compared"] else 1


if __name__ == "__main__":
    sys.exit(main())
