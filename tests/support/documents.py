"""Run directories of the shipped experiments, filled with the times that their documents print; nothing is measured."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from jobs.plan.compose import compose
from jobs.plan.cost import parameters
from jobs.rundir import RunDir
from jobs.schema import Run
from tests.support.fake_runs import ended, event, prepared, started, step

STEPS = 30
BEGIN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
"""The start of the first run of a sweep."""
DEVICES = {
    "aspire2a": "NVIDIA A100-SXM4-40GB",
    "gadi_gpuvolta": "Tesla V100-SXM2-32GB",
    "xe9680_h100": "NVIDIA H100 80GB HBM3",
    "xe9680_mi300x": "AMD Instinct MI300X",
}
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
    steps: int | Callable[[Run], int] | None = None,
    start_up: float = 0.0,
) -> None:
    """Write the finished runs of a command into a sweep: `seconds_of` is the time of all steps of a run.

    `samples` are those of an epoch; `events` are further records of each run, which starts at `begin_s`.
    Without `steps` a run has its own, or STEPS; `start_up` is a share of the time of the steps.
    """
    # A document has one figure, so that the spread of equal repeats would be made up.
    once = () if any(each.startswith("repeat=") for each in overrides) else ("repeat=1",)
    for point in compose(["cluster.partition=gpu", *overrides, *once], multirun=True):
        run = point.run
        command = ["slurmscale", "submit", "-m", *overrides]
        made: dict[str, Any] = {"overrides": list(point.overrides), "command": command, "git": {}, "code_digest": None}
        directory = prepared(sweep, run, **made)
        plan = json.loads(directory.plan.read_text())
        directory.plan.write_text(json.dumps(plan | {"parameters": None if run.images else parameters(run.model)}))
        total_s = (1 + start_up) * seconds_of(run)
        device = DEVICES.get(run.cluster.name, "Test GPU")
        nodes = [f"{directory.name}-{i}" for i in range(run.nodes)]
        started(directory, run, device="cuda", device_name=device, data="as published", time=at(begin_s), nodes=nodes)
        count, epochs = (steps(run) if callable(steps) else steps) or run.job.steps or STEPS, run.job.epochs or 1
        drawn = samples * epochs // count if samples else run.global_batch_size
        lines(directory, run, count, seconds_of(run) / count, drawn)
        for kind, fields in (events or {}).items():
            event(directory, kind, time=at(begin_s + total_s), **fields)
        step_s = seconds_of(run) / count
        split: dict[str, Any] = {
            "startup_time_s": total_s - seconds_of(run),
            "first_step_time_s": step_s,
            "warmup_time_s": 0.0,
            "steady_time_s": seconds_of(run) - step_s,
            "checkpoint_total_time_s": 0.0,
            "other_time_s": 0.0,
        }
        ended(directory, step=count, total_time_s=total_s, time=at(begin_s + total_s), **split)


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
    """Write the steps of a run, all of which take as long, without memory; losses are made up, but no two equal."""
    tokens = None if run.images else samples * run.job.sequence_length
    for number in range(1, steps + 1):
        loss = 2 + 1 / number + len(directory.name) / 1000
        counts: dict[str, Any] = {"tokens": tokens, "padded_tokens": tokens, "samples": samples}
        counts["memory_peak_bytes"] = None
        step(directory, number, loss=loss, step_time_s=step_time_s, attempt=1, **counts)


def roce_study(folder: Path, *, every_step: bool = False) -> list[Path]:
    """Write the two commands of conf/experiment/README.md for both models; return their sweeps.

    With `every_step` the runs have the 3 x 880 and more steps that the document's epochs have, and else STEPS.
    """
    data = ("data.path=pqa_artificial", "job.init_from=weights", "job.init_from_is_remote=true")
    sweeps = []
    for size in ("8b", "70b"):
        sweep = folder / f"llama31_{size}_deepspeed"
        experiment = f"experiment=llama31_{size}_deepspeed"

        def seconds_of(run: Run) -> float:
            return 3 * EPOCH_S[run.model.name, run.nodes, run.network.name]

        for choice in ((), ("nodes=1", "network=default")):
            steps = (lambda run: 3 * SAMPLES_OF_EPOCH // run.global_batch_size) if every_step else None
            filled(sweep, experiment, *data, *choice, seconds_of=seconds_of, samples=SAMPLES_OF_EPOCH, steps=steps)
        sweeps.append(sweep)
    return sweeps


def constant(time_s: float) -> Callable[[Run], float]:
    """Return the same time for every run."""
    return lambda _: time_s


def by_repeat(times_s: tuple[float, ...]) -> Callable[[Run], float]:
    """Return the time of each repeat."""
    return lambda run: times_s[run.repeat - 1]


LORA_GAIN = {"mixtral_8x7b": 6.0, "llama3_8b": 2.5, "llama3_70b": 2.5}
"""Tokens/s of a batch of 16 over those of 1: "over 6x", "over 2.5x". The rates themselves are not published."""
RELATIVE = (
    "report.caption='Throughput of LoRA fine-tuning in units of the model with batch 1'",
    "+report.words.tokens_per_s='Throughput (batch 1 = 1)'",
)


def lora_study(folder: Path) -> list[Path]:
    """Write the ratios of part 2 of Metrum AI's study, with 1 token/s for a batch of 1; return a sweep a model."""
    data = ("data.path=pqa_labeled", "job.init_from=weights", "job.init_from_is_remote=true")
    batches = "scaling.global_batch_size=1,16"

    def seconds_of(run: Run) -> float:
        gain = LORA_GAIN[run.model.name] if run.global_batch_size > 1 else 1.0
        tokens = (run.job.steps or 0) * run.global_batch_size * run.job.sequence_length
        return tokens / gain

    sweeps = [folder / f"lora_mi300x_{model}" for model in LORA_GAIN]
    for sweep, model in zip(sweeps, LORA_GAIN, strict=True):
        filled(sweep, "experiment=lora_mi300x", f"model={model}", *data, *RELATIVE, batches, seconds_of=seconds_of)
    return sweeps


def storage_study(folder: Path) -> list[Path]:
    """Write tables 4 and 6 of H20044, with a filer's file of the means of table 6; return their sweeps."""
    sweeps = []
    for size, time_s, checkpoint_bytes, write_s in (("7b", 199.2, 100e9, 150.0), ("70b", 556.2, 1.1e12, 208.0)):
        sweeps.append(folder / f"llama2_{size}_nemo")
        written = {
            "attempt": 1,
            "step": 40,
            "checkpoint_size_bytes": checkpoint_bytes,
            "checkpoint_write_time_s": write_s,
        }
        filled(
            sweeps[-1],
            f"experiment=llama2_{size}_nemo",
            seconds_of=constant(time_s),
            events={"checkpoint": written},
        )
    for i, (nodes, rate, cpu, operations) in enumerate(((4, 5370, 13.6, 2.5e9), (8, 5366, 8.1, 1.2e9))):
        sweeps.append(folder / f"resnet50_powerscale_{nodes}")
        label = (f"images.path=/mnt/powerscale_{nodes}", f"images.storage={nodes} storage nodes")
        filled(
            sweeps[-1],
            "experiment=resnet50_powerscale",
            *label,
            seconds_of=constant(2000 * 256 / rate),
            begin_s=3600.0 * i,
        )
        rows = ["time,node,CPU %,NFS Ops/node", *filer_rows(3600.0 * i, 101, cpu, operations)]
        (sweeps[-1] / "filer.csv").write_text("\n".join(rows) + "\n")
    return sweeps


def contest_study(folder: Path) -> list[Path]:
    """Write the baselines of both machines of APAC HPC-AI 2024, two figures each, and the kernel's ratio of 1.594."""
    common = ("experiment=apac_hpc_ai_2024", "data.path=alpaca", "cluster.account=mine", "repeat=1,2")
    checkpointing = "engine.activation_checkpointing=full"
    liger = ("engine.kernels=liger", "engine.liger_kernels=[rms_norm]")
    sweeps = []
    for name, times_s, chosen in (
        ("aspire2a", (41.42, 41.51), ()),
        ("aspire2a_liger", (41.42 / 1.594, 41.51 / 1.594), liger),
        ("gadi_gpuvolta", (421.66, 422.16), ()),
    ):
        sweeps.append(folder / name)
        cluster = f"cluster={name.removesuffix('_liger')}"
        filled(
            sweeps[-1],
            *common,
            checkpointing,
            cluster,
            *chosen,
            seconds_of=by_repeat(times_s),
            samples=1024,
            steps=4,
            begin_s=3600.0 * len(sweeps),
        )
    return sweeps
