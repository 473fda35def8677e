"""Training of a residual network on JPEG images: data parallel by DDP, SGD with momentum, real decoding.

The record of a run is that of a language model (jobs.runtime.recorder), with images in place of tokens. Ranks read
without end, so all make the same number of steps; after a restart they continue with other images than without one.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import torch.distributed as dist

from jobs import metrics as m
from jobs.data.batches import Work
from jobs.errors import DataError
from jobs.images.loader import Images, batches
from jobs.images.make import refuse_full, write_shard
from jobs.images.shards import Part, parts_of, shards_of
from jobs.images.trainer import Saver, Trainer
from jobs.layout import accumulation, layout_of
from jobs.lease import Lease
from jobs.output import own_directory
from jobs.ranks import Rank
from jobs.rundir import RunDir
from jobs.runtime.checkpoint_directory import newest_readable
from jobs.runtime.exchange import gather
from jobs.runtime.gpu import refuse_unusable_gpu
from jobs.runtime.machine import StopRequest, process_start
from jobs.runtime.pace import Pace
from jobs.runtime.process_group import join, largest_of_ranks, synchronize
from jobs.runtime.recorder import Recorder
from jobs.runtime.startup import Startup, reads_bytes
from jobs.runtime.watchdog import Watchdog
from jobs.schema import Run


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
    parts = parts_of_run(run, directory, rank, watchdog)
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
    # After a restart other images than those of the start.
    images = Images(run.images, parts, rank=rank.rank, ranks=run.ranks, seed=run.job.seed + done)
    ready = batches(images, run.job.micro_batch_size, accumulation(run), pinned=device.type == "cuda")
    work, stopping = Work(samples=run.global_batch_size), 0
    # Closed, it ends its workers.
    with recorder.progress(), closing(ready):
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
    end(recorder, stopping)
    watchdog.stop()
    dist.destroy_process_group()


def end(recorder: Recorder, stopping: int) -> None:
    """Record the end of the attempt; after the last step remove the images that the run made."""
    if recorder.last_step < recorder.steps:
        recorder.stopped(stopping)
        return
    recorder.finished()
    if recorder.writes:
        shutil.rmtree(recorder.directory.images, ignore_errors=True)


def parts_of_run(run: Run, directory: RunDir, rank: Rank, watchdog: Watchdog) -> list[Part]:
    """Return the parts of the images, at least one a reader; make the images first where the run has no path.

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
    counts = gather(len(parts))
    if len(set(counts)) > 1:
        raise DataError(f"The ranks see {min(counts)} to {max(counts)} shards in {where}. Set a path that all share.")
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
