"""Training: from an empty process to the recorded end, on one page for every model and parallelism.

`step` of a trainer is the arithmetic of a step, and the two fences in `train` define its time. Rank 0 writes
metrics.jsonl and status.jsonl. The data, the trainer and its checkpoints are protocols (jobs.engines.trainer): the
native engine and DeepSpeed train language models in this loop, jobs.work.images.trainer an image classifier.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial

import torch
import torch.distributed as dist

from jobs import metrics as m
from jobs.engines.native.traffic import Traffic
from jobs.engines.trainer import Data, DataOf, Saves, TrainerOf, Trains
from jobs.layout import layout_of
from jobs.lease import Lease
from jobs.plan.cost import checkpoint_bytes
from jobs.ranks import Rank
from jobs.rundir import RunDir
from jobs.runtime.checkpoints.directory import newest_readable
from jobs.runtime.divergence import DivergedError, refuse_not_finite
from jobs.runtime.garbage import collected_between
from jobs.runtime.gpus.gpu import prepare_gpu
from jobs.runtime.machine import StopRequest, process_start
from jobs.runtime.process_group import join, largest_of_ranks, synchronize
from jobs.runtime.profiling.profiler import StepProfiler
from jobs.runtime.recorder import Recorder
from jobs.runtime.startup import Startup, reads_bytes
from jobs.runtime.watchdog import Watchdog
from jobs.schema import Job, Run


def train(
    run: Run,
    lease: Lease,
    rank: Rank,
    data_of: Callable[[Run, Rank, RunDir, Startup], DataOf],
    trainer_of: TrainerOf[DataOf],
) -> None:
    """Train one run to its end, or stop at a step boundary after a signal.

    Raise SupersededError on all ranks, at a step boundary, if another start takes the run over.
    """
    stop, directory = StopRequest(), lease.run
    watchdog = Watchdog(lease, rank, run.engine.hang_timeout_s, run.engine.startup_limit_s)
    startup = Startup(process_start(), watchdog, reads_bytes(run))

    # --- device -----------------------------------------------------------------------------------------------
    startup.begins(m.STARTUP_RENDEZVOUS_TIME)
    prepare_gpu(run, rank)
    device = join(run, lease, rank)

    # --- data -------------------------------------------------------------------------------------------------
    startup.begins(m.STARTUP_DATA_TIME)
    data = data_of(run, rank, directory, startup)

    # --- model and optimizer ----------------------------------------------------------------------------------
    trainer, steps = trainer_of(run, device, data, startup.begins), data.steps

    # --- resume -----------------------------------------------------------------------------------------------
    startup.begins(m.STARTUP_CHECKPOINT_TIME)
    saver = trainer.saver(lease, watchdog)
    done = newest_readable(directory, saver.load, trainer.weights, saver.copies)
    startup.begins(m.STARTUP_OTHER_TIME)
    recorder = Recorder(run, lease, rank, startup=startup, steps=steps, from_step=done)
    recorder.started(device, data.description(), saver.loaded(), **trainer.facts)

    # --- loop -------------------------------------------------------------------------------------------------
    # Counting collectives slows a step down, so it happens in a step that steady values exclude.
    counted = done + min(2, run.job.unmeasured_steps)
    traffic = Traffic(layout_of(run)) if trainer.shows_collectives else None
    with (
        recorder.progress(),
        data.batches(done, device) as ready,
        StepProfiler(run, directory, rank, device, steps) as profiler,
        last_finite_checkpoint(run, saver, recorder, watchdog),
    ):
        for step in collected_between(range(done + 1, steps + 1)):
            watchdog.begins(f"in step {step}")
            # The step time is everything between the two fences: batch, forward, backward, reductions, update, loss.
            # GPU kernels run asynchronously, so both fences wait for the device.
            with profiler.step(step):
                synchronize(device)
                fence = time.perf_counter()
                batch = trainer.pace.batch(ready)
                with traffic if traffic and step == counted else nullcontext():
                    loss, norm, rate = trainer.step(step, batch)
                synchronize(device)
                seconds = time.perf_counter() - fence

            # All ranks see the same signal, so they stop after the same step. They also end together, before anything
            # is saved, if the loss or the norm is not finite.
            step_time_s, memory, stopping = recorder.agreed(seconds, stop.signal, device, loss=loss, norm=norm)

            last = bool(stopping) or step == steps
            save_time_s = saved(run.job, step, trainer, saver, device, last=last)
            recorder.step(
                step,
                loss=loss,
                rate=rate,
                norm=norm,
                step_time_s=step_time_s,
                batch=batch,
                memory=memory,
                save_time_s=save_time_s,
                further=trainer.numbers(),
            )
            if step == counted:
                recorder.layout(
                    step,
                    trainer.parameters_held(),
                    traffic.of_busiest_rank() if traffic else None,
                    trainer.parameters_trained(),
                )
            recorder.pace(step, trainer.pace.step(measured=recorder.is_steady(step)))
            recorder.profile(step, profiler.report(step))
            recorder.checkpoints(saver.ended())
            if last:
                break
            trainer.validate(step, recorder, watchdog)

    # --- end --------------------------------------------------------------------------------------------------
    if recorder.last_step == steps:
        trainer.validate(steps, recorder, watchdog, last=True)
    watchdog.begins("finishing")
    if recorder.last_step == steps:
        finish(run, data, saver, recorder)
    else:
        recorder.stopped(stopping)
    watchdog.stop()
    # DDP first: it would drop the last reference to the group, and join gloo's threads while it holds the GIL, for
    # which one of them may wait. Python's reference, which goes with the next line, releases the GIL before.
    del trainer, saver
    dist.destroy_process_group()


def finish(run: Run, data: Data, saver: Saves, recorder: Recorder) -> None:
    """Export, and record the end of a run that has done all its steps; every rank calls it."""
    if run.job.export:
        saver.export(data.tokenizer_files)
    recorder.finished()
    saver.clear()
    if recorder.writes:
        data.clear()


def saved(job: Job, step: int, trainer: Trains, saver: Saves, device: torch.device, *, last: bool) -> float | None:
    """Write a checkpoint if it is due; return the seconds that it held training up. Every rank calls it.

    Raise DivergedError on all of them if a weight that would be saved, or exported at the end, is not finite.
    """
    every = job.checkpoint_every_steps
    due = every is not None and (last or step % every == 0)
    if due or last:
        refuse_not_finite(step, trainer.weights())
    return held_up(device, partial(saver.save, step, last=last)) if due else None


@contextmanager
def last_finite_checkpoint(run: Run, saver: Saves, recorder: Recorder, watchdog: Watchdog) -> Iterator[None]:
    """Complete and record the checkpoint that is being written when the ranks end together with DivergedError."""
    try:
        yield
    except DivergedError:
        watchdog.begins("completing a checkpoint", 2 * checkpoint_bytes(run))
        saver.finish()
        recorder.checkpoints(saver.ended())
        raise


def held_up(device: torch.device, action: Callable[[], None]) -> float:
    """Run an action and return the seconds it took on the slowest rank; every rank calls it."""
    fence = time.perf_counter()
    action()
    (held_s,) = largest_of_ranks([time.perf_counter() - fence], device)
    return held_s
