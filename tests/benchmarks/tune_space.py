"""Measure all legal configurations of a space of a small model on this CPU.

python -m tests.benchmarks.tune_space FILE

Each configuration trains in rounds of short runs, in another order each round, and a run is one row of the file: a
measurement that is cut off goes on where it was. tests.benchmarks.tune_benchmark replays the file.
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import statistics
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path

from jobs.explore.space import Candidate, Space
from jobs.explore.tune import tuning_of
from jobs.frozen import dump_run
from jobs.rundir import RunDir, append_event
from jobs.runtime.machine import cpu_name
from tests.support.real_run import printed, steps, train

Choices = tuple[str, ...]
SPACE = Path(__file__).with_name("tune_space.csv")
OVERRIDES = (
    "model.layers=4", "model.hidden_size=96", "model.heads=4", "model.kv_heads=4", "model.head_size=24",
    "model.intermediate_size=256", "model.vocab_size=2048", "model.max_sequence_length=128",
    "job=finetune_full", "job.precision=float32", "job.sequence_length=128", "job.learning_rate=1e-3",
    "scaling.global_batch_size=16", "data=docstrings", "data.max_samples=256", "nodes=1", "ranks_per_node=2",
    "job.micro_batch_size=1,8", "job.batching=padded,packed", "engine.loss=whole,chunked",
    "parallelism=ddp,fsdp_full", "engine.activation_checkpointing=none,full", "engine.cpu_threads_per_rank=1,2",
)  # fmt: skip
STEPS, UNMEASURED = 8, 2
ROUNDS = 2


@dataclass(frozen=True)
class Measured:
    """A run, as a row of the file."""

    round: int
    choices: Choices
    tokens_per_s: float
    """Tokens of the steady steps over their number and their median step time."""
    run_s: float
    """Time of the run, start of its processes included."""


def space(where: Path, *further: str) -> Space:
    """Return the space that is measured."""
    return tuning_of(
        [*OVERRIDES, f"runs_dir={where}", "sweep=t", f"data.cache_dir={where}/cache", "tune.pairs=0", *further]
    ).space


def main() -> None:
    """Measure until the file has all rounds, or the time is over."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--minutes", type=float, default=1e9)
    options = parser.parse_args()
    end = time.monotonic() + 60 * options.minutes
    with tempfile.TemporaryDirectory() as where:
        whole = space(Path(where))
        candidates = whole.candidates
        done = (
            {(row.round, row.choices) for row in rows(options.file)} if options.file.exists() else begin(options.file)
        )
        for turn in range(1, options.rounds + 1):
            for each in random.Random(turn).sample(candidates, len(candidates)):
                if (turn, each.choices) not in done and time.monotonic() < end:
                    append(options.file, measured(whole, each, turn, Path(where)))


def measured(space: Space, candidate: Candidate, turn: int, where: Path) -> Measured:
    """Train a configuration; raise AssertionError if a rank fails."""
    short = space.trial(candidate, STEPS).run
    run = replace(short, job=replace(short.job, unmeasured_steps=UNMEASURED))
    with tempfile.TemporaryDirectory(dir=where) as place:
        directory = RunDir(Path(place) / "t" / str(run.name))
        directory.path.mkdir(parents=True)
        directory.config.write_text(dump_run(run))
        append_event(directory, "prepared")
        begun = time.monotonic()
        codes = train(directory)
        run_s = time.monotonic() - begun
        assert codes == [0] * run.ranks, (candidate.choices, codes, printed(directory)[-1000:])
        steady = steps(directory)[UNMEASURED:]
    rate = statistics.fmean(row["tokens"] for row in steady) / statistics.median(row["step_time_s"] for row in steady)
    return Measured(turn, candidate.choices, round(rate, 1), round(run_s, 2))


def in_order(found: Iterable[Choices]) -> list[Choices]:
    """Return configurations in the order of the space: the first value of every key is the baseline."""
    values = {each: place for place, each in enumerate(part for key in OVERRIDES for part in single_values(key))}
    return sorted(found, key=lambda choices: [values[each] for each in choices])


def single_values(override: str) -> list[str]:
    """Return an override for each of its values."""
    key, _, values = override.partition("=")
    return [f"{key}={value}" for value in values.split(",")]


def begin(file: Path) -> set[tuple[int, Choices]]:
    """Write hardware, date and command, and the names of the columns."""
    head = (
        f"# CPU: {cpu_name()}, {os.cpu_count()} cores, {datetime.now(UTC):%Y-%m-%d}; "
        f"python -m tests.benchmarks.tune_space {file.name}: {STEPS} steps a run, {UNMEASURED} of them not measured"
    )
    names = ",".join(field.name for field in fields(Measured))
    file.write_text(f"{head}\n{names}\n", encoding="utf-8")
    return set()


def append(file: Path, row: Measured) -> None:
    """Append a row."""
    with file.open("a", encoding="utf-8", newline="") as out:
        csv.writer(out, lineterminator="\n").writerow([row.round, " ".join(row.choices), row.tokens_per_s, row.run_s])


def rows(file: Path) -> list[Measured]:
    """Return the rows of a file."""
    with file.open(encoding="utf-8", newline="") as lines:
        found = csv.DictReader(line for line in lines if not line.startswith("#"))
        return [
            Measured(int(row["round"]), tuple(row["choices"].split()), float(row["tokens_per_s"]), float(row["run_s"]))
            for row in found
        ]


if __name__ == "__main__":
    main()
