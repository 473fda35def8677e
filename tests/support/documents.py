"""Run directories of the shipped experiments, filled with the times that their documents print; nothing is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from jobs.plan.compose import compose
from jobs.rundir import RunDir
from jobs.schema import Run
from tests.support.fake_runs import ended, event, prepared, started, step

STEPS = 30
BEGIN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
"""The start of the first run of a sweep."""
DEVICES = {"xe9680_mi300x": "AMD Instinct MI300X", "xe9680_h100": "NVIDIA H100 80GB HBM3"}
SAMPLES_OF_EPOCH = 169_015
"""Four fifths of pqa_artificial, which conf/experiment/README.md derives."""
EPOCH_S = {
    ("llama31_8b", 1, "default"): 1980,
    ("llama31_8b", 2, "tcp"): 1220,
    ("llama31_8b", 2, "roce"): 1071.2,
    ("llama31_70b", 1, "default"): 20420,
    ("llama31_70b", 2, "tcp"): 17160,
    ("llama31_70b", 2, "roce"): 8120,
}
"""Model, nodes, network."""


def filled(
    sweep: Path,
    *overrides: str,
    seconds_of: Callable[[Run], float],
    samples: int | None = None,
    events: Mapping[str, Mapping[str, Any]] | None = None,
    begin_s: float = 0.0,
) -> None:
    """Write the finished runs of a command into a sweep: `seconds_of` is the time of all steps of a run.

    `samples` are those of an epoch; `events` are further records of each run, which starts at `begin_s`.
    """
    for point in compose(["cluster.partition=gpu", *overrides], multirun=True):
        run = point.run
        directory = prepared(sweep, run, overrides=list(point.overrides))
        total_s = 1.05 * seconds_of(run)
        device = DEVICES.get(run.cluster.name, "Test GPU")
        nodes = [f"{directory.name}-{i}" for i in range(run.nodes)]
        started(directory, run, device="cuda", device_name=device, data="as published", time=at(begin_s), nodes=nodes)
        steps, epochs = run.job.steps or STEPS, run.job.epochs or 1
        drawn = samples * epochs // steps if samples else run.global_batch_size
        lines(directory, run, steps, seconds_of(run) / steps, drawn)
        for kind, fields in (events or {}).items():
            event(directory, kind, time=at(begin_s + total_s), **fields)
        ended(directory, step=steps, total_time_s=total_s, time=at(begin_s + total_s))


def at(seconds: float) -> str:
    """A moment of the clock of events."""
    return (BEGIN + timedelta(seconds=seconds)).isoformat(timespec="milliseconds")


def filer_rows(begin_s: float, duration_s: int, cpu_percent: float, operations: float) -> list[str]:
    """Return the rows of a filer of two nodes in each second from `begin_s` on, with these means over the nodes."""
    return [
        f"{at(begin_s + second)},{node},{cpu_percent + spread},{operations}"
        for second in range(duration_s + 1)
        for node, spread in ((1, -1), (2, 1))
    ]


def lines(directory: RunDir, run: Run, steps: int, step_time_s: float, samples: int) -> None:
    """Write the steps of a run, all of which take as long; the losses of a configuration are its own."""
    tokens = None if run.images else samples * run.job.sequence_length
    for number in range(1, steps + 1):
        loss = 2 + 1 / number + len(directory.name) / 1000
        counts: dict[str, Any] = {"tokens": tokens, "padded_tokens": tokens, "samples": samples}
        step(directory, number, loss=loss, step_time_s=step_time_s, attempt=1, **counts)


def roce_study(folder: Path) -> list[Path]:
    """Write the two commands of conf/experiment/README.md for both models; return their sweeps."""
    data = ("data.path=pqa_artificial", "job.init_from=weights", "job.init_from_is_remote=true")
    sweeps = []
    for size in ("8b", "70b"):
        sweep = folder / f"llama31_{size}_deepspeed"
        experiment = f"experiment=llama31_{size}_deepspeed"

        def seconds_of(run: Run) -> float:
            return 3 * EPOCH_S[run.model.name, run.nodes, run.network.name]

        for choice in ((), ("nodes=1", "network=default")):
            filled(sweep, experiment, *data, *choice, seconds_of=seconds_of, samples=SAMPLES_OF_EPOCH)
        sweeps.append(sweep)
    return sweeps
