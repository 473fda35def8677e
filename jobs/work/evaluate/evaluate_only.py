"""A run without training: the evaluation of the weights of job.init_from, as the run's only work."""

from __future__ import annotations

import torch

from jobs.data import open_dataset
from jobs.lease import Lease
from jobs.ranks import Rank, node_name, restart_count, scheduled_job_id
from jobs.rundir import append_event, read_events
from jobs.runtime.gpus.gpu import prepare_gpu
from jobs.runtime.process_group import device_name
from jobs.runtime.steps import samples
from jobs.schema import Run
from jobs.work.evaluate.evaluate import evaluate


def evaluate_only(run: Run, lease: Lease, rank: Rank) -> None:
    """Evaluate the weights that the run starts from, and record start, result and end."""
    prepare_gpu(run, rank)
    directory = lease.run
    lease.take()
    attempt = 1 + sum(event["event"] == "started" for event in read_events(directory.status))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    append_event(
        directory, "started", attempt=attempt, restart=restart_count(), from_step=0, ranks=1, job_id=scheduled_job_id(),
        nodes=[node_name()], device=device.type, device_name=device_name(device), torch=torch.__version__,
        data=open_dataset(samples(run, directory)).description,
    )  # fmt: skip
    print(f"{run.name}: evaluates {run.job.init_from or 'RANDOM WEIGHTS (job.init_from is not set)'}", flush=True)
    append_event(directory, "evaluated", **evaluate(run, directory))
    append_event(directory, "finished", attempt=attempt, step=0)
