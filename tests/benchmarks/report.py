"""Time a report of 10,000 runs: `make benchmark` prints wall and processor seconds.

The runs are generated, 50 steps each, with all files of a run; the argument sets their number. Whole processes are
timed. "The table" is the part that runs.csv needs.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from analysis.compare.loss import loss_doubts
from analysis.load.discover import read_runs
from analysis.report.digest import Digest
from analysis.report.runs_table import rows_of, to_csv
from analysis.scaling.groups import scaling_groups
from jobs.frozen import dump_run
from jobs.rundir import RunDir, SweepDir, append_record
from tests.support.fake_runs import a_run, counted, event, finished_run, sent_by
from tests.support.paths import ROOT

RUNS = 10_000
RUNS_PER_SWEEP = 1000
STEPS = 50
REPEATS = 3
MODELS = ("tiny", "small", "medium", "large")
PARALLELISMS = ("ddp", "fsdp_full", "tp", "pp", "pp_fsdp")
NODES = (1, 2, 4, 8, 16)
NOISE = random.Random(0)


def make_runs(folder: Path, count: int) -> None:
    """Write `count` runs in sweeps below a folder: repeats of each model, parallelism and number of nodes."""
    points = list(itertools.product(MODELS, PARALLELISMS, NODES))
    patterns: dict[tuple[str, str, int], RunDir] = {}
    for number, point in enumerate(itertools.islice(itertools.cycle(points), count)):
        model, parallelism, nodes = point
        repeat, sweep = number // len(points) + 1, folder / f"sweep-{number // RUNS_PER_SWEEP:03d}"
        name = f"{model}-{parallelism}-n{nodes}-r{repeat}"
        run = a_run(name, model=model, parallelism=parallelism, nodes=nodes, ranks_per_node=4, steps=STEPS)
        run = replace(run, repeat=repeat, sweep=sweep.name)
        if point not in patterns:
            patterns[point] = finished_run(sweep, run)
            counted(patterns[point], 2**20 / nodes, sent_by(1, 1, run.ranks))
            event(patterns[point], "checkpoint", checkpoint_size_bytes=2**30, checkpoint_write_time_s=1.5)
        directory = RunDir(sweep / name)
        directory.path.mkdir(parents=True, exist_ok=True)
        directory.config.write_text(dump_run(run))
        for file in ("plan", "provenance", "status"):
            getattr(directory, file).write_bytes(getattr(patterns[point], file).read_bytes())
        header, *steps = patterns[point].metrics.read_text().splitlines()
        directory.metrics.write_text("\n".join([header, *map(noisy, steps)]) + "\n")
        append_record(SweepDir(sweep).submissions, {"event": "submitted", "run": name, "job_id": f"{number}"})


def noisy(line: str) -> str:
    """Return the line of a step with a randomly changed time."""
    record = json.loads(line)
    record["step_time_s"] *= NOISE.uniform(0.98, 1.02)
    return json.dumps(record, separators=(",", ":"))


def table(folder: Path) -> str:
    """Return the text of runs.csv, read from the directories."""
    gc.disable()  # as analysis.report.report does
    runs = read_runs([folder], may_spawn=True)
    doubts = loss_doubts(runs)
    return to_csv(rows_of(Digest(runs, scaling_groups(runs, doubts), doubts)))


def timed(*command: str) -> tuple[float, float]:
    """Return wall and processor seconds of a process with its children."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-m", *command], check=True, capture_output=True)
    wall_s, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(count: int) -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as where:
        folder, out = Path(where) / "runs", Path(where) / "out"
        make_runs(folder, count)
        print(f"{len(os.sched_getaffinity(0))} cores, {count:,} runs of {STEPS} steps; best of {REPEATS}\n")
        print("| what | wall | processors |\n| --- | ---: | ---: |")
        commands = {
            "the table": ("tests.benchmarks.report", "table", str(folder)),
            "the report": ("jobs.cli", "report", "--output", str(out), str(folder)),
        }
        for what, command in commands.items():
            wall_s, processors_s = min(timed(*command) for _ in range(REPEATS))
            print(f"| {what} | {wall_s:.1f} s | {processors_s:.1f} s |", flush=True)
        for file in sorted(out.iterdir()):
            print(f"| {file.name} | {file.stat().st_size / 1e6:.1f} MB | |")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    if sys.argv[1:2] == ["table"]:
        print(len(table(Path(sys.argv[2]))))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else RUNS)
