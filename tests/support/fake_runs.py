"""Run directories with known numbers, written with the vocabulary of jobs as a run writes them.

Every value is the caller's, so that a test knows the truth it expects back; nothing here is measured.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from jobs import metrics as m
from jobs.frozen import dump_run
from jobs.layout import accumulation, layout_of
from jobs.parallelism import Parallelism, Sharding, Strategy
from jobs.rundir import SCHEMA_VERSION, RunDir, append_record
from jobs.schema import (
    Cluster,
    Data,
    Engine,
    EngineKind,
    Gpu,
    Job,
    Launcher,
    LauncherKind,
    Model,
    Precision,
    Run,
    Scaling,
    ScalingMode,
    Source,
)

UNMEASURED_STEPS = 2
MIB = 2.0**20
LAYOUT_SPEEDS = {
    ("native", "fsdp_full"): 1.0,
    ("native", "pp_fsdp"): 1.2,
    ("native", "tp_fsdp"): 0.8,
    ("native", "tp_pp_fsdp"): 0.6,
    ("nemo", "tp"): 1.4,
}
STRATEGIES = {
    "single": (Strategy.single, None),
    "ddp": (Strategy.ddp, None),
    "tp": (Strategy.ddp, None),
    "pp": (Strategy.ddp, None),
}


def a_run(
    name: str = "run",
    *,
    model: str = "tiny",
    parallelism: str = "ddp",
    nodes: int = 1,
    ranks_per_node: int = 1,
    repeat: int = 1,
    steps: int = 6,
    weak: bool = False,
    sweep: str = "demo",
) -> Run:
    """A small run; change more with dataclasses.replace."""
    strategy, sharding = STRATEGIES.get(parallelism, (Strategy.fsdp, Sharding.FULL_SHARD))
    return Run(
        runs_dir="runs",
        sweep=sweep,
        name=name,
        repeat=repeat,
        nodes=nodes,
        ranks_per_node=ranks_per_node,
        wall_time_min=10,
        model=Model(
            name=model,
            source="tests",
            layers=2,
            heads=2,
            kv_heads=2,
            hidden_size=8,
            head_size=4,
            intermediate_size=16,
            vocab_size=64,
            max_sequence_length=64,
        ),
        parallelism=Parallelism(name=parallelism, strategy=strategy, sharding=sharding),
        engine=Engine(kind=EngineKind.native),
        job=Job(
            name="pretrain",
            steps=steps,
            sequence_length=64,
            micro_batch_size=1,
            precision=Precision.float32,
            learning_rate=1e-3,
            min_learning_rate=1e-4,
            warmup_steps=1,
            weight_decay=0.1,
            beta1=0.9,
            beta2=0.95,
            seed=1,
            unmeasured_steps=UNMEASURED_STEPS,
        ),
        data=Data(name="random", source=Source.random, path=None, cache_dir="cache"),
        scaling=Scaling(mode=ScalingMode.weak, sequences_per_rank=4)
        if weak
        else Scaling(mode=ScalingMode.strong, global_batch_size=16),
        gpu=Gpu(name="none", source="tests"),
        cluster=Cluster(
            name="local",
            source="tests",
            ranks_per_node=2,
            gpus=False,
            partition=None,
            account=None,
            modules=[],
            container=None,
            container_mounts=[],
            setup=[],
            env={},
            sbatch={},
        ),
        launcher=Launcher(kind=LauncherKind.local),
    )


def prepared(sweep: Path, run: Run, **provenance: Any) -> RunDir:
    """A run directory as `submit` leaves it."""
    assert run.name is not None
    directory = RunDir(sweep / run.name)
    directory.path.mkdir(parents=True)
    directory.config.write_text(dump_run(run))
    plan = {
        "layout": layout_of(run).record(),
        "ranks": run.ranks,
        "accumulation": accumulation(run),
        "global_batch_size": run.global_batch_size,
        "parameters": 1234,
        "warnings": [],
    }
    directory.plan.write_text(json.dumps(plan))
    facts = {
        "time": "2026-01-02T03:00:00.000+00:00",
        "host": "login1",
        "git": {"commit": "0123abcd", "dirty": False},
        "versions": {"python": "3.11.2", "torch": "2.13.0"},
        "command": ["/opt/venv/bin/slurmscale", "submit", "-m", "nodes=1,2"],
        "code_digest": "feedc0de",
    }
    directory.provenance.write_text(json.dumps(facts | provenance))
    event(directory, "prepared")
    return directory


def started(directory: RunDir, run: Run, *, attempt: int = 1, from_step: int = 0, **fields: Any) -> None:
    """All ranks have met."""
    known: dict[str, Any] = {
        "ranks": run.ranks,
        "nodes": [f"node{i}" for i in range(run.nodes)],
        "device": "cpu",
        "device_name": "Test CPU",
        "torch": "2.13.0",
        "data": "random tokens",
        "emulated_nodes": False,
    }
    event(directory, "started", attempt=attempt, from_step=from_step, **(known | fields))
    if not directory.metrics.exists():
        units = {metric.name: metric.unit for metric in m.STEP_METRICS}
        append_record(directory.metrics, {"schema": SCHEMA_VERSION, "run": directory.name, "units": units})


def step(directory: RunDir, number: int, *, attempt: int = 1, **values: Any) -> None:
    """One line of metrics.jsonl; a value of None is left out."""
    known = {
        "step": number,
        "attempt": attempt,
        "loss": 8.0 / number,
        "learning_rate": 1e-3,
        "step_time_s": 0.5,
        "tokens": 1024,
        "padded_tokens": 1024,
        "memory_peak_bytes": 2**30,
    }
    append_record(directory.metrics, {key: value for key, value in (known | values).items() if value is not None})


def counted(
    directory: RunDir, held: float | None, collectives: Sequence[tuple[Any, ...]] | None = None, *, attempt: int = 1
) -> None:
    """Rank 0 has counted what a rank holds and sends; `collectives` are axis, collective, calls and bytes."""
    keys = ("axis", "collective", m.COLLECTIVE_CALLS.name, m.COLLECTIVE_BYTES.name)
    known = {
        m.PARAMETERS_HELD.name: held,
        "collectives": None if collectives is None else [dict(zip(keys, each, strict=True)) for each in collectives],
    }
    present = {key: value for key, value in known.items() if value is not None}
    event(directory, "layout", attempt=attempt, step=2, **present)


def ended(directory: RunDir, kind: str = "finished", *, attempt: int = 1, **fields: Any) -> None:
    """The recorded end of an attempt, with a time split that sums to 10 s."""
    split = {
        "startup_time_s": 2.0,
        "first_step_time_s": 1.5,
        "warmup_time_s": 0.5,
        "steady_time_s": 4.0,
        "checkpoint_total_time_s": 1.0,
        "other_time_s": 1.0,
        "total_time_s": 10.0,
    }
    event(directory, kind, attempt=attempt, **(split | fields))


def event(directory: RunDir, kind: str, **fields: Any) -> None:
    """A line of status.jsonl, at a fixed time."""
    append_record(directory.status, {"time": "2026-01-02T03:04:05.000+00:00", "event": kind, **fields})


def finished_run(
    sweep: Path,
    run: Run,
    *,
    step_time_s: float = 0.5,
    tokens: int = 1024,
    losses: Sequence[float] = (),
    **started_with: Any,
) -> RunDir:
    """A run that did all its steps; unmeasured steps take ten times as long as steady ones."""
    directory = prepared(sweep, run)
    started(directory, run, **started_with)
    for number in range(1, (run.job.steps or 0) + 1):
        slow = 10 if number <= run.job.unmeasured_steps else 1
        loss = losses[number - 1] if losses else 8.0 / number
        step(directory, number, step_time_s=slow * step_time_s, tokens=tokens, loss=loss)
    ended(directory, step=run.job.steps)
    return directory


def with_parallelism(run: Run, **parallelism: Any) -> Run:
    """The run with other parallelism settings."""
    return replace(run, parallelism=replace(run.parallelism, **parallelism))


def with_engine(run: Run, kind: str, **engine: Any) -> Run:
    """The run on another engine."""
    return replace(run, engine=replace(run.engine, kind=EngineKind[kind], **engine))


def with_job(run: Run, **job: Any) -> Run:
    """The run with other job settings."""
    return replace(run, job=replace(run.job, **job))


def a_sweep_of_layouts(path: Path, ranks: Sequence[int] = (4, 8), repeats: int = 2) -> None:
    """Four native layouts that recorded what a rank sends, and one of NeMo that did not; speeds as in LAYOUT_SPEEDS."""
    for (engine, name), speed in LAYOUT_SPEEDS.items():
        tensor, pipeline = (2 if cut in name.split("_") else 1 for cut in ("tp", "pp"))
        for count, repeat in itertools.product(ranks, range(1, repeats + 1)):
            run = a_run(
                f"{engine}-{name}-{count}-{repeat}",
                parallelism=name,
                nodes=count // 4,
                ranks_per_node=4,
                repeat=repeat,
            )
            run = with_engine(with_parallelism(run, tensor=tensor, pipeline=pipeline), engine)
            step_time_s = (1 + 0.02 * repeat) / speed / count**0.9
            directory = finished_run(path, run, step_time_s=step_time_s)
            counted(directory, 2**20 / count, None if engine == "nemo" else sent_by(tensor, pipeline, count))


def sent_by(tensor: int, pipeline: int, ranks: int) -> list[tuple[str, str, int, float]]:
    """Collectives of a layout of FSDP, with round numbers instead of a model's."""
    cut = tensor * pipeline
    sent: list[tuple[str, str, int, float]] = [("world", "all_reduce", 2, 8)]
    if ranks > cut:
        sent += [("dp_shard", "all_gather", 48, 96 * MIB / cut), ("dp_shard", "reduce_scatter", 24, 48 * MIB / cut)]
    if tensor > 1:
        sent += [("tp", "all_reduce", 64, 40 * MIB), ("tp", "all_gather", 64, 20 * MIB)]
    if pipeline > 1:
        sent += [("pp", "send", 32, 6 * MIB)]
    return sent
