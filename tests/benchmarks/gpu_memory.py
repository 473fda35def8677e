"""Random configurations of one GPU, with the memory that is predicted for each before it runs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice

import torch
import yaml

from jobs.errors import ConfigError
from jobs.plan.compose import compose
from jobs.plan.predict.memory import Prediction, memory
from jobs.plan.rules.memory import GIB
from tests.support.paths import ROOT

SPACE: dict[str, tuple[object, ...]] = {
    "model": ("llama2_7b", "llama3_8b"),
    "model.layers": (2, 4, 8),
    "job.sequence_length": (1024, 2048, 4096, 8192),
    "job.micro_batch_size": (1, 2, 4),
    "job.batching": ("padded", "packed"),
    "job.precision": ("bfloat16", "float32"),
    "engine.parameters": ("bfloat16", "float32"),
    "engine.activation_checkpointing": ("none", "selective", "full"),
    "engine.loss": ("whole", "chunked"),
    "engine.compile": ("false", "false", "false", "true"),
}
TINY: dict[str, tuple[object, ...]] = SPACE | {
    "model": ("tiny",),
    "job.sequence_length": (64, 128),
    "engine.compile": ("false",),
}
SHORT = ("data=random", "data.max_samples=16", "parallelism=single", "ranks_per_node=1", "job=pretrain", "job.steps=3",
         "job.unmeasured_steps=1", "job.warmup_steps=1", "model.max_sequence_length=8192",
         "scaling.global_batch_size=8")  # fmt: skip
FULLEST = 0.95
"""Largest part of the GPU that a configuration is predicted to take: those above would mostly fail."""


def configurations(seed: int, count: int, *, rehearsal: bool) -> list[tuple[list[str], Prediction]]:
    """Return random legal configurations with their predictions; equal seeds return equal ones."""
    return list(islice(drawn(random.Random(seed), TINY if rehearsal else SPACE), count))


def drawn(chance: random.Random, space: dict[str, tuple[object, ...]]) -> Iterator[tuple[list[str], Prediction]]:
    """Yield legal configurations that are predicted to fit this GPU, without end."""
    while True:
        values = [f"{key}={chance.choice(choices)}" for key, choices in space.items()]
        overrides = [*SHORT, *this_gpu(), *values]
        try:
            run = compose(overrides, multirun=False)[0].run
        except ConfigError:
            continue
        predicted = memory(run)
        size = run.gpu.memory_gb
        if size is None or predicted.device.point <= FULLEST * size * GIB:
            yield overrides, predicted


def this_gpu() -> list[str]:
    """Return the choice of this machine's GPU; none where it has none that conf/gpu knows."""
    if not torch.cuda.is_available():
        return []
    for file in (ROOT / "conf" / "gpu").glob("*.yaml"):
        if yaml.safe_load(file.read_text()).get("device_name") == torch.cuda.get_device_name():
            return [f"gpu={file.stem}"]
    return []
