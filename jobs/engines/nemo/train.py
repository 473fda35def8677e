"""Training by NeMo: the run, record and directory of jobs.work.train.loop with Megatron's steps.

Only `train` imports NeMo: it takes 20 s and is not installed everywhere. Nothing here needs LitGPT.
"""

from __future__ import annotations

import inspect
import os

import torch
import torch.distributed as dist

from jobs import metrics as m
from jobs.data import open_dataset
from jobs.errors import ConfigError
from jobs.lease import Lease
from jobs.ranks import Rank, torchrun_environment
from jobs.runtime.checkpoints.directory import complete
from jobs.runtime.gpus.gpu import prepare_gpu
from jobs.runtime.machine import StopRequest, process_start
from jobs.runtime.process_group import collective_timeout, store_of_run
from jobs.runtime.recorder import Recorder
from jobs.runtime.startup import Startup, reads_bytes
from jobs.runtime.steps import batches_of, samples, steps_of
from jobs.runtime.watchdog import Watchdog
from jobs.schema import Run

TESTED_NEMO = "2.7.3"


def train(run: Run, lease: Lease, rank: Rank) -> None:
    """Train one run to its end, or stop at a step boundary after a signal.

    Raise ConfigError without a GPU, or without NeMo, and SupersededError on all ranks, at a step boundary, if another
    start takes the run over.
    """
    stop, directory = StopRequest(), lease.run
    watchdog = Watchdog(lease, rank, run.engine.hang_timeout_s, run.engine.startup_limit_s)
    startup = Startup(process_start(), watchdog, reads_bytes(run))
    prepare_gpu(run, rank)
    refuse_without_gpu()
    set_environment(run, rank)
    startup.begins(m.STARTUP_IMPORT_TIME)
    try:
        import fiddle
        import nemo
        import nemo.lightning as nl
        from nemo.collections import llm  # noqa: F401 (a missing package fails here)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"engine=nemo needs NeMo 2 on the nodes, where Python has no {error.name}. Set cluster.container to "
            "NVIDIA's NeMo image, or run pip install --editable '.[nemo]' in the checkout."
        ) from error
    refuse_old_nemo(nl.MegatronStrategy, nemo.__version__)
    from jobs.engines.nemo.data import DataModule, MicroBatches
    from jobs.engines.nemo.recipe import recipe
    from jobs.engines.nemo.record import Record

    # --- data -------------------------------------------------------------------------------------------------
    startup.begins(m.STARTUP_DATA_TIME)
    startup.reads_data(samples(run, directory))
    dataset = open_dataset(samples(run, directory, check=rank.is_first))
    batches = batches_of(run, dataset, rank.rank)
    steps = steps_of(run.job, batches)

    # --- resume -----------------------------------------------------------------------------------------------
    startup.begins(m.STARTUP_OTHER_TIME)
    saved = complete(directory.checkpoints)
    done = int(saved[-1].name.removeprefix("step-")) if saved else 0
    micro_batches = MicroBatches(batches, done, steps)
    recorder = Recorder(run, lease, rank, startup=startup, steps=steps, from_step=done)

    # --- NeMo -------------------------------------------------------------------------------------------------
    task = fiddle.build(recipe(run, steps - done))
    record = Record(
        run=run,
        lease=lease,
        rank=rank,
        data=micro_batches,
        dataset=dataset,
        recorder=recorder,
        stop=stop,
        watchdog=watchdog,
    )
    # Not in the recipe: NeMo's trainer deep-copies its arguments, and the record holds open files.
    task.keywords["trainer"].callbacks.append(record)
    # NeMo creates the process group, with model parallelism, through a store that it is given.
    task.keywords["trainer"].strategy.store = store_of_run(run, lease, rank)
    with recorder.progress():
        task(
            data=DataModule(run, micro_batches),
            log=nl.NeMoLogger(explicit_log_dir=str(directory.path / "nemo"), ckpt=None, use_datetime_version=False),
        )
    watchdog.stop()
    dist.destroy_process_group()


def refuse_old_nemo(strategy: type, version: str) -> None:
    """Raise ConfigError for a NeMo whose Megatron strategy lacks an argument that the recipe gives."""
    if "ckpt_optim_fully_reshardable" not in inspect.signature(strategy).parameters:
        raise ConfigError(
            f"engine=nemo needs a NeMo whose checkpoints any layout can load; tested is {TESTED_NEMO}, and NeMo "
            f"{version} on this node is older. Set cluster.container to a later image, or run "
            "pip install --editable '.[nemo]'."
        )


def refuse_without_gpu() -> None:
    """Raise ConfigError without a GPU, which Megatron needs."""
    if not torch.cuda.is_available():
        raise ConfigError(
            "engine=nemo computes on GPUs only, and torch sees none here. Submit to a cluster that has them "
            "(cluster=xe9680_h100 or your own), or set engine=native, which also trains on CPUs."
        )


def set_environment(run: Run, rank: Rank) -> None:
    """Set the environment variables of Lightning, NeMo and CUDA for this rank."""
    os.environ |= torchrun_environment(rank, run.ranks_per_node) | {
        # Lightning asks for a port, which NeMo does not use: it is given a store.
        "MASTER_PORT": "0",
        # NeMo reads its timeout of collectives from this variable.
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": str(int(collective_timeout(run).total_seconds())),
        # One queue keeps kernels in the order of Megatron's calls, so that they overlap with TP's communication.
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    }
    if not torch.cuda.is_available():
        torch.set_num_threads(run.engine.cpu_threads_per_rank)
