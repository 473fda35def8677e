"""Predictions of a run's plan, compared with its measurements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from analysis.metrics.energy import GPU
from analysis.parsers import log_metrics as a
from analysis.run import RunResult
from analysis.untrusted import as_number, lookup
from jobs import metrics as m
from jobs.metrics import Metric


@dataclass(frozen=True)
class Compared:
    """A predicted number of a run and the measured one."""

    quantity: str
    unit: str
    point: float
    low: float | None
    high: float | None
    """Limits of the interval of 90 %."""
    basis: str
    """Calibration of the prediction, as text."""
    measured: float | None

    @property
    def residual(self) -> float | None:
        """Return the relative error of the prediction; None if nothing was measured."""
        return self.measured / self.point - 1 if self.measured else None

    @property
    def inside(self) -> bool | None:
        """Return whether the measured number lies in the interval; None if it cannot be compared."""
        if self.measured is None or self.low is None or self.high is None:
            return None
        return self.low <= self.measured <= self.high


def tensor_peak_bytes(run: RunResult) -> float | None:
    """Return the measured peak of tensors on a GPU; a CPU records that of the process."""
    return run.values.get(m.MEMORY_PEAK) if run.started.get("device") == "cuda" else None


def step_time_s(run: RunResult) -> float | None:
    """Return the measured step time of a run on the GPUs that its prediction is for.

    Emulated nodes share devices, and another device than the configured one has other rates.
    """
    return run.values.get(m.STEP_TIME_MEDIAN) if ran_as_planned(run) else None


def ran_as_planned(run: RunResult) -> bool:
    """Return True if a run was on the GPUs that its prediction is for, each of a node its own."""
    planned = lookup(run.config, "gpu.device_name")
    named = planned is not None and run.started.get("device_name") == planned
    return named and not run.started.get("emulated_nodes")


def gpu_energy_kwh(run: RunResult) -> float | None:
    """Return the energy of the GPUs of all ranks, if nothing else was read."""
    read = run.energy
    if read is None or not read.complete or not ran_as_planned(run):
        return None
    return read.energy_j / 3.6e6 if all(GPU in each for each in read.devices) else None


def of_server(metric: Metric) -> Callable[[RunResult], float | None]:
    """Return the function that finds a measurement of a server under the planned load; a search has others too."""
    return lambda run: run.values.get(metric) if ran_as_planned(run) and not run.loads else None


def whole_time_s(run: RunResult) -> float | None:
    """Return the wall time of all steps of a program that was started once, not on emulated nodes."""
    if run.attempts != 1 or run.started.get("emulated_nodes"):
        return None
    return run.values.get(m.PROGRAM_TIME)


def queue_wait_s(run: RunResult) -> float | None:
    """Return the wait of a finished run's job in the queue.

    None for one of a job that many runs share, of an array that starts few of its tasks at once, and of several
    submissions.
    """
    shared = lookup(run.config, "launcher.kind") not in {"slurm", "pbs"}
    throttled = lookup(run.config, "launcher.max_running") is not None
    if shared or throttled or run.values.get(m.UNSUBMITTED_TIME):
        return None
    return run.values.get(m.QUEUE_TIME) or None


class Quantity(NamedTuple):
    """A predicted quantity, and its place in plan.json."""

    name: str
    unit: str
    size: float
    """Bytes or seconds of one displayed unit."""
    section: str
    key: str
    measured: Callable[[RunResult], float | None]


QUANTITIES = (
    Quantity("Memory", "GB", 1e9, "memory", "allocated_bytes", tensor_peak_bytes),
    Quantity("Step time", "s", 1, "speed", m.STEP_TIME.name, step_time_s),
    Quantity("Memory", "GB", 1e9, "images", "allocated_bytes", tensor_peak_bytes),
    Quantity("Step time", "s", 1, "images", m.STEP_TIME.name, step_time_s),
    Quantity("Energy of the GPUs", "kWh", 1, "speed", "energy_kwh", gpu_energy_kwh),
    Quantity("Output rate", "1/s", 1, "serve", "output_tokens_per_s", of_server(a.OUTPUT_TOKENS_PER_S)),
    Quantity("Time to first token", "ms", 1e-3, "serve", "time_to_first_token_s",
             of_server(a.TIME_TO_FIRST_TOKEN["median"])),
    Quantity("Time per output token", "ms", 1e-3, "serve", "time_per_output_token_s",
             of_server(a.TIME_PER_OUTPUT_TOKEN["median"])),
    Quantity("Wall time", "s", 1, "program", m.PROGRAM_TIME.name, whole_time_s),
)  # fmt: skip


def compared(run: RunResult) -> list[Compared]:
    """Return the predictions of a run, those that its plan has."""
    return [each for quantity in QUANTITIES if (each := compared_one(run, quantity)) is not None]


def compared_one(run: RunResult, of: Quantity) -> Compared | None:
    """Return the prediction of a quantity in its displayed unit; None if the plan has none."""
    point, low, high = (as_number(lookup(run.plan, f"{of.section}.{of.key}.{end}")) for end in ("point", "low", "high"))
    if not point:
        return None
    low, high, found = (None if value is None else value / of.size for value in (low, high, of.measured(run)))
    basis = str(lookup(run.plan, f"{of.section}.basis") or "unknown basis")
    return Compared(of.name, of.unit, point / of.size, low, high, basis, found)
