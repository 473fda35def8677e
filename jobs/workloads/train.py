"""Training: one page from an empty process to the recorded end, the same for every parallelism.

Called by jobs.run in every rank. What a step does is `Trainer.step`; what its time includes is the fence in
`train`. Rank 0 writes metrics.jsonl and status.jsonl; nothing here reads what is printed.
"""

from __future__ import annotations

import math
import os
import resource
import signal
import socket
import time
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from jobs import checkpoint
from jobs.data import Batches, open_dataset, prepare
from jobs.data.batches import StepBatch
from jobs.engines.data_parallel import reduce_gradients_now
from jobs.engines.parallelize import device_mesh, parallel_model
from jobs.layout import layout_of
from jobs.ranks import Rank, slurm_job_id
from jobs.rundir import RunDir
from jobs.schema import Job, Precision, Run, Strategy
from jobs.workloads.recorder import Recorder

# What Slurm (through submitit's --signal) and people send before they kill.
STOP_SIGNALS = {
    signal.SIGTERM: "asked to end (SIGTERM)",
    signal.SIGUSR2: "time limit near, or preempted (SIGUSR2)",
}


def train(run: Run, directory: RunDir, rank: Rank) -> None:
    """Train one run to its end, or to a step boundary when a signal asks."""
    process_started = psutil.Process().create_time()
    stop = StopRequest()

    # --- device and mesh --------------------------------------------------------------------------------------
    device = join(run, rank)
    layout = layout_of(run)
    mesh = device_mesh(layout, device)
    _, replicate, shard, _ = layout.coordinates(rank.rank)

    # --- data -------------------------------------------------------------------------------------------------
    dataset = open_dataset(samples(run, directory))
    batches = Batches(
        dataset,
        global_batch_size=run.global_batch_size,
        micro_batch_size=run.job.micro_batch_size,
        dp=layout.dp,
        dp_rank=replicate * layout.dp_shard + shard,
        seed=run.job.seed,
    )
    steps = run.job.steps or (run.job.epochs or 0) * batches.steps_per_epoch

    # --- model and optimizer ----------------------------------------------------------------------------------
    trainer = Trainer(run, parallel_model(run, mesh, device), device, layout.dp, steps)

    # --- resume -----------------------------------------------------------------------------------------------
    done = 0
    for newest in checkpoint.complete(directory.checkpoints)[-1:]:
        done = checkpoint.load(newest, trainer.model, trainer.optimizer)
    recorder = Recorder(run, directory, rank, process_started=process_started, steps=steps, from_step=done)
    recorder.started(
        ranks=rank.world_size,
        job_id=slurm_job_id(),
        **nodes_of_run(run.nodes),
        device=device.type,
        device_name=device_name(device),
        torch=torch.__version__,
        data=dataset.description,
    )

    # --- loop -------------------------------------------------------------------------------------------------
    every = run.job.checkpoint_every_steps
    with recorder.progress():
        for step in range(done + 1, steps + 1):
            # The step time is all between the two fences: batch, forward, backward, reductions, update, loss.
            synchronize(device)
            fence = time.perf_counter()
            batch = batches.step(step)
            loss, norm, rate = trainer.step(step, batch)
            synchronize(device)
            seconds = time.perf_counter() - fence

            # One small all-reduce: the slowest rank's time, the fullest rank's memory, and whether any must stop.
            worst = torch.tensor([seconds, memory_peak_bytes(device), float(stop.asked)], dtype=torch.float64)
            worst = worst.to(device)
            dist.all_reduce(worst, dist.ReduceOp.MAX)
            step_time_s, memory_bytes, stopping = worst.tolist()

            save_time_s = None
            if every and (step % every == 0 or step == steps or stopping):
                save_time_s = saved(run, directory, step, trainer, recorder)
            recorder.step(
                step,
                loss=loss,
                rate=rate,
                norm=norm,
                step_time_s=step_time_s,
                batch=batch,
                memory_bytes=memory_bytes,
                save_time_s=save_time_s,
            )
            if stopping and step < steps:
                break
    if recorder.last_step < steps:
        recorder.stopped(stop.reason)
    else:
        if run.job.export:
            checkpoint.export(directory.export, trainer.model, dataset.tokenizer_files)
        recorder.finished()
    dist.destroy_process_group()


def samples(run: Run, directory: RunDir) -> Path:
    """The samples that were tokenized when the run was submitted; made now for a run prepared without them."""
    if directory.data.exists():
        return directory.data.resolve()
    return prepare(
        run.data, sequence_length=run.job.sequence_length, vocab_size=run.model.vocab_size, seed=run.job.seed
    )


@dataclass
class Trainer:
    """Model and optimizer, and how they take one step."""

    run: Run
    model: nn.Module
    device: torch.device
    dp: int
    steps: int

    def __post_init__(self) -> None:
        job = self.run.job
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=job.learning_rate,
            betas=(job.beta1, job.beta2),
            weight_decay=job.weight_decay,
        )

    def step(self, step: int, batch: StepBatch) -> tuple[float, float, float]:
        """One optimizer update; returns the global mean loss before it, the gradient norm, the learning rate."""
        job = self.run.job
        total = torch.zeros((), device=self.device)
        for i, (inputs, targets) in enumerate(batch.micro_batches, start=1):
            reduce_gradients_now(self.model, now=i == len(batch.micro_batches))
            loss = self.summed_loss(torch.from_numpy(inputs), torch.from_numpy(targets))
            # Data parallelism averages over dp ranks; times dp / labels makes it the mean over all labels.
            torch.autograd.backward(loss * (self.dp / batch.labels))
            total += loss.detach()
        norm = clip(self.model.parameters(), job.clip_norm)
        rate = learning_rate(job, step, self.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        dist.all_reduce(total)
        return total.item() / batch.labels, norm, rate

    def summed_loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy summed over labels; inputs and targets (mbs, seq), -100 where no loss is taken."""
        with self.arithmetic():
            logits = self.model(inputs.to(self.device))  # (mbs, seq, vocab)
        targets = targets.to(self.device)
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum")

    def arithmetic(self) -> torch.autocast | nullcontext[None]:
        """The bfloat16 autocast where FSDP's own mixed precision does not do it."""
        job = self.run.job
        if job.precision is Precision.bfloat16 and self.run.parallelism.strategy is not Strategy.fsdp:
            return torch.autocast(self.device.type, torch.bfloat16)
        return nullcontext()


def learning_rate(job: Job, step: int, steps: int) -> float:
    """Linear warm-up, then a cosine from learning_rate to min_learning_rate at the last step."""
    if step <= job.warmup_steps:
        return job.learning_rate * step / job.warmup_steps
    progress = (step - job.warmup_steps) / max(1, steps - job.warmup_steps)
    return job.min_learning_rate + (job.learning_rate - job.min_learning_rate) * (1 + math.cos(math.pi * progress)) / 2


def clip(parameters: Iterable[nn.Parameter], max_norm: float | None) -> float:
    """Scale gradients to max_norm where they exceed it; returns the norm over all ranks before that."""
    with_grad = [p for p in parameters if p.grad is not None]
    norm = nn.utils.get_total_norm([p.grad for p in with_grad if p.grad is not None])
    norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
    if max_norm is not None:
        nn.utils.clip_grads_with_norm_(with_grad, max_norm, norm)
    return norm.item()


def saved(run: Run, directory: RunDir, step: int, trainer: Trainer, recorder: Recorder) -> float:
    """Save a checkpoint and return how long the slowest rank was held up."""
    fence = time.perf_counter()
    path = checkpoint.save(directory.checkpoints, step, trainer.model, trainer.optimizer, keep=run.job.keep_checkpoints)
    held = torch.tensor(time.perf_counter() - fence, dtype=torch.float64, device=trainer.device)
    dist.all_reduce(held, dist.ReduceOp.MAX)
    recorder.checkpoint(step, held.item(), path)
    return held.item()


def join(run: Run, rank: Rank) -> torch.device:
    """Choose the device, meet the other ranks; gloo on CPUs, nccl on GPUs."""
    if torch.cuda.is_available():
        # A launcher may show each rank all GPUs of the node, or only its own.
        device = torch.device("cuda", rank.local_rank if torch.cuda.device_count() > rank.local_rank else 0)
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
        torch.set_num_threads(run.engine.cpu_threads_per_rank)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=f"tcp://{rank.master_addr}:{rank.master_port}",
        rank=rank.rank,
        world_size=rank.world_size,
        timeout=timedelta(seconds=run.engine.collective_timeout_s),
        device_id=device if device.type == "cuda" else None,
    )
    return device


def synchronize(device: torch.device) -> None:
    """Wait for the device's queued work, so that a clock read after it means something."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def memory_peak_bytes(device: torch.device) -> float:
    """MEMORY_PEAK of this rank."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


def nodes_of_run(planned: int) -> dict[str, Any]:
    """Names of the nodes in rank order, and whether they are emulated: fewer machines booted than nodes planned."""
    name = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    here = (name, Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    places: list[tuple[str, str]] = [here] * dist.get_world_size()
    dist.all_gather_object(places, here)
    machines = {boot for _, boot in places}
    return {
        "nodes": list(dict.fromkeys(name for name, _ in places)),
        "emulated_nodes": len(machines) < planned,
    }


def device_name(device: torch.device) -> str:
    """What the GPU calls itself; for a CPU its model name."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "CPU"


class StopRequest:
    """Set by SIGTERM or SIGUSR2: Slurm's cancellation, preemption and the warning before the time limit."""

    def __init__(self) -> None:
        self.asked = False
        self.reason = "another rank was asked to stop"
        for number in STOP_SIGNALS:
            signal.signal(number, self.ask)

    def ask(self, number: int, _frame: object) -> None:
        """Remember the signal; the loop acts on it at the next step boundary, all ranks together."""
        self.asked = True
        self.reason = STOP_SIGNALS[signal.Signals(number)]
