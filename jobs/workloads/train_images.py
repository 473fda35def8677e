"""Training of a residual network on JPEG images: data parallel by DDP, SGD with momentum, real decoding.

The record of a run is that of a language model (jobs.runtime.recorder), with images in place of tokens. Ranks read
without end, so all make the same number of steps; after a restart they continue with other images than without one.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from jobs import metrics as m
from jobs.data.batches import Work
from jobs.engines.native.loss_scale import LossScale
from jobs.errors import CheckpointError, ConfigError, DataError, SuiteError
from jobs.images.make import refuse_full, write_shard
from jobs.images.shards import Part, parts_of, shards_of
from jobs.layout import accumulation, layout_of
from jobs.lease import Lease
from jobs.plan.cost import checkpoint_bytes
from jobs.ranks import Rank
from jobs.rundir import RunDir
from jobs.runtime.checkpoint_directory import (
    Saved,
    group_of_files,
    keep_newest,
    newest_readable,
    save_archive,
    size_bytes,
    together,
    written_aside,
)
from jobs.runtime.checkpoint_pickles import MALFORMED, load_weights
from jobs.runtime.exchange import gather
from jobs.runtime.gpu import refuse_unusable_gpu
from jobs.runtime.machine import StopRequest, process_start
from jobs.runtime.pace import Pace
from jobs.runtime.process_group import join, largest_of_ranks, on_host, synchronize
from jobs.runtime.recorder import Recorder
from jobs.runtime.startup import Startup, reads_bytes
from jobs.runtime.steps import learning_rate
from jobs.runtime.watchdog import Watchdog
from jobs.schema import Precision, Run

STATE = "state.pt"


def train_images(run: Run, lease: Lease, rank: Rank) -> None:
    """Train one run to its end, or stop at a step boundary after a signal.

    Raise DataError for images that cannot be used, and SupersededError on all ranks, at a step boundary, if another
    start takes the run over.
    """
    assert run.images is not None
    assert run.job.steps is not None
    steps, directory = run.job.steps, lease.run
    stop = StopRequest()
    watchdog = Watchdog(lease, rank, run.engine.hang_timeout_s)
    startup = Startup(process_start(), watchdog, reads_bytes(run))
    startup.begins(m.STARTUP_RENDEZVOUS_TIME)
    refuse_unusable_gpu(run, rank)
    device = join(run, lease, rank)
    startup.begins(m.STARTUP_DATA_TIME)
    parts = images_of(run, directory, rank, watchdog)
    startup.begins(m.STARTUP_MODEL_TIME)
    trainer = Trainer(run, device, steps)
    startup.begins(m.STARTUP_CHECKPOINT_TIME)
    saver = Saver(run, lease, trainer, watchdog)
    done = newest_readable(directory, saver.load)
    startup.begins(m.STARTUP_OTHER_TIME)
    pace = Pace(list(trainer.network.stages), layout_of(run), device, every=run.engine.pace_every_steps)
    recorder = Recorder(run, lease, rank, startup=startup, steps=steps, from_step=done)
    source = run.images.path or f"{run.images.count:,} random images"
    recorder.started(device, f"JPEG images in {len({part.file for part in parts}):,} shards: {source}.")
    work = Work(samples=run.global_batch_size)
    stopping = 0
    ready = ready_batches(run, parts, rank, done, device)
    with recorder.progress():
        for step in range(done + 1, steps + 1):
            watchdog.begins(f"in step {step}")
            synchronize(device)
            fence = time.perf_counter()
            batch = pace.batch(ready)
            loss, norm, rate = trainer.step(step, batch)
            synchronize(device)
            step_time_s, memory, stopping = recorder.agreed(time.perf_counter() - fence, stop.signal, device)
            (waited_s,) = largest_of_ranks([pace.batch_time_s], device)
            save_time_s, last = None, bool(stopping) or step == steps
            if saver.is_due(step, last=last):
                save_time_s = saver.save(step)
            recorder.step(
                step, loss=loss, rate=rate, norm=norm, step_time_s=step_time_s, batch=work, memory=memory,
                save_time_s=save_time_s, further={m.DATA_WAIT_TIME: waited_s, **trainer.numbers()},
            )  # fmt: skip
            if step == done + 1:
                recorder.layout(step, trainer.parameters, None, trainer.parameters)
            recorder.pace(step, pace.step(measured=recorder.is_steady(step)))
            recorder.checkpoints(saver.ended())
            if last:
                break
    watchdog.begins("finishing")
    if recorder.last_step < steps:
        recorder.stopped(stopping)
    else:
        recorder.finished()
        if rank.is_first:
            shutil.rmtree(directory.images, ignore_errors=True)
    watchdog.stop()
    dist.destroy_process_group()


def images_of(run: Run, directory: RunDir, rank: Rank, watchdog: Watchdog) -> list[Part]:
    """Return the parts of the images, at least one a reader; make them first where the run has no path.

    Every rank calls it, and raises the error of any rank.
    """
    images = run.images
    assert images is not None
    parts: list[Part] = []
    refusal = None
    try:
        if images.path is None:
            directory.images.mkdir(exist_ok=True)
            if rank.is_first:
                refuse_full(directory.images, images.count, images.mean_kb)
            for number in range(rank.rank, images.shards, run.ranks):
                watchdog.begins(f"making shard {number} of the images", 1000 * images.mean_kb * images.count)
                write_shard(
                    directory.images, number, count=images.count, shards=images.shards, mean_kb=images.mean_kb,
                    classes=images.classes, seed=run.job.seed,
                )  # fmt: skip
            dist.barrier()
        shards = shards_of(Path(images.path) if images.path else directory.images)
        parts = parts_of(shards, run.ranks * max(1, images.workers))
    except SuiteError as error:
        refusal = str(error)
    refusals = [each for each in gather(refusal) if each is not None]
    if refusals:
        raise DataError(refusals[0])
    counts = gather(len(parts))
    if len(set(counts)) > 1:
        raise ConfigError(f"The ranks see different numbers of shards ({counts}) in {images.path or directory.images}.")
    return parts


def ready_batches(
    run: Run, parts: list[Part], rank: Rank, done: int, device: torch.device
) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Return the micro-batches of each step of this rank; after a restart other images than those of the start."""
    # Here, since Pillow is needed by the ranks of such runs only.
    try:
        from jobs.images.loader import Images, batches
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"job={run.job.name} decodes JPEG files by Pillow, and the nodes' Python has no {error.name}. Run pip install "
            "--editable '.[train,images]' in the checkout, or set a container or cluster.python that has it."
        ) from error
    assert run.images is not None
    images = Images(run.images, parts, rank=rank.rank, ranks=run.ranks, seed=run.job.seed + done)
    return batches(images, run.job.micro_batch_size, accumulation(run), pinned=device.type == "cuda")


class Trainer:
    """Network and optimizer of one rank."""

    def __init__(self, run: Run, device: torch.device, steps: int) -> None:
        from jobs.images.resnet import ResNet

        assert run.images is not None
        self.run, self.images, self.device, self.steps = run, run.images, device, steps
        torch.manual_seed(run.job.seed)
        network = ResNet(run.images.network, run.images.classes).to(device)
        if run.images.channels_last:
            network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch has it
        self.network = network
        # Each rank normalizes by its own images; the first one's running means are saved.
        self.model: nn.Module = network
        if run.ranks > 1:
            self.model = DistributedDataParallel(
                network, broadcast_buffers=False, gradient_as_bucket_view=True,
                **({} if run.parallelism.bucket_mb is None else {"bucket_cap_mb": run.parallelism.bucket_mb}),
            )  # fmt: skip
        weights = list(network.parameters())
        self.parameters = sum(weight.numel() for weight in weights)
        # Neither normalization nor biases decay.
        groups = [
            {"params": [each for each in weights if each.ndim > 1], "weight_decay": run.job.weight_decay},
            {"params": [each for each in weights if each.ndim == 1], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.SGD(groups, lr=run.job.learning_rate, momentum=run.images.momentum)
        self.criterion = nn.CrossEntropyLoss(label_smoothing=run.images.label_smoothing)
        self.loss_scale = LossScale() if run.job.precision is Precision.float16 else None

    def step(self, step: int, batch: list[tuple[Tensor, Tensor]]) -> tuple[float, float, float]:
        """Run one update; return the mean loss of the global batch before it, the gradient norm and the rate."""
        from jobs.images.loader import normalised

        job, scale = self.run.job, self.loss_scale.value if self.loss_scale else 1.0
        total = torch.zeros((), device=self.device)
        narrow = None if job.precision is Precision.float32 else getattr(torch, job.precision.name)
        for number, (pixels, labels) in enumerate(batch, 1):
            waits = isinstance(self.model, DistributedDataParallel) and number < len(batch)
            with self.model.no_sync() if waits else nullcontext():  # type: ignore[operator]  # DDP has it
                with torch.autocast(self.device.type, narrow) if narrow else nullcontext():
                    logits = self.model(normalised(pixels, self.device, channels_last=self.images.channels_last))
                    loss = self.criterion(logits.float(), labels.to(self.device, non_blocking=True)) / len(batch)
                (loss * scale).backward()
            total += loss.detach()
        weights = list(self.network.parameters())
        norm = nn.utils.get_total_norm([each.grad for each in weights if each.grad is not None]) / scale
        factor = 1 / scale
        if job.clip_norm is not None:
            factor *= min(1.0, job.clip_norm / (float(norm) + 1e-6))
        if factor != 1:
            torch._foreach_mul_([each.grad for each in weights if each.grad is not None], factor)
        rate = learning_rate(job, step - (self.loss_scale.skipped if self.loss_scale else 0), self.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        if self.loss_scale is None or not self.loss_scale.overflows(norm):
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        dist.all_reduce(total)
        loss_sum, norm_found = on_host(total, norm)
        return loss_sum / self.run.ranks, norm_found, rate

    def numbers(self) -> dict[m.Metric, float]:
        """Return the loss scale and the skipped updates of float16."""
        return {} if self.loss_scale is None else self.loss_scale.numbers()


class Saver:
    """Write checkpoints of the first rank in the foreground, and load them on every rank."""

    def __init__(self, run: Run, lease: Lease, trainer: Trainer, watchdog: Watchdog) -> None:
        self.job, self.lease, self.trainer, self.watchdog = run.job, lease, trainer, watchdog
        self.size_bytes = checkpoint_bytes(run)
        self.group = group_of_files(run, self.size_bytes) if run.job.checkpoint_every_steps is not None else None
        self.outcomes: list[Saved] = []

    def is_due(self, step: int, *, last: bool) -> bool:
        """Return whether a checkpoint follows this step."""
        every = self.job.checkpoint_every_steps
        return every is not None and (last or step % every == 0)

    def save(self, step: int) -> float:
        """Write the state after a step; return the seconds it took. Every rank calls it."""
        self.watchdog.begins(f"writing the checkpoint of step {step}", self.size_bytes)
        fence, first = time.perf_counter(), dist.get_rank() == 0
        final = self.lease.run.checkpoints / f"step-{step:08d}"
        try:
            with written_aside(final, self.lease, self.group) as writing:
                together((lambda: save_archive(self.state(step), writing / STATE)) if first else None, self.group)
        except CheckpointError as error:
            self.outcomes.append(Saved(step, error=str(error)))
        else:
            if first:
                keep_newest(self.lease.run.checkpoints, self.job.keep_checkpoints)
            self.outcomes.append(Saved(step, time.perf_counter() - fence, size_bytes(final) if first else 0))
        return time.perf_counter() - fence

    def state(self, step: int) -> dict[str, object]:
        """Return the state of the run after a step."""
        scale = self.trainer.loss_scale
        return {
            "model": self.trainer.network.state_dict(),
            "optimizer": self.trainer.optimizer.state_dict(),
            "loss_scale": scale.state if scale else None,
            "step": step,
        }

    def load(self, path: Path) -> int:
        """Restore the state and return the step of the checkpoint. Raise CheckpointError."""
        try:
            state = load_weights(path / STATE)
            self.trainer.network.load_state_dict(state["model"])
            self.trainer.optimizer.load_state_dict(state["optimizer"])
            if self.trainer.loss_scale is not None and state["loss_scale"] is not None:
                self.trainer.loss_scale.state.copy_(state["loss_scale"])
            return int(state["step"])
        except (OSError, RuntimeError, *MALFORMED) as error:
            raise CheckpointError(f"Checkpoint {path} cannot be read: {error}.") from error

    def ended(self) -> list[Saved]:
        """Return the results of checkpoints since the last call."""
        outcomes, self.outcomes = self.outcomes, []
        return outcomes
