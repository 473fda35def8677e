"""A residual network on JPEG images: data parallel by DDP, SGD with momentum, validation, and checkpoints.

Its loop and record are those of a language model (jobs.work.train.loop), with images in place of tokens. Ranks read
without end, so all make the same number of steps; a restart continues with the images that would have followed.
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from jobs import metrics as m
from jobs.engines.native.loss_scale import LossScale
from jobs.engines.trainer import Saves, Trains
from jobs.errors import CheckpointError
from jobs.files import read_object
from jobs.layout import layout_of
from jobs.lease import Lease
from jobs.metrics import Metric, StoragePhase
from jobs.plan.cost import checkpoint_bytes
from jobs.ranks import Rank
from jobs.runtime import storage_io
from jobs.runtime.checkpoints.directory import (
    Saved,
    group_of_files,
    keep_newest,
    save_archive,
    size_bytes,
    together,
    write_sums,
    written_aside,
)
from jobs.runtime.checkpoints.pickles import MALFORMED, load_weights
from jobs.runtime.divergence import DivergedError, is_finite
from jobs.runtime.learning_rate import learning_rate
from jobs.runtime.pace import Pace
from jobs.runtime.process_group import largest_of_ranks, on_host
from jobs.runtime.recorder import Recorder
from jobs.runtime.watchdog import Watchdog
from jobs.schema import Precision, Run
from jobs.work.images.decoding import Batch
from jobs.work.images.jpegs import Jpegs
from jobs.work.images.loader import StepImages, loaded
from jobs.work.images.resnet import ResNet
from jobs.work.train import loop

STATE = "state.pt"
MOST_GUESSES = 5
"""Guesses of top-5 accuracy: the label must be among them."""
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and deviation of ImageNet's channels, in shares of 255 (https://docs.pytorch.org/vision/stable/models.html)."""


def train(run: Run, lease: Lease, rank: Rank) -> None:
    """Train one run to its end, or stop at a step boundary after a signal.

    Raise DataError for images that cannot be used, and SupersededError on all ranks, at a step boundary, if another
    start takes the run over.
    """
    loop.train(run, lease, rank, Jpegs, Trainer)


class Trainer(Trains):
    """Network and optimizer of one rank."""

    shows_collectives = False  # those of DDP

    def __init__(self, run: Run, device: torch.device, data: Jpegs, begins: Callable[[Metric], None]) -> None:
        begins(m.STARTUP_MODEL_TIME)
        assert run.images is not None
        self.run, self.images, self.device, self.data = run, run.images, device, data
        torch.manual_seed(run.job.seed)
        network = ResNet(run.images.network, run.images.classes).to(device)
        if run.images.channels_last:
            network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch has it
        self.network = network
        # Each rank normalizes by its own images; the first one's running means are saved.
        self.model: nn.Module = network
        if run.ranks > 1:
            self.model = DistributedDataParallel(
                # Gradients as views of DDP's buckets: one copy of them less in memory.
                network, broadcast_buffers=False, gradient_as_bucket_view=True,
                bucket_cap_mb=run.parallelism.bucket_mb,
            )  # fmt: skip
        weights = list(network.parameters())
        # Neither normalization nor biases decay.
        groups = [
            {"params": [each for each in weights if each.ndim > 1], "weight_decay": run.job.weight_decay},
            {"params": [each for each in weights if each.ndim == 1], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.SGD(groups, lr=run.job.learning_rate, momentum=run.images.momentum)
        # Made once: each would otherwise be a copy to the GPU in every micro-batch.
        self.mean, self.deviation = (255 * torch.tensor(values, device=device) for values in (MEAN, DEVIATION))
        self.criterion = nn.CrossEntropyLoss(label_smoothing=run.images.label_smoothing)
        self.loss_scale = LossScale() if run.job.precision is Precision.float16 else None
        self.pace = Pace(list(network.stages), layout_of(run), device, every=run.engine.pace_every_steps)

    def step(self, step: int, batch: StepImages) -> tuple[float, float | None, float]:
        """Run one update; return the mean loss of the global batch before it, the gradient norm and the rate.

        `batch` has the micro-batches of this rank: pixels (mbs, size, size, 3) in bytes and labels (mbs). No norm is
        returned if the gradients overflowed float16, so that the update was skipped.
        """
        job, scale = self.run.job, self.loss_scale.value if self.loss_scale else 1.0
        total, micro_batches = torch.zeros((), device=self.device), batch.micro_batches
        for number, (pixels, labels, _) in enumerate(micro_batches, 1):
            # DDP reduces in the backward pass of the last micro-batch; before, the ranks add up on their own.
            waits = isinstance(self.model, DistributedDataParallel) and number < len(micro_batches)
            with self.model.no_sync() if waits else nullcontext():  # type: ignore[operator]  # DDP has it
                with self.arithmetic():
                    logits = self.model(self.normalised(pixels))
                    # Softmax in float32. The mean over micro-batches and, by DDP, over ranks is that of the global
                    # batch: all are of one size.
                    loss = self.criterion(logits.float(), labels.to(self.device, non_blocking=True))
                    loss = loss / len(micro_batches)
                (loss * scale).backward()
            total += loss.detach()
        gradients = [each.grad for each in self.network.parameters() if each.grad is not None]
        norm = nn.utils.get_total_norm(gradients) / scale
        if job.clip_norm is not None or scale != 1:
            # As torch's clip_grad_norm_; unscaling and clipping are one pass over the gradients, on the device.
            limit = torch.inf if job.clip_norm is None else job.clip_norm
            torch._foreach_mul_(gradients, (limit / (norm + 1e-6)).clamp(max=1.0) / scale)
        rate = learning_rate(job, step - (self.loss_scale.skipped if self.loss_scale else 0), self.data.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        skipped = self.loss_scale is not None and self.loss_scale.overflows(norm)
        if not skipped:
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        dist.all_reduce(total)
        loss_sum, norm_found = on_host(total, norm)
        return loss_sum / self.run.ranks, None if skipped else norm_found, rate

    def weights(self) -> Iterable[Tensor]:
        """Return the weights and the running means of normalization."""
        return self.network.state_dict().values()

    def arithmetic(self) -> AbstractContextManager[object]:
        """Return a context that multiplies in the precision of the run."""
        precision = self.run.job.precision
        if precision is Precision.float32:
            return nullcontext()
        return torch.autocast(self.device.type, getattr(torch, precision.name))

    def validate(self, step: int, recorder: Recorder, watchdog: Watchdog, *, last: bool = False) -> None:
        """Record loss and accuracy on the held-out images if they are due after a step; every rank calls it.

        Raise DivergedError if the loss is not finite.
        """
        held_out, every_steps = self.data.held_out, self.images.validate_every_steps
        due = last or (every_steps is not None and step % every_steps == 0)
        if held_out is None or not due:
            return
        size_bytes = sum(file.stat().st_size for file in {part.file for part in held_out.parts})
        watchdog.begins(f"validating after step {step}", size_bytes)
        recorder.node_load(step)
        storage_io.begin(StoragePhase.validate)
        fence = time.perf_counter()
        with closing(loaded(held_out, self.device)) as batches:
            values = self.loss_and_accuracy(batches)
        (values[m.EVALUATION_TIME],) = largest_of_ranks([time.perf_counter() - fence], self.device)
        storage_io.begin(StoragePhase.train)
        # The times of the layers are those of steps.
        self.pace.clock.read()
        if not is_finite(values[m.EVALUATION_LOSS]):
            raise DivergedError(step, f"the loss on the held-out images is {values[m.EVALUATION_LOSS]}")
        recorder.evaluated(step, values)

    def loss_and_accuracy(self, batches: Iterable[Batch]) -> dict[Metric, float]:
        """Return the loss and accuracy on this rank's micro-batches and those of all others; every rank calls it.

        Ranks may have different numbers of micro-batches. The running means of normalization are the first rank's, as
        in a checkpoint.
        """
        # Each rank has running means of its own: with different ones the sum below would be that of no single model.
        for buffer in self.network.buffers():
            dist.broadcast(buffer, 0)
        self.network.eval()
        # Images, loss, labels among the first class and among the first five.
        sums = torch.zeros(4, dtype=torch.float64, device=self.device)
        with torch.no_grad():
            for pixels, on_host_labels, _ in batches:
                labels = on_host_labels.to(self.device, non_blocking=True)
                with self.arithmetic():
                    logits = self.network(self.normalised(pixels))
                logits = logits.float()
                # (N, 5): guesses are in order, so the first column is top-1 and a row has one hit at most.
                right = logits.topk(min(MOST_GUESSES, self.images.classes)).indices == labels[:, None]
                loss = nn.functional.cross_entropy(logits, labels, reduction="sum")
                sums += torch.stack([torch.ones_like(labels).sum(), loss, right[:, :1].sum(), right.sum()])
        self.network.train()
        dist.all_reduce(sums)
        count, loss_sum, first, any_of_five = sums.tolist()
        return {
            m.EVALUATION_LOSS: loss_sum / count,
            m.EVALUATION_TOP1: first / count,
            m.EVALUATION_TOP5: any_of_five / count,
            m.EVALUATION_SAMPLES: count,
        }

    def normalised(self, pixels: Tensor) -> Tensor:
        """Return bytes (N, H, W, 3) as float32 (N, 3, H, W) on the device with ImageNet's mean and deviation."""
        images = pixels.to(self.device, non_blocking=True).float()
        images = ((images - self.mean) / self.deviation).permute(0, 3, 1, 2)
        # Permuted, the channels of a pixel lie together already.
        return images if self.images.channels_last else images.contiguous()

    def numbers(self) -> dict[Metric, float]:
        """Return the longest wait of a rank for images, and the loss scale and the skipped updates of float16."""
        (waited_s,) = largest_of_ranks([self.pace.batch_time_s], self.device)
        return {m.DATA_WAIT_TIME: waited_s, **({} if self.loss_scale is None else self.loss_scale.numbers())}

    def parameters_held(self) -> int:
        """Return the number of weights: every rank has all."""
        return sum(weight.numel() for weight in self.network.parameters())

    def parameters_trained(self) -> int:
        """Return the number of weights."""
        return self.parameters_held()

    def saver(self, lease: Lease, watchdog: Watchdog) -> Saver:
        """Return the writer and reader of checkpoints."""
        return Saver(self.run, lease, self, watchdog)


class Saver(Saves):
    """Write checkpoints in the foreground, the state by the first rank and its images' order by each; load them."""

    def __init__(self, run: Run, lease: Lease, trainer: Trainer, watchdog: Watchdog) -> None:
        self.job, self.lease, self.trainer, self.watchdog = run.job, lease, trainer, watchdog
        self.images, self.order = trainer.data.images, f"order-{dist.get_rank():05d}.json"
        self.size_bytes = checkpoint_bytes(run)
        self.group = group_of_files(run, self.size_bytes) if run.job.checkpoint_every_steps is not None else None
        self.outcomes: list[Saved] = []
        self.sums: dict[str, int] = {}
        """The sums of this rank's files of the latest checkpoint (checkpoint_sums)."""

    def save(self, step: int, *, last: bool) -> None:  # noqa: ARG002 (the native engine writes others in the background)
        """Write the state after a step; every rank calls it."""
        self.watchdog.begins(f"writing the checkpoint of step {step}", self.size_bytes)
        fence, first = time.perf_counter(), dist.get_rank() == 0
        final = self.lease.run.checkpoints / f"step-{step:08d}"
        try:
            with written_aside(final, self.lease, self.group) as writing:
                together(lambda: self.write(step, writing, first=first), self.group)
                write_sums(writing, self.sums, self.group)
        except CheckpointError as error:
            self.outcomes.append(Saved(step, error=str(error)))
        else:
            if first:
                keep_newest(self.lease.run.checkpoints, self.job.keep_checkpoints)
            self.outcomes.append(Saved(step, time.perf_counter() - fence, size_bytes(final) if first else 0))

    def write(self, step: int, directory: Path, *, first: bool) -> None:
        """Write this rank's files, and keep their sums."""
        order = json.dumps(self.images.state()).encode()
        (directory / self.order).write_bytes(order)
        self.sums = {self.order: zlib.crc32(order)}
        if first:
            self.sums[STATE] = save_archive(self.state(step), directory / STATE)

    def state(self, step: int) -> dict[str, object]:
        """Return the state of the run after a step."""
        scale = self.trainer.loss_scale
        return {
            "model": self.trainer.network.state_dict(),
            "optimizer": self.trainer.optimizer.state_dict(),
            "scaler": scale.state if scale else None,
            "step": step,
        }

    def load(self, path: Path) -> int:
        """Restore the state and return the step of the checkpoint. Raise CheckpointError."""
        try:
            state = load_weights(path / STATE)
            self.trainer.network.load_state_dict(state["model"])
            self.trainer.optimizer.load_state_dict(state["optimizer"])
            if self.trainer.loss_scale is not None and state["scaler"] is not None:
                self.trainer.loss_scale.state.copy_(state["scaler"])
            order, step = path / self.order, int(state["step"])
            self.images.continue_from(read_object(order) if order.is_file() else {}, step)
        except (OSError, RuntimeError, *MALFORMED) as error:
            raise CheckpointError(f"Checkpoint {path} cannot be read: {error}.") from error
        return step

    def ended(self) -> list[Saved]:
        """Return the results of checkpoints since the last call."""
        outcomes, self.outcomes = self.outcomes, []
        return outcomes
