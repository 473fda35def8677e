"""Training by LitGPT's own scripts: its loop, optimizer, schedule and saving, with our arguments, samples and record.

A signal ends the run at a step boundary without a checkpoint, and the next attempt starts from step 1: LitGPT has no
request to stop. LitGPT's loss is the mean over ranks and micro-batches of their means over labels, not the mean over
the labels of the global batch; the two differ if micro-batches have unequal numbers of labels.
"""

from __future__ import annotations

import os
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from litgpt.args import TrainArgs
from litgpt.config import Config

from jobs import metrics as m
from jobs.data import open_dataset
from jobs.engines.litgpt.arguments import OUT, READ, START, Script, arguments_of, command, script_of
from jobs.engines.litgpt.data import Instructions, Text
from jobs.engines.litgpt.fabric import prepared
from jobs.engines.litgpt.record import Record, Stopped
from jobs.engines.litgpt.start import make_start
from jobs.errors import ConfigError
from jobs.layout import accumulation
from jobs.lease import Lease
from jobs.ranks import Rank, torchrun_environment
from jobs.runtime.gpus.gpu import prepare_gpu, refuse_own_gpu_only
from jobs.runtime.machine import StopRequest, process_start
from jobs.runtime.process_group import connect, own_device
from jobs.runtime.recorder import Recorder
from jobs.runtime.startup import Startup, reads_bytes
from jobs.runtime.steps import batches_of, samples, steps_of
from jobs.runtime.watchdog import Watchdog
from jobs.schema import Run


def train(run: Run, lease: Lease, rank: Rank) -> None:
    """Train one run to its end, or stop at a step boundary after a signal.

    Raise SupersededError on all ranks, at a step boundary, if another start takes the run over.
    """
    stop, directory = StopRequest(), lease.run
    watchdog = Watchdog(lease, rank, run.engine.hang_timeout_s, run.engine.startup_limit_s)
    startup = Startup(process_start(), watchdog, reads_bytes(run))
    prepare_gpu(run, rank)
    refuse_own_gpu_only(run)
    os.environ |= torchrun_environment(rank, run.ranks_per_node)
    if not torch.cuda.is_available():
        torch.set_num_threads(run.engine.cpu_threads_per_rank)
    if rank.world_size > 1:
        # Fabric uses a process group that exists; one of its own would meet at a known port without a secret.
        startup.begins(m.STARTUP_RENDEZVOUS_TIME)
        connect(run, lease, rank, own_device(rank))

    # --- data -------------------------------------------------------------------------------------------------
    startup.begins(m.STARTUP_DATA_TIME)
    startup.reads_data(samples(run, directory))
    dataset = open_dataset(samples(run, directory, check=rank.is_first))
    batches = batches_of(run, dataset, rank.rank)
    steps = steps_of(run.job, batches)
    recorder = Recorder(run, lease, rank, startup=startup, steps=steps, from_step=0)

    # --- arguments --------------------------------------------------------------------------------------------
    startup.begins(m.STARTUP_WEIGHTS_TIME)
    where = directory.path.resolve() / "litgpt"
    make_start(run, dataset, where / START, own_device(rank))
    arguments = arguments_of(run, where, steps, batches.steps_per_epoch)
    script = script_of(run)
    module = import_module(script.value)
    record = Record(run=run, batches=batches, dataset=dataset, recorder=recorder, stop=stop, watchdog=watchdog)

    # --- LitGPT -----------------------------------------------------------------------------------------------
    startup.begins(m.STARTUP_OTHER_TIME)
    try:
        with prepared(script, module, record, command(run, arguments)):
            kind = Text if script_of(run) is Script.pretrain else Instructions
            module.setup(**as_objects(run, arguments), data=kind(run, dataset, batches, rank.rank))
    except Stopped as stopped:
        recorder.stopped(stopped.number)
    except RuntimeError:
        # Slurm's signal also ends LitGPT's loader processes, which raises RuntimeError anywhere in a rank.
        if not stop.signal:
            raise
        recorder.stopped(stop.signal)
        watchdog.stop()
        return
    else:
        ended(recorder, record)
        if run.job.export and rank.is_first and not directory.export.is_symlink():
            directory.export.symlink_to(Path("litgpt") / OUT / "final")
        recorder.finished()
    watchdog.stop()
    if dist.is_initialized():
        dist.destroy_process_group()


def as_objects(run: Run, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments as Python objects for the script's `setup`.

    Raise ConfigError if the installed LitGPT would derive another global batch from them.
    """
    train_args = TrainArgs(**arguments["train"])
    theirs = train_args.gradient_accumulation_iters(run.ranks_per_node, run.nodes)
    if theirs != accumulation(run):
        raise ConfigError(
            f"This LitGPT makes {theirs} micro-batches a rank of train.global_batch_size={run.global_batch_size}, and "
            f"the run has {accumulation(run)}. Run pip install litgpt=={READ}."
        )
    objects = arguments | {"train": train_args}
    objects |= {key: Path(value) for key, value in arguments.items() if key.endswith("_dir")}
    if script_of(run) is Script.pretrain:
        objects["model_config"] = Config(**arguments["model_config"])
    return objects


def ended(recorder: Recorder, record: Record) -> None:
    """Record LitGPT's own training time."""
    if record.training_time_s is None:
        record.training_time_s = time.perf_counter() - record.loaded
    if recorder.writes:
        recorder.event("litgpt", attempt=recorder.attempt, **{m.LITGPT_TRAINING_TIME.name: record.training_time_s})
