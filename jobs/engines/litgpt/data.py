"""Our samples as LitGPT's data modules: the native engine's samples and order, LitGPT's tokenizing and padding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from litgpt.data import DataModule, SFTDataset, get_sft_collate_fn
from litgpt.data.json_data import load_split
from litgpt.prompts import Alpaca, Default
from litgpt.tokenizer import Tokenizer
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler, Subset
from torch.utils.data import Dataset as TorchDataset
from typing_extensions import override

from jobs.data import Batches, Dataset
from jobs.data.directory import PARQUET
from jobs.data.instruction_records import read_rows, records_from
from jobs.data.sources import source_files
from jobs.data.split import split_order
from jobs.errors import DataError
from jobs.prompt_template import template_of
from jobs.schema import Run, Source

WORKERS = 4
"""Loader processes, as in LitGPT's own data modules."""


class InOrder(DistributedSampler[Any]):
    """The native engine's samples of this rank; Fabric keeps a DistributedSampler and sets its epoch."""

    def __init__(self, batches: Batches, samples: TorchDataset[Any], ranks: int, rank: int) -> None:
        super().__init__(samples, num_replicas=ranks, rank=rank, shuffle=False)
        self.batches = batches

    def __iter__(self) -> Iterator[int]:
        first = self.epoch * self.batches.steps_per_epoch + 1
        for step in range(first, first + self.batches.steps_per_epoch):
            yield from self.batches.samples(step)

    def __len__(self) -> int:
        return self.batches.steps_per_epoch * len(self.batches.samples(1))


class Samples(DataModule):  # type: ignore[misc]  # LitGPT has no types
    """Common to instructions and text: the order, and the validation samples."""

    collate: Any = None

    def __init__(self, run: Run, dataset: Dataset, batches: Batches, rank: int) -> None:
        super().__init__()
        self.run = run
        self.dataset = dataset
        self.batches = batches
        self.rank = rank
        self.batch_size = run.job.micro_batch_size

    @override
    def connect(
        self, tokenizer: Tokenizer | None = None, batch_size: int = 1, max_seq_length: int | None = None
    ) -> None:
        """Keep the script's tokenizer; the other arguments are known."""
        self.tokenizer = tokenizer

    def train_dataloader(self) -> DataLoader[Any]:
        """Return the loader of training samples."""
        order = InOrder(self.batches, self.train_dataset, self.run.ranks, self.rank)
        return self.loader(self.train_dataset, order)

    def val_dataloader(self) -> DataLoader[Any]:
        """Return the loader of validation samples."""
        return self.loader(self.test_dataset, None)

    def validated(self, count: int) -> range:
        """Return the validation samples: the held-out ones, or one micro-batch, since LitGPT always validates."""
        held_out = self.dataset.held_out
        return range(count - held_out, count) if held_out else range(min(self.batch_size, count))

    def loader(self, samples: TorchDataset[Any], order: InOrder | None) -> DataLoader[Any]:
        """Return a loader of micro-batches."""
        return DataLoader(
            samples, batch_size=self.batch_size, sampler=order, num_workers=WORKERS, collate_fn=self.collate
        )


class Instructions(Samples):
    """Records that LitGPT tokenizes on request, as for its users."""

    @override
    def setup(self, stage: str = "") -> None:
        """Read the records and hold out the last ones."""
        data, length = self.run.data, self.run.job.sequence_length
        files = source_files(data)
        if data.source is Source.alpaca and data.prompt is None and len(files) == 1 and files[0].suffix != PARQUET:
            self.prompt_style = Alpaca()
            rows = load_split(files[0])[: data.max_samples]
        else:
            self.prompt_style = Default()
            read = read_rows(data.source, files, data.max_samples, data.max_line_mb).first
            records = records_from(read, data.source, template_of(data))
            rows = [{"instruction": record.prompt, "output": record.response} for record in records]
        if len(rows) != len(self.dataset):
            raise DataError(
                f"{data.path or 'The standard library'} has {len(rows)} records, and had {len(self.dataset)} when "
                "the run was prepared. Submit again."
            )
        rows = [rows[i] for i in split_order(data, len(rows))]
        trained = len(rows) - self.dataset.held_out
        self.train_dataset, self.test_dataset = (
            SFTDataset(part, self.tokenizer, self.prompt_style, length, data.mask_prompt)
            for part in (rows[:trained], [rows[i] for i in self.validated(len(rows))])
        )
        self.collate = get_sft_collate_fn(max_seq_length=length)


class Windows(TorchDataset[Tensor]):
    """Tokenized text in windows of sequence_length + 1 tokens, as in LitGPT's text modules."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Tensor:
        inputs, targets = self.dataset.sample(index)
        return torch.cat([torch.from_numpy(inputs), torch.from_numpy(targets[-1:])])


class Text(Samples):
    """Windows of tokenized text."""

    @override
    def setup(self, stage: str = "") -> None:
        """Hold out the last windows."""
        windows = Windows(self.dataset)
        self.train_dataset = Subset(windows, range(len(windows) - self.dataset.held_out))
        self.test_dataset = Subset(windows, self.validated(len(windows)))
