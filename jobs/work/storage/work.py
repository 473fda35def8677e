"""Tests of storage: checkpoints, loaders or fio, without training."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from jobs.errors import ConfigError
from jobs.plan import cost
from jobs.schema import Run
from jobs.work.storage import space
from jobs.work.work import Work

if TYPE_CHECKING:
    from omegaconf import DictConfig


NOT_READ = {
    "job.loss_band.reference": "null",
    "job.lora": "null", "job.prompt_tuning": "null", "job.export": "false", "job.init_from": "null",
    "job.checkpoint_every_steps": "null", "stages.prepare": "null", "stages.evaluate": "null", "stages.serve": "null",
    "engine.profile.steps": "[]", "job.checkpoint_copy_dir": "null",
}  # fmt: skip
"""Settings of a training, which a test of storage would not follow."""


class Storage(Work):
    """One test of `storage`."""

    entry_point = "jobs.work.storage.measure:storage_test"
    rules = "jobs.work.storage.rules"
    not_read = NOT_READ
    # Types of a checkpoint's tensors.
    reads_of_engine = frozenset({"parameters"})
    # A rule compares the length with what the model allows.
    reads_of_job = frozenset({"seed", "sequence_length"})
    paths = ("storage.path", "storage.data.path")

    def unread(self, run: Run | DictConfig) -> dict[str, str]:
        """Return the samples of text, and without a checkpoint the model."""
        assert run.storage is not None
        if run.storage.checkpoint is not None:
            return {"data": "it has no samples of text"}
        part = "storage.data" if run.storage.data is not None else "storage.fio"
        unread = ("model", "parallelism", "data", "engine.parameters")
        return dict.fromkeys(unread, f"it reads and writes what {part} describes")

    def parameters(self, run: Run) -> int:
        """Return the weights of the model whose checkpoints are written."""
        return cost.parameters(run.model)

    def checkpoint_bytes(self, run: Run) -> int:
        """Return the size of a checkpoint of a training, which the test does not write when it is stopped."""
        return cost.trained_checkpoint_bytes(run)

    def rank_bytes(self, run: Run) -> float:
        """Return the tensors of a rank, which are in the memory of the host."""
        return space.node_memory_bytes(run) / run.ranks_per_node

    def notes(self, run: Run) -> Iterable[tuple[str, str]]:
        """Yield the space that the test needs, and whether it is smaller than the model."""
        assert run.storage is not None
        checkpoint = run.storage.checkpoint
        reduced = f", REDUCED to {checkpoint.fraction:g} of its rows" if checkpoint and checkpoint.fraction < 1 else ""
        where = run.storage.path or "the run directory"
        yield "storage", f"needs {space.needed_bytes(run) / 1e9:,.3g} GB in {where}{reduced}"

    def refuse_unready(self, run: Run, sweep: Path) -> None:
        """Raise ConfigError if a storage that this machine sees has not the space for the test."""
        assert run.storage is not None
        # A path of the nodes alone is examined there (jobs.work.storage.measure).
        if run.storage.path and not Path(run.storage.path).exists():
            return
        if (refusal := space.refused_space(run, Path(run.storage.path or sweep))) is not None:
            raise ConfigError(f"{run.name}: {refusal}")

    def executes(self, run: Run) -> dict[str, list[str]]:
        """Return the files that the test reads and writes, and the options of fio."""
        assert run.storage is not None
        data, fio = run.storage.data, run.storage.fio
        return {
            "reads": [data.path] if data and data.path else [],
            "writes and removes its files in": [run.storage.path] if run.storage.path else [],
            "fio": fio.arguments if fio else [],
        }

    def directories(self, run: Run) -> list[Path]:
        """Return the directory of the test."""
        assert run.storage is not None
        return [Path(run.storage.path)] if run.storage.path else []


WORK = Storage()
