"""The record of a LitGPT run, from Fabric's callbacks: micro-batch requested, loss, optimizer step done.

A step lasts from the request of its first micro-batch to the end of the optimizer update. It includes LitGPT's logging
of all micro-batches but the last, and excludes validation and saving. LitGPT's output is not parsed.
"""

from __future__ import annotations

import time
from dataclasses import replace
from importlib.metadata import version

import torch
import torch.distributed as dist
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from jobs import metrics as m
from jobs.data import Batches, Dataset
from jobs.engines.litgpt.arguments import Script, script_of
from jobs.engines.native.load_sharded import full, local_shard
from jobs.engines.native.traffic import held_here
from jobs.metrics import Metric, StoragePhase
from jobs.plan.cost import weights_bytes
from jobs.runtime import storage_io
from jobs.runtime.checkpoints.directory import take_over
from jobs.runtime.divergence import DivergedError, are_finite, in_words, is_finite
from jobs.runtime.machine import StopRequest
from jobs.runtime.process_group import memory_peaks, synchronize
from jobs.runtime.profiling.profiler import StepProfiler
from jobs.runtime.recorder import Recorder
from jobs.runtime.watchdog import Watchdog
from jobs.schema import Run

PROBLEMS = (
    "",
    "the gradient norm is not finite",
    "a weight is not finite after the update",
    "the gradients overflow at every loss scale down to 1",
)


class Stopped(Exception):  # noqa: N818 - a requested end is no error
    """Raised at a step boundary on all ranks together, to leave LitGPT's loop after a signal."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.number = number


class Record:
    """A callback of Fabric; methods in the order of their calls."""

    def __init__(
        self,
        *,
        run: Run,
        batches: Batches,
        dataset: Dataset,
        recorder: Recorder,
        stop: StopRequest,
        watchdog: Watchdog,
    ) -> None:
        self.run = run
        self.batches = batches
        self.dataset = dataset
        self.recorder = recorder
        self.stop = stop
        self.watchdog = watchdog
        self.device = torch.device("cpu")
        self.scaler: GradScaler | None = None
        """Fabric's loss scaling of float16; a sharded one is a kind of it."""
        self.scale, self.skipped, self.overflowed = 0.0, 0, False
        self.began = False
        self.fence: float | None = None
        self.loss: Tensor | None = None
        self.norm: Tensor | None = None
        """The gradient norm of the step, if LitGPT clips it."""
        self.training_time_s: float | None = None
        """Training time by LitGPT's own clock."""

    def loads(self) -> None:
        """Note the time after loading weights, from which pretraining counts its training time."""
        self.loaded = time.perf_counter()

    def validates(self) -> None:
        """Note the request of a validation micro-batch."""
        self.watchdog.begins("validating")

    def asks(self) -> None:
        """Note the request of a training micro-batch; the first of a step starts its clock."""
        if not self.began:
            self.begin()
        if self.fence is None:
            step = self.recorder.last_step + 1
            self.watchdog.begins(f"in step {step}")
            self.profiler.begins(step)
            synchronize(self.device)
            self.fence = time.perf_counter()

    def begin(self) -> None:
        """Take the run over and record the end of start-up; all ranks have met."""
        self.began = True
        if self.scaler is not None:
            self.scale = self.scaler.get_scale()
        take_over(self.recorder.lease, self.recorder.rank)
        recorder = self.recorder
        self.profiler = StepProfiler(self.run, recorder.directory, recorder.rank, self.device, recorder.steps)
        self.recorder.started(self.device, self.dataset.description, litgpt=version("litgpt"))

    def backward(self, loss: Tensor) -> None:
        """Add the loss of a micro-batch, which LitGPT has divided by the micro-batches of a step."""
        part = loss.detach()
        self.loss = part if self.loss is None else self.loss + part

    def on_after_optimizer_step(self, optimizer: Optimizer, **_strategy: object) -> None:
        """Record the step; raise Stopped if any rank received a signal before the last step.

        Raise on all ranks SupersededError if another start has taken the run over, and DivergedError if the loss, the
        norm or a weight that LitGPT is about to save is not finite.
        """
        synchronize(self.device)
        assert self.fence is not None
        assert self.loss is not None
        seconds = time.perf_counter() - self.fence
        step = self.recorder.last_step + 1
        self.profiler.ends(step)
        lost = self.recorder.superseded()
        peaks, numbers = memory_peaks(self.device), self.loss_scale()
        weights = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        own = [seconds, self.stop.signal, lost, self.problem(step, weights), self.loss.item(), *peaks.values()]
        if step == 1:
            own.append(held_here(weights))
        # One collective for all: the loss needs the mean over ranks, every other number the maximum.
        ranks = gathered(torch.tensor(own, dtype=torch.float64, device=self.device))
        step_time_s, stopping, superseded, problem, _, *further = ranks.amax(0).tolist()
        memory, held = dict(zip(peaks, further, strict=False)), further[len(peaks) :]
        loss = ranks[:, 4].mean().item()
        if superseded:
            raise self.recorder.lease.loss()
        if not is_finite(loss):
            raise DivergedError(step, in_words(loss, None))
        if problem:
            raise DivergedError(step, PROBLEMS[int(problem)])
        batch = self.batches.step(step)
        if script_of(self.run) is not Script.pretrain:
            # LitGPT also computes on the last token of a sample, since it shifts the labels afterwards.
            batch = replace(batch, padded_tokens=batch.padded_tokens + self.run.global_batch_size)
        self.recorder.step(
            step,
            loss=loss,
            rate=float(optimizer.param_groups[0]["lr"]),
            norm=None,
            step_time_s=step_time_s,
            batch=batch,
            memory=memory,
            save_time_s=None,
            further=numbers,
        )
        if held:
            self.recorder.layout(step, int(held[0]), None)
        self.recorder.profile(step, self.profiler.report(step))
        self.fence, self.loss = None, None
        # LitGPT saves its weights after the last step.
        last = step == self.recorder.steps
        self.watchdog.begins("between steps", weights_bytes(self.run) if last else 0)
        if last:
            storage_io.begin(StoragePhase.checkpoint)
        if stopping and step < self.recorder.steps:
            raise Stopped(int(stopping))

    def problem(self, step: int, weights: list[Tensor]) -> int:
        """Return the place in PROBLEMS of what this rank met in a step; 0 for none."""
        # An overflow that lowers the scale skips the update. At a scale of 1 the scale is not its reason.
        if self.scaler is not None and self.scale < 1:
            return 3
        if not self.overflowed and self.norm is not None and not is_finite(full(self.norm).item()):
            return 1
        # LitGPT saves its weights after the last step.
        return 0 if step < self.recorder.steps or are_finite(map(local_shard, weights)) else 2

    def loss_scale(self) -> dict[Metric, float]:
        """Return the numbers of float16's loss scale after a step: torch lowers it where it skipped the update."""
        if self.scaler is None:
            return {}
        before, self.scale = self.scale, self.scaler.get_scale()
        self.overflowed = self.scale < before
        self.skipped += self.overflowed
        return {m.LOSS_SCALE: self.scale, m.SKIPPED_UPDATES: self.skipped}


def gathered(values: Tensor) -> Tensor:
    """Return the values of all ranks, (ranks, values)."""
    if not dist.is_initialized():
        return values[None]
    parts = [torch.empty_like(values) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, values)
    return torch.stack(parts)
