"""Our batches as NeMo's data module: the native engine's samples and order, in Megatron's micro-batches."""

from __future__ import annotations

from collections.abc import Iterator

import lightning.pytorch as pl
import torch
from nemo.collections.llm.gpt.model.base import HAVE_TE
from nemo.lightning.pytorch.plugins import MegatronDataSampler
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset
from typing_extensions import override

from jobs.data import Batches, StepBatch
from jobs.schema import Run

MicroBatch = dict[str, Tensor]


class InOrder(MegatronDataSampler):  # type: ignore[misc]  # NeMo has no types
    """NeMo's sampler, which counts micro-batches, without its choice of samples."""

    @override
    def transform_dataloader(
        self, dataloader: DataLoader[MicroBatch], consumed_samples: int = 0
    ) -> DataLoader[MicroBatch]:
        """Return the loader unchanged."""
        return dataloader


class MicroBatches(IterableDataset[MicroBatch]):
    """Micro-batches of one data-parallel rank for steps done + 1 to `steps`."""

    def __init__(self, batches: Batches, done: int, steps: int) -> None:
        self.batches = batches
        self.steps = range(done + 1, steps + 1)
        self.current: StepBatch | None = None
        """The batch of the latest step."""

    def __iter__(self) -> Iterator[MicroBatch]:
        for step in self.steps:
            self.current = self.batches.step(step)
            for inputs, targets, *_ in self.current.micro_batches:
                yield megatron(torch.from_numpy(inputs), torch.from_numpy(targets))


def megatron(inputs: Tensor, targets: Tensor) -> MicroBatch:
    """Return inputs and targets (mbs, seq; -100 for no loss) under Megatron's names."""
    labelled = targets >= 0
    batch = {
        "tokens": inputs,
        # Megatron has no label to ignore; the mask removes these positions from the loss.
        "labels": targets.where(labelled, 0),
        "loss_mask": labelled.float(),
        "position_ids": torch.arange(inputs.shape[1]).expand_as(inputs),
    }
    if not HAVE_TE:
        # Transformer Engine's attention is causal by itself, Megatron's needs a mask; True is masked.
        batch["attention_mask"] = torch.ones(1, 1, inputs.shape[1], inputs.shape[1], dtype=torch.bool).triu(1)
    return batch


class DataModule(pl.LightningDataModule):
    """NeMo's data module: sizes, a sampler, a loader."""

    tokenizer = None

    def __init__(self, run: Run, micro_batches: MicroBatches) -> None:
        super().__init__()
        self.micro_batches = micro_batches
        self.seq_length = run.job.sequence_length
        self.micro_batch_size = run.job.micro_batch_size
        self.global_batch_size = run.global_batch_size
        self.data_sampler = InOrder(
            seq_len=self.seq_length,
            micro_batch_size=self.micro_batch_size,
            global_batch_size=self.global_batch_size,
            output_log=False,
        )

    def train_dataloader(self) -> DataLoader[MicroBatch]:
        """Return the loader of micro-batches."""
        return DataLoader(self.micro_batches, batch_size=None, pin_memory=torch.cuda.is_available())
