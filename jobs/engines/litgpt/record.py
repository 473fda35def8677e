"""The record of a LitGPT run: Fabric tells it when a micro-batch is asked for, its loss, and when a step is done.

Nothing is read from what LitGPT prints. A step lasts from asking for its first micro-batch to the end of the optimizer
update; LitGPT's logging of all micro-batches but the last falls into it, validation and saving do not.
"""

from __future__ import annotations

import time
from dataclasses import replace
from importlib.metadata import version

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from jobs.data import Batches, Dataset
from jobs.engines.native.traffic import held_here
from jobs.plan.litgpt_arguments import Script, script_of
from jobs.runtime.process_group import StopRequest, memory_peak_bytes, synchronize
from jobs.runtime.recorder import Recorder
from jobs.runtime.watchdog import Watchdog
from jobs.schema import Run


class Stopped(Exception):  # noqa: N818 - an end that was asked for is no error
    """Leaves LitGPT's loop at a step boundary, on all ranks together."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.number = number


class Record:
    """What happens around LitGPT's steps, in the order in which it happens; one of Fabric's callbacks."""

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
        self.began = False
        self.fence: float | None = None
        self.loss: Tensor | None = None
        self.training_time_s: float | None = None
        """What LitGPT prints as its training time."""

    def loads(self) -> None:
        """The weights have been read; pretraining counts its training time from here."""
        self.loaded = time.perf_counter()

    def validates(self) -> None:
        """A micro-batch of the validation data is asked for."""
        self.watchdog.begins("validating")

    def asks(self) -> None:
        """A micro-batch to train on is asked for; the first of a step starts its clock."""
        if not self.began:
            self.begin()
        if self.fence is None:
            self.watchdog.begins(f"in step {self.recorder.last_step + 1}")
            synchronize(self.device)
            self.fence = time.perf_counter()

    def begin(self) -> None:
        """Say that all ranks have met, and that the first step is next."""
        self.began = True
        self.recorder.started(self.device, self.dataset.description, litgpt=version("litgpt"))

    def backward(self, loss: Tensor) -> None:
        """The loss of a micro-batch, divided by the micro-batches of a step, as LitGPT gives it to Fabric."""
        part = loss.detach()
        self.loss = part if self.loss is None else self.loss + part

    def on_after_optimizer_step(self, optimizer: Optimizer, **_strategy: object) -> None:
        """Record the step; raises Stopped when a signal has asked any rank to stop before the last one."""
        synchronize(self.device)
        assert self.fence is not None
        assert self.loss is not None
        seconds = time.perf_counter() - self.fence
        step = self.recorder.last_step + 1
        own = [seconds, memory_peak_bytes(self.device), self.stop.signal, self.loss.item()]
        if step == 1:
            own.append(held_here(parameter for group in optimizer.param_groups for parameter in group["params"]))
        ranks = gathered(torch.tensor(own, dtype=torch.float64, device=self.device))
        step_time_s, memory_bytes, stopping, _, *held = ranks.amax(0).tolist()
        batch = self.batches.step(step)
        if script_of(self.run) is not Script.pretrain:
            # LitGPT computes on the last token of a sample too, and shifts the labels afterwards.
            batch = replace(batch, padded_tokens=batch.padded_tokens + self.run.global_batch_size)
        self.recorder.step(
            step,
            loss=ranks[:, 3].mean().item(),
            rate=float(optimizer.param_groups[0]["lr"]),
            norm=None,
            step_time_s=step_time_s,
            batch=batch,
            memory_bytes=memory_bytes,
            save_time_s=None,
        )
        if held:
            self.recorder.layout(step, int(held[0]), None)
        self.fence, self.loss = None, None
        self.watchdog.begins("between steps")
        if stopping and step < self.recorder.steps:
            raise Stopped(int(stopping))


def gathered(values: Tensor) -> Tensor:
    """The values of every rank, (ranks, values)."""
    if not dist.is_initialized():
        return values[None]
    parts = [torch.empty_like(values) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, values)
    return torch.stack(parts)
