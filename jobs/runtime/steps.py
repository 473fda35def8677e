"""The inputs of an engine for a run's steps: the samples and the number of steps."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.data import Batches, Dataset, open_dataset, prepare, with_virtual_tokens
from jobs.data.batches import TokensOfSample
from jobs.data.dataset import digest_of, refuse_changed
from jobs.engines.engine import engine_of
from jobs.files import read_object
from jobs.layout import layout_of, padding
from jobs.rundir import RunDir
from jobs.schema import INSTRUCTIONS, Job, Run, Source

# Default number of global batches that are sorted by length together; with 32 Alpaca samples each, padding then adds
# 12 % to the tokens instead of 123 %.
BUCKET_BATCHES = 8

# Samples whose rows are measured for predictions of speed and memory, which takes a second at most.
MEASURED_SAMPLES = 100_000


@dataclass(frozen=True, eq=False)  # the object is the key of what is predicted for it
class Samples:
    """The tokenized samples of a run, its number of steps, and the account of the samples."""

    directory: Path
    steps: int
    account: dict[str, float]
    tokens: TokensOfSample | None
    """None if every sample fills its row, and for a run that does not train."""

    def planned(self) -> dict[str, Any]:
        """Return the entries of plan.json that follow from the samples."""
        return {"steps": self.steps, "account": self.account, "data_digest": digest_of(self.directory)}


def samples_of(run: Run, made: dict[str, Path]) -> Samples:
    """Return the samples of one of several runs, tokenized if needed; `made` contains those of earlier runs."""
    # Only random tokens depend on the seed.
    seed = run.job.seed if run.data.source is Source.random else None
    key = f"{run.data} {run.job.sequence_length} {run.model.vocab_size} {seed}"
    if key not in made:
        made[key] = prepare(
            run.data, sequence_length=run.job.sequence_length, vocab_size=run.model.vocab_size, seed=run.job.seed
        )
    dataset = open_dataset(made[key])
    engine_of(run).refuse_samples(run, dataset)
    if not run.job.train:
        return Samples(made[key], 0, dataset.account, None)
    batches = batches_of(run, dataset, rank=0)
    steps = steps_of(run.job, batches)
    measured = min(steps, max(1, MEASURED_SAMPLES // run.global_batch_size))
    tokens = batches.tokens_of_sample(measured) if run.data.source in INSTRUCTIONS else None
    return Samples(made[key], steps, dataset.account, tokens)


def samples(run: Run, directory: RunDir, *, check: bool = False) -> Path:
    """Return the samples that were tokenized at submission; tokenize now for a run that was prepared without them.

    With `check`, which one rank of a run sets, raise DataError if they have changed since. It reads them once, at about
    a gigabyte per second, and with them fills the cache of the file system.
    """
    planned = None
    if directory.data.exists():
        found = directory.data.resolve()
        with suppress(OSError, ValueError):
            planned = read_object(directory.plan).get("data_digest")
    else:
        found = prepare(
            run.data, sequence_length=run.job.sequence_length, vocab_size=run.model.vocab_size, seed=run.job.seed
        )
    if check:
        refuse_changed(found, planned)
    return found


def batches_of(run: Run, dataset: Dataset, rank: int) -> Batches:
    """Return the batches of a rank, padded as its layout requires."""
    layout = layout_of(run)
    row_multiple, equal_rows = padding(run)
    return Batches(
        with_virtual_tokens(dataset, run.job.virtual_tokens),
        global_batch_size=run.global_batch_size,
        micro_batch_size=run.job.micro_batch_size,
        dp=layout.dp,
        dp_rank=layout.dp_rank(rank),
        seed=run.job.seed,
        batching=run.job.batching,
        bucket_batches=run.job.bucket_batches or BUCKET_BATCHES,
        row_multiple=row_multiple,
        equal_rows=equal_rows,
        held_out=dataset.held_out,
    )


def steps_of(job: Job, batches: Batches) -> int:
    """Return the number of optimizer steps of the whole run."""
    return job.steps or (job.epochs or 0) * batches.steps_per_epoch
