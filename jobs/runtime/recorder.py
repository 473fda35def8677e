"""The records of a training run: rank 0 writes every number as data and prints the progress.

metrics.jsonl contains one line per step, status.jsonl the events and, at the end of an attempt, its time by part.
The Recorder of another rank keeps the sums and writes nothing, nor does that of a start that lost the lease of the run.
"""

from __future__ import annotations

import math
import signal
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from jobs import metrics as m
from jobs.data.batches import Work
from jobs.failure_causes import STOPS
from jobs.lease import Lease
from jobs.loss_band import gate_of
from jobs.metrics import Metric, StoragePhase
from jobs.output import NO_SPACE
from jobs.plan.rules.values import finetunes_nothing
from jobs.ranks import Rank, restart_count, scheduled_job_id
from jobs.rundir import SCHEMA_VERSION, append_record, event_record, read_events
from jobs.runtime import storage_io
from jobs.runtime.checkpoints.directory import Saved
from jobs.runtime.divergence import LEFT_BAND, DivergedError, in_words, is_finite
from jobs.runtime.gpus.gpu import compiled_graphs
from jobs.runtime.gpus.nvidia import gpu_of_rank
from jobs.runtime.machine import staged_environment
from jobs.runtime.node.load import NodeLoad, at_start
from jobs.runtime.process_group import (
    device_name,
    forget_memory_of_startup,
    found_by_ranks,
    largest_of_ranks,
    memory_peaks,
    nodes_of_run,
    transports_of_run,
)
from jobs.runtime.startup import Startup
from jobs.schema import Run

SECONDS_BETWEEN_LINES = 5.0
# Between two attempts to write the last records to a full disk.
RETRY_S = 1.0


class Recorder:
    """The record of one attempt of a run."""

    def __init__(self, run: Run, lease: Lease, rank: Rank, *, startup: Startup, steps: int, from_step: int) -> None:
        self.run = run
        self.lease = lease
        self.directory = lease.run
        self.rank = rank
        self.writes = rank.is_first
        self.nccl_log = self.directory.nccl_log(rank.rank)
        self.startup = startup
        self.steps = steps
        self.attempt = 0
        self.from_step = from_step
        self.last_step = from_step
        self.loop_started = 0.0
        self.fault_time: str | None = None
        """When the start before this one failed; None if this one does not follow a failure."""
        self.step_times_s: list[float] = []
        self.save_times_s: list[float] = []
        self.steady_time_s = 0.0
        self.unwritten: deque[tuple[Path, dict[str, Any]]] = deque()
        self.last_line = 0.0
        self.bar: Progress | None = None
        self.load = NodeLoad(run.ranks_per_node) if self.writes else None
        self.gate = gate_of(run)

    def started(self, device: torch.device, data: str, loaded: Mapping[Metric, int] | None = None, **more: str) -> None:
        """Record the start, after all ranks have met and before the first step. All ranks call it."""
        nodes = nodes_of_run(self.run.nodes, device)
        found = found_by_ranks(self.startup)
        forget_memory_of_startup(device)
        self.loop_started = self.startup.ends()
        if self.from_step == self.steps:
            self.startup.watchdog.startup_ends()
        storage_io.begin(StoragePhase.train)
        if not self.writes:
            return
        # Counted by the owner of the run: until now an earlier start may have recorded more.
        before = list(read_events(self.directory.status))
        self.attempt = 1 + sum(event["event"] == "started" for event in before)
        if before and before[-1]["event"] == "requeued":
            self.fault_time = before[-1].get("fault_time")
        if not self.directory.metrics.exists():
            units = {metric.name: metric.unit for metric in m.STEP_METRICS}
            self.append(self.directory.metrics, {"schema": SCHEMA_VERSION, "run": self.run.name, "units": units})
        place = {"attempt": self.attempt, "restart": restart_count(), "from_step": self.from_step}
        # Also here, because a killed attempt records no end.
        parts = {metric.name: value for metric, value in self.startup.parts.items() if value}
        startup = {m.STARTUP_TIME.name: self.loop_started - self.startup.process_started, **parts}
        startup |= {metric.name: value for metric, value in (found | dict(loaded or {})).items()}
        if self.load is not None:
            self.load.gpu = gpu_of_rank(device)
            startup |= {metric.name: value for metric, value in at_start(self.load.gpu).items()}
        ranks, named = self.rank.world_size, device_name(device)
        where = {"ranks": ranks, "job_id": scheduled_job_id(), **nodes, "device": device.type, "device_name": named}
        arithmetic = {
            "torch": torch.__version__,
            "float32_products": torch.get_float32_matmul_precision(),
            "deterministic": torch.are_deterministic_algorithms_enabled(),
        }
        if staged := staged_environment()[0]:
            more["environment"] = staged
        self.event("started", **place, **startup, **where, **arithmetic, **more, data=data)
        unlearned = ", from RANDOM WEIGHTS (job.init_from is not set)" if finetunes_nothing(self.run.job) else ""
        print(
            f"{self.run.name}: {ranks} ranks on {', '.join(nodes['nodes'])} ({named}), "
            f"steps {self.from_step + 1} to {self.steps}{unlearned}",
            flush=True,
        )

    def step(
        self,
        step: int,
        *,
        loss: float,
        rate: float,
        norm: float | None,
        step_time_s: float,
        batch: Work,
        memory: Mapping[Metric, float],
        save_time_s: float | None,
        further: Mapping[Metric, float] | None = None,
    ) -> None:
        """Record one step without values that are not finite. All ranks call it."""
        self.last_step = step
        self.step_times_s.append(step_time_s)
        self.steady_time_s += step_time_s if self.is_steady(step) else 0
        if save_time_s is not None:
            self.save_times_s.append(save_time_s)
        values: dict[Metric, float | None] = {
            m.STEP: step,
            m.ATTEMPT: self.attempt,
            m.LOSS: loss,
            m.LEARNING_RATE: rate,
            m.GRADIENT_NORM: norm,
            m.STEP_TIME: step_time_s,
            m.SAMPLES: batch.samples,
            m.TOKENS: batch.tokens,
            m.PADDED_TOKENS: batch.padded_tokens,
            m.CHECKPOINT_TIME: save_time_s,
            m.ELAPSED: time.time() - self.loop_started,
            m.PROFILED: 1 if self.run.engine.profile.covers(step) else None,
            **{metric: int(size_bytes) for metric, size_bytes in memory.items()},
            **(further or {}),
        }
        known = {k.name: v for k, v in values.items() if v is not None and math.isfinite(v)}
        if self.writes:
            self.append(self.directory.metrics, known)
            self.show(step, loss, step_time_s, batch)
        if len(self.step_times_s) == 1:
            self.startup.watchdog.startup_ends()
            self.transport(step)
            self.kernels(step)
            self.recovered(step)
        if self.load is not None and len(self.step_times_s) == self.run.job.unmeasured_steps:
            self.load.begin()
        elif self.load is not None and self.load.due():
            self.node_load(step)

    def kernels(self, step: int) -> None:
        """Record the compiled graphs that rank 0 found in the kept cache or compiled anew, if it compiles."""
        if self.writes and self.run.engine.compile:
            graphs = {metric.name: value for metric, value in compiled_graphs().items()}
            self.event("kernels", attempt=self.attempt, step=step, **graphs)

    def recovered(self, step: int) -> None:
        """Record the time since the failure of the start before, after the first step of this one."""
        if self.writes and self.fault_time is not None:
            time_s = time.time() - datetime.fromisoformat(self.fault_time).timestamp()
            self.event("recovered", attempt=self.attempt, step=step, **{m.RECOVERY_TIME.name: time_s})

    def is_steady(self, step: int) -> bool:
        """Return True if steady values include a step: after the unmeasured ones of this attempt, and not profiled."""
        return step > self.from_step + self.run.job.unmeasured_steps and not self.run.engine.profile.covers(step)

    def node_load(self, step: int) -> None:
        """Record what else this node did since the last record; nothing after too short a time."""
        if self.load is not None and (values := self.load.sample()) is not None:
            self.event("node_load", attempt=self.attempt, step=step, **{k.name: value for k, value in values.items()})

    def superseded(self) -> bool:
        """Return True on rank 0 if another start has taken the run over; all ranks act on the maximum over all."""
        return self.writes and self.lease.is_lost()

    def agreed(
        self, step_time_s: float, signal_number: int, device: torch.device, *, loss: float, norm: float | None
    ) -> tuple[float, dict[Metric, float], int]:
        """Return the slowest rank's time, the fullest rank's memory, and any rank's signal, by one small all-reduce.

        All ranks call it after a step. Raise on all of them SupersededError if another start has taken the run over,
        and DivergedError if the loss or gradient norm of any rank is not finite, or the loss has left job.loss_band.
        """
        memory, step = memory_peaks(device), self.last_step + 1
        left = self.gate.left(step, loss) if self.gate else ""
        own = [step_time_s, signal_number, self.superseded(), not is_finite(loss, norm), bool(left), *memory.values()]
        slowest_s, stopping, superseded, diverged, outside, *most_bytes = largest_of_ranks(own, device)
        if superseded:
            raise self.lease.loss()
        if diverged:
            raise DivergedError(step, in_words(loss, norm))
        if outside:
            raise DivergedError(step, left or "the loss of another rank left job.loss_band", LEFT_BAND)
        return slowest_s, dict(zip(memory, most_bytes, strict=True)), int(stopping)

    def transport(self, step: int) -> None:
        """Record the transports of all ranks' collectives, if known; every rank calls it.

        Raise ConfigError on all ranks if they are not those that the run asks for.
        """
        transports, devices, libraries = transports_of_run(self.run.network, self.nccl_log)
        if self.writes and transports:
            found = {"ways": transports, "devices": devices, "library": ", ".join(libraries) or None}
            self.event("transport", attempt=self.attempt, step=step, **found)

    def evaluated(self, step: int, values: Mapping[Metric, float]) -> None:
        """Record an evaluation after a step, without values that are not finite; its load is not that of steps."""
        if self.load is not None:
            self.load.begin()
        if self.writes:
            known = {metric.name: value for metric, value in values.items() if math.isfinite(value)}
            self.event("evaluated", attempt=self.attempt, step=step, **known)
            shown = ", ".join(f"{name.removeprefix('evaluation_')} {value:.4g}" for name, value in known.items())
            print(f"{self.run.name}: held out after step {step}: {shown}", flush=True)

    def pace(self, step: int, summary: dict[str, Any] | None) -> None:
        """Record the summary of the ranks' own times; None if no window has ended."""
        if self.writes and summary is not None:
            self.event("pace", attempt=self.attempt, step=step, **summary)

    def profile(self, step: int, ranks: list[dict[str, Any]] | None) -> None:
        """Record the summaries of the profiled ranks; None if no profile has ended."""
        if self.writes and ranks is not None:
            self.event("profile", attempt=self.attempt, step=step, ranks=ranks)

    def layout(
        self, step: int, parameters: int, collectives: list[dict[str, object]] | None, trained: int | None = None
    ) -> None:
        """Record the parameters that a rank holds, its collectives per step and what the run trains, where known."""
        if self.writes:
            known = {"collectives": collectives, m.PARAMETERS_TRAINED.name: trained}
            given = {key: value for key, value in known.items() if value is not None}
            self.event("layout", attempt=self.attempt, step=step, **{m.PARAMETERS_HELD.name: parameters}, **given)

    def checkpoints(self, ended: Iterable[Saved]) -> None:
        """Record checkpoints that are complete or failed; after a failure training continues and earlier ones stay."""
        for saved in ended if self.writes else ():
            where = {"attempt": self.attempt, "step": saved.step}
            if saved.error is None:
                numbers = {m.CHECKPOINT_WRITE_TIME: saved.write_time_s, m.CHECKPOINT_SIZE: saved.size_bytes}
                self.event("checkpoint", **where, **{metric.name: value for metric, value in numbers.items()})
            else:
                self.event("checkpoint_failed", **where, error=saved.error)
                print(f"step {saved.step}: writing the checkpoint failed ({saved.error})", flush=True)
            for error, nodes in saved.copy_errors.items():
                self.event("checkpoint_copy_failed", **where, nodes=nodes, error=error)
                print(f"no copy of a checkpoint on {', '.join(nodes)}: {error}; training continues", flush=True)

    def finished(self) -> None:
        """Record the end of a run that has done all its steps."""
        self.end("finished")

    def stopped(self, number: int) -> None:
        """Record the end of a run that a signal stopped before its last step."""
        stop = STOPS[signal.Signals(number)]
        self.end("stopped", reason=stop.reason, cause=stop.cause and stop.cause.name)

    def end(self, event: str, **fields: Any) -> None:
        """Record the end of the attempt with its time by part."""
        if not self.writes:
            return
        self.node_load(self.last_step)
        split = {metric.name: value for metric, value in self.time_split().items()}
        self.event(event, attempt=self.attempt, step=self.last_step, **fields, **split)
        self.write_last()
        print(f"{self.run.name}: {event} at step {self.last_step} of {self.steps}", flush=True)

    def event(self, event: str, **fields: Any) -> None:
        """Append an event to status.jsonl."""
        self.append(self.directory.status, event_record(event, **fields))

    def append(self, path: Path, record: dict[str, Any]) -> None:
        """Write a record after those that a full disk refused; a refusal does not end training."""
        if self.lease.is_lost():
            return
        waiting = len(self.unwritten)
        self.unwritten.append((path, record))
        try:
            self.write()
        except OSError as error:
            if not waiting:
                what = "disk space" if error.errno in NO_SPACE else "the directory of the run"
                print(f"{path}: {error.strerror}; records wait for {what}", flush=True)
        else:
            if waiting:
                print(f"{waiting} records that waited are written", flush=True)

    def write(self) -> None:
        """Write the records that wait, in order; raise the OSError of the first that cannot be written."""
        while self.unwritten:
            append_record(*self.unwritten[0])
            self.unwritten.popleft()

    def write_last(self) -> None:
        """Write the records that wait, as soon as there is room; raise OSError before the watchdog ends the run."""
        deadline = time.monotonic() + self.run.engine.hang_timeout_s / 2
        while True:
            try:
                return self.write()
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(RETRY_S)

    def time_split(self) -> dict[Metric, float]:
        """Return the attempt's wall time by part; the parts sum to the total."""
        now = time.time()
        unmeasured = self.run.job.unmeasured_steps
        split = {m.STARTUP_TIME: self.loop_started - self.startup.process_started}
        if self.step_times_s:  # empty where the checkpoint was already at the last step
            split |= {
                m.FIRST_STEP_TIME: self.step_times_s[0],
                m.WARMUP_TIME: sum(self.step_times_s[1:unmeasured]),
                m.STEADY_TIME: self.steady_time_s,
                m.CHECKPOINT_TOTAL_TIME: sum(self.save_times_s),
            }
        total = now - self.startup.process_started
        return split | {m.OTHER_TIME: max(0.0, total - sum(split.values())), m.TOTAL_TIME: total}

    @contextmanager
    def progress(self) -> Iterator[None]:
        """Show a progress bar on a terminal; elsewhere `show` prints at most one line every few seconds."""
        if not (self.writes and sys.stdout.isatty()):
            yield
            return
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns) as self.bar:
            self.bar.add_task("", total=self.steps)
            yield
        self.bar = None

    def show(self, step: int, loss: float, step_time_s: float, batch: Work) -> None:
        """Print the progress of the run."""
        text = f"loss {loss:.4f}  {batch.rate(step_time_s)}"
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], completed=step, description=text)
        elif step == self.steps or time.monotonic() - self.last_line > SECONDS_BETWEEN_LINES:
            self.last_line = time.monotonic()
            print(f"step {step}/{self.steps}  {text}  step {step_time_s:.3f} s", flush=True)
