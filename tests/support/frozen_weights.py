"""Runs that train adapters or virtual tokens beside frozen weights, and the same training by torch alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from litgpt.config import Config
from litgpt.model import GPT
from torch import Tensor

from jobs.data import Batches, open_dataset, prepare
from jobs.engines.litgpt.names import litgpt_fields
from jobs.engines.native.weights import values_of
from jobs.rundir import RunDir, load_run
from jobs.runtime.steps import learning_rate
from jobs.schema import Run
from tests.support.real_run import make_run, printed, train

# Six steps in float32 that end with an export.
FROZEN = (
    "job.epochs=null",
    "job.precision=float32",
    "job.warmup_steps=1",
    "job.export=true",
    "scaling.global_batch_size=8",
)
ONE = ("parallelism=single", "ranks_per_node=1", "job.micro_batch_size=4")


def base_weights(where: Path, *overrides: str) -> Path:
    """A LitGPT directory of weights large enough for what trains beside them to change the loss."""
    run = load_run(make_run(where / "shapes", *FROZEN, *ONE, *overrides).config)
    values, gpt = values_of(None, 5), GPT(Config(**litgpt_fields(run.model)))
    state = {
        name: 4 * values(name, weight.shape, weight.dtype, weight.device) for name, weight in gpt.named_parameters()
    }
    torch.save(state, where / "lit_model.pth")
    return where


def run_on(base: Path, where: Path, *overrides: str) -> RunDir:
    """A finished run whose frozen weights are those of a directory."""
    run = make_run(where, f"job.init_from={base}", *overrides)
    assert set(train(run)) == {0}, printed(run)
    return run


def losses_by_torch(run: Run, trained: Sequence[Tensor], logits: Callable[[Tensor], Tensor]) -> list[float]:
    """Losses of the run's six steps by torch's AdamW in this process; `logits` are those of rows of tokens."""
    job = run.job
    data = open_dataset(prepare(run.data, sequence_length=32, vocab_size=320, seed=job.seed))
    batches = Batches(data, global_batch_size=8, micro_batch_size=8, dp=1, dp_rank=0, seed=job.seed)
    adamw = torch.optim.AdamW(trained, betas=(job.beta1, job.beta2), weight_decay=job.weight_decay)
    found = []
    for step in range(1, 7):
        ((inputs, targets, *_),) = batches.step(step).micro_batches
        loss = F.cross_entropy(logits(torch.from_numpy(inputs)).flatten(0, 1), torch.from_numpy(targets).flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, job.clip_norm or torch.inf)
        adamw.param_groups[0]["lr"] = learning_rate(job, step, 6)
        adamw.step()
        adamw.zero_grad()
        found.append(loss.item())
    return found
