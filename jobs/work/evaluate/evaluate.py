"""Evaluation: the mean loss of a run's weights on the held-out samples, in one process.

The weights come from the run's export if it has one, else from the newest readable checkpoint, of any layout; a run
that trains nothing has the weights that it starts from. Arithmetic and loss are those of training, without dropout and
gradients.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import HashStore  # type: ignore[attr-defined]  # torch has it, and does not list it

from jobs import metrics as m
from jobs.data import Dataset, held_out_batches, open_dataset, with_virtual_tokens
from jobs.data.dataset import IGNORED
from jobs.engines.native import checkpoint
from jobs.engines.native.customization.customize import customize, with_first_values
from jobs.engines.native.customization.prompt_files import read_prompt
from jobs.engines.native.customization.prompt_tuning import TOKENS, add_prompt
from jobs.engines.native.load_sharded import load_sharded
from jobs.engines.native.loss_chunk import loss_chunk
from jobs.engines.native.mixed_precision import autocast
from jobs.engines.native.model import Decoder, empty_model, tie_embeddings
from jobs.engines.native.weights import TYPES, Values, values_of
from jobs.errors import CheckpointError
from jobs.metrics import Metric
from jobs.run_events import run_events
from jobs.rundir import RunDir
from jobs.runtime.checkpoints.directory import newest_readable
from jobs.runtime.process_group import device_name
from jobs.runtime.steps import samples
from jobs.schema import TEXTS, Batching, Precision, Run


def evaluate(run: Run, directory: RunDir) -> dict[str, Any]:
    """Return the fields of the `evaluated` event: the step, the loss, the number of labels, the device."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_num_threads(threads(run))
    dataset = with_virtual_tokens(open_dataset(samples(run, directory, check=True)), run.job.virtual_tokens)
    # Loading a checkpoint is a collective operation: a group of this process alone.
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        gpt, step = trained_model(run, directory, device)
    finally:
        dist.destroy_process_group()
    prepare(gpt, run, device)
    matches = Matches(gpt) if run.data.mask_prompt else None
    # Only the documents of text make a difference.
    packed = run.job.batching is Batching.packed and run.data.source in TEXTS
    loss = mean_loss(gpt, dataset, run.job.micro_batch_size, device, matches, packed=packed)
    if not math.isfinite(loss):
        raise CheckpointError(f"The loss of the weights after step {step} is {loss}: training diverged.")
    values: dict[Metric, float] = {
        m.EVALUATION_LOSS: loss,
        m.EVALUATION_PERPLEXITY: torch.tensor(loss, dtype=torch.float64).exp().item(),
        m.EVALUATION_LABELS: labels_of(dataset, dataset.held_out),
        m.EVALUATION_SAMPLES: dataset.held_out,
    }
    if matches is not None:
        values[m.EVALUATION_EXACT_MATCH] = matches.count / dataset.held_out
    known = {metric.name: value for metric, value in values.items() if math.isfinite(value)}
    return {"step": step, **known, "device": device.type, "device_name": device_name(device)}


def trained_model(run: Run, directory: RunDir, device: torch.device) -> tuple[Decoder, int]:
    """Return the whole model with its trained weights, and their step."""
    gpt, tied = empty_model(run.model, run.job.row_length, loss_chunk(run)), run.model.tie_embeddings
    tie_embeddings(gpt, tied=tied)
    if not run.job.train:
        load_sharded(gpt, device, first_values(run), tensor=1, tied=tied)
        return gpt, 0
    if directory.export.exists():
        load_sharded(gpt, device, exported_weights(run, directory, gpt), tensor=1, tied=tied)
        (end, *_) = (event for event in run_events(directory) if event["event"] == "finished")
        return gpt, int(end["step"])
    customize(gpt, run.job, torch.float32)
    values: Values = uninitialised
    if not run.job.trains_all_weights:
        # The checkpoint contains what trained only.
        values = with_first_values(first_values(run), gpt, run.job)
    load_sharded(gpt, device, values, tensor=1, tied=tied)
    step = newest_readable(
        directory,
        partial(checkpoint.load_weights, gpt, run),
        # A frozen weight in 4 bits is packed into numbers that need not be finite.
        lambda: (parameter for parameter in gpt.parameters() if parameter.requires_grad),
    )
    if step == 0:
        raise CheckpointError(f"{directory.checkpoints} has no checkpoint to evaluate, and the run left no export.")
    return gpt, step


def first_values(run: Run) -> Values:
    """Return the source of the weights that the run began with."""
    return values_of(run.job.init_from, run.job.seed, unit_offset=run.model.norm_unit_offset)


def prepare(gpt: Decoder, run: Run, device: torch.device) -> None:
    """Set a model up to compute losses without gradients, in the run's arithmetic, in place.

    Autocast would keep its copies of all weights that require gradients until the end of a forward pass.
    """
    gpt.eval().requires_grad_(requires_grad=False)
    if run.job.precision is not Precision.float32:
        autocast(gpt, device, TYPES[run.job.precision])


def exported_weights(run: Run, directory: RunDir, gpt: Decoder) -> Values:
    """Return the weights of an export; of virtual tokens it has the embeddings only, and the model gets no encoder."""
    if run.job.prompt_tuning is None:
        return values_of(str(directory.export), run.job.seed)
    add_prompt(gpt, replace(run.job.prompt_tuning, encoder=None), torch.float32)
    base, trained = first_values(run), read_prompt(directory.export)

    def value(name: str, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
        return trained.to(device, dtype) if name == TOKENS else base(name, shape, dtype, device)

    return value


def uninitialised(_name: str, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return memory for a weight that a checkpoint fills."""
    return torch.empty(*shape, dtype=dtype, device=device)


class Matches:
    """Count the samples whose response greedy decoding would give, from the model's hidden states.

    If the most probable token at every label is the label, then decoding token by token meets the same prefixes and
    gives the same tokens, so no text is generated.
    """

    def __init__(self, gpt: Decoder) -> None:
        self.count = 0
        self._head = gpt.lm_head
        self._hidden: Tensor | None = None
        gpt.transformer.ln_f.register_forward_hook(self._keep)

    def _keep(self, _module: nn.Module, _inputs: Any, hidden: Tensor) -> None:
        """Keep the hidden states (mbs, seq, hidden) of a forward pass."""
        self._hidden = hidden

    def add(self, targets: Tensor) -> None:
        """Add the samples of the latest forward pass: targets (mbs, seq), IGNORED in prompts and padding."""
        assert self._hidden is not None
        for hidden, row in zip(self._hidden, targets, strict=True):
            labelled = row != IGNORED
            weight = self._head.weight
            # Only the labelled positions: logits of all of them are vocab / hidden times as large as the hidden states.
            predicted = F.linear(hidden[labelled].to(weight.dtype), weight, self._head.bias).argmax(-1)
            self.count += bool(labelled.any()) and bool((predicted == row[labelled]).all())


def mean_loss(
    gpt: Decoder,
    dataset: Dataset,
    micro_batch_size: int,
    device: torch.device,
    matches: Matches | None = None,
    *,
    packed: bool = False,
) -> float:
    """Return the loss summed over the labels of the held-out samples, divided by their number.

    A mean over micro-batches would weigh labels of short samples more, and depend on the size of micro-batches.
    """
    # In float64: a sum over millions of labels loses digits in float32.
    total = torch.zeros((), dtype=torch.float64, device=device)
    with torch.no_grad():
        for micro_batch in held_out_batches(dataset, dataset.held_out, micro_batch_size, packed=packed):
            on_device = micro_batch.converted(lambda tokens: torch.from_numpy(tokens).to(device))
            total += gpt(*on_device)
            if matches is not None:
                matches.add(on_device.targets)
    return total.item() / labels_of(dataset, dataset.held_out)


def threads(run: Run) -> int:
    """Return the compute threads of an evaluation on a CPU: those of its stage, or of its rank."""
    if not run.job.train:
        return run.engine.cpu_threads_per_rank
    return run.stages.evaluate.cpus if run.stages.evaluate else os.cpu_count() or 1


def labels_of(dataset: Dataset, held_out: int) -> int:
    """Return the number of labels of the held-out samples."""
    return int(dataset.label_counts[-held_out:].sum())
