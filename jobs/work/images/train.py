"""Training of a residual network on JPEG images: data parallel by DDP, SGD with momentum, real decoding.

The record of a run is that of a language model (jobs.runtime.recorder), with images in place of tokens. Ranks read
without end, so all make the same number of steps; a restart continues with the images that would have followed.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import PIL
import torch
import torch.distributed as dist

from jobs import metrics as m
from jobs.data.batches import Work
from jobs.errors import DataError
from jobs.layout import accumulation, layout_of
from jobs.lease import Lease
from jobs.metrics import StoragePhase
from jobs.output import own_directory
from jobs.ranks import Rank
from jobs.rundir import RunDir
from jobs.runtime import storage_io
from jobs.runtime.checkpoint_directory import newest_readable
from jobs.runtime.divergence import DivergedError, is_finite, refuse_not_finite
from jobs.runtime.exchange import gather
from jobs.runtime.gpu import refuse_unusable_gpu
from jobs.runtime.machine import StopRequest, process_start
from jobs.runtime.pace import Pace
from jobs.runtime.process_group import join, largest_of_ranks, synchronize
from jobs.runtime.recorder import Recorder
from jobs.runtime.startup import Startup, reads_bytes
from jobs.runtime.watchdog import Watchdog
from jobs.schema import Job, Run
from jobs.settings.images import ImageDecoder
from jobs.work.images.loader import HeldOut, Images, loaded, steps_of
from jobs.work.images.make import refuse_full, write_shard
from jobs.work.images.shards import Part, cut, parts_of, shards_of
from jobs.work.images.trainer import Saver, Trainer


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
    images = images_of_run(run, directory, rank, watchdog)
    held_out = held_out_of_run(run, rank)
    startup.begins(m.STARTUP_MODEL_TIME)
    trainer = Trainer(run, device, steps)
    startup.begins(m.STARTUP_CHECKPOINT_TIME)
    saver = Saver(run, lease, trainer, images, watchdog)
    done = newest_readable(directory, saver.load, trainer.weights)
    startup.begins(m.STARTUP_OTHER_TIME)
    pace = Pace(list(trainer.network.stages), layout_of(run), device, every=run.engine.pace_every_steps)
    recorder = Recorder(run, lease, rank, startup=startup, steps=steps, from_step=done)
    recorder.started(device, description(run, images, device, other_order=saver.other_order))
    ready = steps_of(images, accumulation(run), device)
    work, stopping = Work(samples=run.global_batch_size), 0
    validation = Validation(held_out, run.images.validate_every_steps, trainer, recorder, watchdog, pace)
    # Closed, it ends its workers.
    with recorder.progress(), closing(ready):
        for step in range(done + 1, steps + 1):
            watchdog.begins(f"in step {step}")
            # The step time is what lies between the two fences, as in jobs.work.train.loop: also the wait for images.
            synchronize(device)
            fence = time.perf_counter()
            batch = pace.batch(ready)
            loss, norm, rate = trainer.step(step, batch)
            synchronize(device)
            step_time_s, memory, stopping = recorder.agreed(
                time.perf_counter() - fence, stop.signal, device, loss=loss, norm=norm
            )
            (waited_s,) = largest_of_ranks([pace.batch_time_s], device)
            last = bool(stopping) or step == steps
            save_time_s = saved(run.job, step, trainer, saver, last=last)
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
            validation.after(step)
    end(recorder, stopping, validation)
    watchdog.stop()
    dist.destroy_process_group()


def saved(job: Job, step: int, trainer: Trainer, saver: Saver, *, last: bool) -> float | None:
    """Write a checkpoint if it is due and return the seconds it took; every rank calls it.

    Raise DivergedError on all of them if a weight is not finite.
    """
    if not job.saves_after(step, last=last):
        return None
    refuse_not_finite(step, trainer.weights())
    return saver.save(step)


def end(recorder: Recorder, stopping: int, validation: Validation) -> None:
    """Record the end of the attempt; after the last step validate, and remove the images that the run made."""
    if recorder.last_step < recorder.steps:
        recorder.stopped(stopping)
        return
    validation.after(recorder.steps, last=True)
    validation.watchdog.begins("finishing")
    recorder.finished()
    if recorder.writes:
        # After the recorded end: a run that stopped continues with the images that it made.
        shutil.rmtree(recorder.directory.images, ignore_errors=True)


@dataclass
class Validation:
    """Loss and accuracy on the held-out images between steps, if the run has some."""

    held_out: HeldOut | None
    every_steps: int | None
    trainer: Trainer
    recorder: Recorder
    watchdog: Watchdog
    pace: Pace

    def after(self, step: int, *, last: bool = False) -> None:
        """Record loss and accuracy if they are due after a step; raise DivergedError if the loss is not finite.

        Every rank calls it.
        """
        due = last or (self.every_steps is not None and step % self.every_steps == 0)
        if self.held_out is None or not due:
            return
        size_bytes = sum(file.stat().st_size for file in {part.file for part in self.held_out.parts})
        self.watchdog.begins(f"validating after step {step}", size_bytes)
        self.recorder.node_load(step)
        storage_io.begin(StoragePhase.validate)
        fence, device = time.perf_counter(), self.trainer.device
        with closing(loaded(self.held_out, device)) as batches:
            values = self.trainer.validate(batches)
        (values[m.EVALUATION_TIME],) = largest_of_ranks([time.perf_counter() - fence], device)
        storage_io.begin(StoragePhase.train)
        # The times of the layers are those of steps.
        self.pace.clock.read()
        if not is_finite(values[m.EVALUATION_LOSS]):
            raise DivergedError(step, f"the loss on the held-out images is {values[m.EVALUATION_LOSS]}")
        self.recorder.evaluated(step, values)


def description(run: Run, images: Images, device: torch.device, *, other_order: bool) -> str:
    """Return what the run reads and what decodes it, as text."""
    assert run.images is not None
    source = run.images.path or f"{run.images.count:,} random images"
    shards = len({part.file for part in images.parts})
    text = f"JPEG images in {shards:,} shards: {source}; decoded by {decoder(run, device)}."
    if other_order:
        text += (
            " After this restart other images than without it: ranks, shards, images.workers, images.shuffle or "
            "job.micro_batch_size are not those of the checkpoint."
        )
    return text


def decoder(run: Run, device: torch.device) -> str:
    """Return the name of what decodes the images of a rank."""
    assert run.images is not None
    if run.images.decoder is ImageDecoder.pillow:
        return f"Pillow {PIL.__version__} on processors"
    from jobs.work.images import dali

    return dali.name(device)


def images_of_run(run: Run, directory: RunDir, rank: Rank, watchdog: Watchdog) -> Images:
    """Return the images of a rank, in the order of a first start. Every rank calls it."""
    assert run.images is not None
    parts = parts_of_run(run, directory, rank, watchdog)
    return Images(
        run.images, parts, batch_size=run.job.micro_batch_size, rank=rank.rank, ranks=run.ranks, seed=run.job.seed
    )


def held_out_of_run(run: Run, rank: Rank) -> HeldOut | None:
    """Return the held-out images of a rank; None if images.validation_path is null. Every rank calls it."""
    images = run.images
    assert images is not None
    if images.validation_path is None:
        return None
    where, parts = Path(images.validation_path), []
    readers = run.ranks * max(1, images.workers)
    refuse_together(lambda: parts.extend(cut(shards_of(where, "images.validation_path"), readers)))
    refuse_different(parts, where)
    return HeldOut(images, parts, batch_size=run.job.micro_batch_size, rank=rank.rank, ranks=run.ranks)


def refuse_different(parts: list[Part], where: Path) -> None:
    """Raise DataError on every rank where the ranks see different numbers of parts in a directory."""
    counts = gather(len(parts))
    if len(set(counts)) > 1:
        raise DataError(f"The ranks see {min(counts)} to {max(counts)} shards in {where}. Set a path that all share.")


def parts_of_run(run: Run, directory: RunDir, rank: Rank, watchdog: Watchdog) -> list[Part]:
    """Return the parts of the images, at least one per reader; make the images first if the run has no path.

    Every rank calls it, and raises the DataError of any rank.
    """
    images = run.images
    assert images is not None
    where = Path(images.path) if images.path else directory.images
    if images.path is None:
        own_directory(where)
        refuse_together(partial(refuse_full, where, images.count, images.mean_kb))
        for number in range(rank.rank, images.shards, run.ranks):
            watchdog.begins(f"making shard {number} of the images", 1000 * images.mean_kb * images.count)
            write_shard(
                where, number, count=images.count, shards=images.shards, mean_kb=images.mean_kb,
                classes=images.classes, seed=run.job.seed,
            )  # fmt: skip
        # On a network file system a node may see the shards of another one later than that one.
        gather(None)
    parts: list[Part] = []
    refuse_together(lambda: parts.extend(parts_of(shards_of(where), run.ranks * max(1, images.workers))))
    refuse_different(parts, where)
    return parts


def refuse_together(action: Callable[[], None]) -> None:
    """Run an action and raise the first DataError of any rank on every rank, so that none waits for another."""
    refusal = None
    try:
        action()
    except DataError as error:
        refusal = str(error)
    found = [each for each in gather(refusal) if each is not None]
    if found:
        raise DataError(found[0])
