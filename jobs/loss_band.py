"""The gate of `job.loss_band`: a run whose losses leave those of a reference ends as diverged.

    |mean of the last n losses / mean of the reference's losses of the same steps - 1| <= percent / 100

It is for arithmetic that is not trusted yet, such as float8 against bfloat16: both runs must do the same otherwise.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields
from pathlib import Path

from jobs import metrics as m
from jobs.errors import ConfigError
from jobs.rundir import RunDir, read_records
from jobs.schema import LossBand, Run

INFLUENCE_LOSS: Mapping[str, Collection[str]] = {
    "model": (),
    "data": {"cache_dir"},
    "job": {
        "name",
        "micro_batch_size",
        "precision",
        "export",
        "checkpoint_every_steps",
        "keep_checkpoints",
        "checkpoint_in_background",
        "checkpoint_copy_dir",
        "ema_decay",
        "init_from_is_remote",
        "unmeasured_steps",
        "loss_band",
    },
    "images": {"storage", "prefetch", "validation_path", "validate_every_steps", "channels_last"},
}
"""Sections of the configuration that the loss follows from, with their keys that do not change the mathematics of a
step; precision changes rounding, not the sum."""


def gate_of(run: Run) -> Gate | None:
    """Return the gate of a start; None without one. Raise ConfigError if this node finds no losses to compare with."""
    band = run.job.loss_band
    if band.reference is None:
        return None
    expected = recorded_losses(Path(band.reference))
    if len(expected) < band.steps:
        raise ConfigError(
            f"job.loss_band.reference={band.reference} has the losses of {len(expected)} steps on this node, and "
            f"job.loss_band.steps={band.steps}. Set it to a directory that all nodes see, or null."
        )
    return Gate(band, expected)


def recorded_losses(directory: Path) -> Mapping[int, float]:
    """Return the losses of a run by step; a step that was repeated after a restart has its last one."""
    found = {}
    for record in read_records(RunDir(directory).metrics):
        step, loss = record.get(m.STEP.name), record.get(m.LOSS.name)
        if isinstance(step, int) and isinstance(loss, int | float) and math.isfinite(loss):
            found[step] = float(loss)
    return found


def differences(run: Run, reference: Run) -> Iterator[str]:
    """Yield the keys that the loss follows from in which two runs differ, with the reference's value."""
    if run.global_batch_size != reference.global_batch_size:
        yield f"scaling.global_batch_size={reference.global_batch_size}"
    for name in ("model", "data", "job"):
        mine, other = getattr(run, name), getattr(reference, name)
        for each in fields(mine):
            value = getattr(other, each.name)
            if each.name not in INFLUENCE_LOSS[name] and getattr(mine, each.name) != value:
                yield f"{name}.{each.name}={getattr(value, 'name', value)}"


class Gate:
    """The losses of a start, beside those of the reference."""

    def __init__(self, band: LossBand, expected: Mapping[int, float]) -> None:
        self.band = band
        self.expected = expected
        self.losses: deque[float] = deque(maxlen=band.steps)

    def left(self, step: int, loss: float) -> str:
        """Return how the losses up to a step have left the band; empty while they are inside, or not comparable.

        The mean of a start begins with its own steps, and ends with those that the reference has.
        """
        self.losses.append(loss)
        steps = range(step - self.band.steps + 1, step + 1)
        if len(self.losses) < self.band.steps or any(each not in self.expected for each in steps):
            return ""
        found, expected = statistics.fmean(self.losses), statistics.fmean(self.expected[each] for each in steps)
        distance = found / expected - 1
        if abs(distance) <= self.band.percent / 100:
            return ""
        side = "above" if distance > 0 else "below"
        return (
            f"the mean loss of steps {steps[0]} to {step} is {found:.5g}, {100 * abs(distance):.3g} % {side} the "
            f"{expected:.5g} of {self.band.reference} (job.loss_band.percent={self.band.percent:g})"
        )
