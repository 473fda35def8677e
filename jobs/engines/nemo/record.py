"""The record of a NeMo run: a callback that times and records steps, saves checkpoints and stops the run."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import nemo.lightning as nl
import torch
from torch import Tensor
from typing_extensions import override

from jobs.data import Dataset
from jobs.engines.nemo import checkpoint
from jobs.engines.nemo.data import MicroBatches
from jobs.errors import CheckpointError
from jobs.failure_causes import STOPS
from jobs.layout import layout_of
from jobs.lease import Lease
from jobs.plan.cost import checkpoint_bytes, weights_bytes
from jobs.ranks import Rank
from jobs.runtime.checkpoints.directory import Saved, loaded, size_bytes, take_over
from jobs.runtime.divergence import refuse_not_finite
from jobs.runtime.learning_rate import learning_rate
from jobs.runtime.machine import StopRequest
from jobs.runtime.process_group import largest_of_ranks, synchronize
from jobs.runtime.recorder import Recorder
from jobs.runtime.watchdog import Watchdog
from jobs.schema import Run


class Record(pl.Callback):
    """A callback of Lightning; methods in the order of their calls."""

    def __init__(
        self,
        *,
        run: Run,
        lease: Lease,
        rank: Rank,
        data: MicroBatches,
        dataset: Dataset,
        recorder: Recorder,
        stop: StopRequest,
        watchdog: Watchdog,
    ) -> None:
        self.run = run
        self.lease = lease
        self.rank = rank
        self.data = data
        self.dataset = dataset
        self.recorder = recorder
        self.stop = stop
        self.watchdog = watchdog
        self.fence = 0.0
        self.stopping = 0

    @override
    def on_fit_start(self, trainer: nl.Trainer, pl_module: pl.LightningModule) -> None:
        """Take the run over, load the checkpoint to continue from, and record the end of start-up."""
        self.device = trainer.strategy.root_device
        take_over(self.lease, self.rank)
        if self.recorder.from_step:
            path = self.checkpoint(self.recorder.from_step)
            try:
                loaded(path, partial(self.restored, trainer.strategy), partial(self.weights, trainer.strategy))
            except CheckpointError as error:
                raise CheckpointError(f"{error} Remove that directory to resume from the one before it.") from error
        self.recorder.started(self.device, self.dataset.description)
        held = sum(
            parameter.numel() for model in checkpoint.models(trainer.strategy) for parameter in model.parameters()
        )
        (most,) = largest_of_ranks([float(held)], self.device)
        self.recorder.layout(self.recorder.from_step + 1, int(most), None)
        if self.recorder.from_step == self.recorder.steps:
            self.close(trainer.strategy)

    @override
    def on_train_start(self, trainer: nl.Trainer, pl_module: pl.LightningModule) -> None:
        """Restore our signal handlers: Lightning's end one rank inside its step."""
        for number in STOPS:
            signal.signal(number, self.stop.ask)

    @override
    def on_train_batch_start(
        self, trainer: nl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Set the learning rate and start the clock; the step lasts until `on_train_batch_end`."""
        step = self.recorder.last_step + 1
        rate = learning_rate(self.run.job, step, self.recorder.steps)
        (optimizer,) = trainer.strategy.optimizers
        for group in optimizer.param_groups:
            group["lr"] = rate
        self.rate = rate
        # Seed adapters' dropout by the step, so that a resumed run equals an uninterrupted one. Ranks of a TP group
        # draw the same numbers, data-parallel ranks different ones.
        layout = layout_of(self.run)
        torch.manual_seed((self.run.job.seed << 32) + step * layout.dp + layout.dp_rank(self.rank.rank))
        self.watchdog.begins(f"in step {step}")
        synchronize(self.device)
        self.fence = time.perf_counter()

    @override
    def on_train_batch_end(
        self, trainer: nl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Record the step; save and stop if due, all ranks together."""
        synchronize(self.device)
        seconds = time.perf_counter() - self.fence
        step, last = self.recorder.last_step + 1, self.recorder.steps

        logged = trainer.callback_metrics
        loss, norm = float(logged["reduced_train_loss"]), float(logged["grad_norm"])
        step_time_s, memory, self.stopping = self.recorder.agreed(
            seconds, self.stop.signal, self.device, loss=loss, norm=norm
        )
        save_time_s = None
        every = self.run.job.checkpoint_every_steps
        due = every is not None and (step % every == 0 or step == last or bool(self.stopping))
        if due or step == last:
            refuse_not_finite(step, self.weights(trainer.strategy))
        if due:
            self.watchdog.begins(f"writing the checkpoint of step {step}", checkpoint_bytes(self.run))
            save_time_s = self.saved(step, trainer.strategy)
        assert self.data.current is not None
        self.recorder.step(
            step,
            loss=loss,
            rate=self.rate,
            norm=norm,
            step_time_s=step_time_s,
            batch=self.data.current,
            memory=memory,
            save_time_s=save_time_s,
        )
        trainer.should_stop = bool(self.stopping)

    @override
    def on_train_end(self, trainer: nl.Trainer, pl_module: pl.LightningModule) -> None:
        """Export and record the end while the ranks still hold the model."""
        self.watchdog.begins("finishing")
        self.close(trainer.strategy)

    def close(self, strategy: nl.MegatronStrategy) -> None:
        """Export the weights if configured, and record the end."""
        if self.recorder.last_step < self.recorder.steps:
            self.recorder.stopped(self.stopping)
            return
        if self.run.job.export:
            self.watchdog.begins("writing the export", 3 * weights_bytes(self.run))
            checkpoint.export(self.run, self.lease, strategy, self.dataset.tokenizer_files)
        self.recorder.finished()

    def restored(self, strategy: nl.MegatronStrategy, path: Path) -> int:
        """Load a checkpoint and return its step; every rank calls it."""
        checkpoint.load(self.run, path, strategy)
        return self.recorder.from_step

    def weights(self, strategy: nl.MegatronStrategy) -> Iterator[Tensor]:
        """Yield this rank's weights."""
        for model in checkpoint.models(strategy):
            yield from model.parameters()

    def checkpoint(self, step: int) -> Path:
        """Return the directory of the checkpoint after a step."""
        return self.lease.run.checkpoints / f"step-{step:08d}"

    def saved(self, step: int, strategy: nl.MegatronStrategy) -> float:
        """Save a checkpoint and return the seconds it took on the slowest rank."""
        fence = time.perf_counter()
        path = self.checkpoint(step)
        try:
            checkpoint.save(self.run, path, self.lease, strategy)
            error = None
        except CheckpointError as failure:
            error = str(failure)
        (held_s,) = largest_of_ranks([time.perf_counter() - fence], self.device)
        if self.recorder.writes:
            self.recorder.checkpoints([Saved(step, held_s, 0 if error else size_bytes(path), error)])
        return held_s
