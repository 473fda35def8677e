"""Checkpoints in DeepSpeed's own format, by its reader and writer: each rank its partitions, in a directory of ours.

Complete or absent, as those of all engines, and readable by DeepSpeed's tools. A run resumes on the number of ranks
that wrote them.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import yaml
from deepspeed.runtime.checkpoint_engine import TorchCheckpointEngine
from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum
from deepspeed.utils import safe_get_full_fp32_param
from deepspeed.utils.tensor_fragment import fragment_address

from jobs.engines.deepspeed.configuration import settings_of, stage_of
from jobs.engines.litgpt.names import litgpt_fields
from jobs.engines.trainer import Saves
from jobs.errors import CheckpointError, before_torch_archive
from jobs.files import opened
from jobs.lease import Lease
from jobs.output import write_file
from jobs.plan.cost import checkpoint_bytes, weights_bytes
from jobs.runtime.checkpoints.directory import (
    Saved,
    keep_newest,
    met_by_ranks,
    save_archive,
    size_bytes,
    write_sums,
    written_aside,
)
from jobs.runtime.checkpoints.pickles import MALFORMED, load_as_data, load_weights
from jobs.runtime.data_pickles import member_of
from jobs.runtime.exchange import gather
from jobs.runtime.watchdog import Watchdog
from jobs.schema import Run

TAG = "deepspeed"
"""The folder of a checkpoint in which DeepSpeed writes its files."""


class Files(TorchCheckpointEngine):  # type: ignore[misc]  # DeepSpeed publishes no types
    """DeepSpeed's files, written with the error kept: a rank that raised it would leave the others waiting."""

    error: str | None = None
    sums: dict[Path, int]
    """The sums of this rank's files (checkpoint_sums)."""

    def save(self, state_dict: Any, path: str) -> None:
        """Write a file."""
        try:
            self.sums[Path(path)] = save_archive(state_dict, Path(path))
        except (OSError, RuntimeError) as error:
            self.error = met_by_ranks(before_torch_archive(error))

    def load(self, path: str, map_location: Any = None) -> Any:
        """Return the content of a file, which is data only."""
        opened(path).close()
        return torch.load(path, map_location=map_location, weights_only=True)


class Saver(Saves):
    """Write checkpoints of DeepSpeed's engine and load them; `ended` returns the results."""

    def __init__(self, run: Run, lease: Lease, engine: Any, watchdog: Watchdog) -> None:
        self.run = run
        self.lease = lease
        self.directory = lease.run.checkpoints
        self.engine = engine
        self.watchdog = watchdog
        self.outcomes: list[Saved] = []
        self.files = engine.checkpoint_engine = Files()
        # One rank would copy two scripts, and leave the others waiting where it cannot; every installation has them.
        engine._copy_recovery_script = lambda _path: None  # noqa: SLF001 (no setting exists)
        load_as_data()
        # What DeepSpeed's files contain besides tensors and plain values.
        members = [(member_of, f"{module}.getattr") for module in ("builtins", "__builtin__")]
        torch.serialization.add_safe_globals([ZeroStageEnum, LossScaler, DynamicLossScaler, fragment_address, *members])

    def save(self, step: int, *, last: bool) -> None:  # noqa: ARG002 (the native engine writes others in the background)
        """Write the state after a step; every rank calls it."""
        self.watchdog.begins(f"writing the checkpoint of step {step}", checkpoint_bytes(self.run))
        fence, final = time.perf_counter(), self.directory / f"step-{step:08d}"
        try:
            with written_aside(final, self.lease) as writing:
                self.files.error, self.files.sums = None, {}
                self.engine.save_checkpoint(str(writing), tag=TAG, client_state={"step": step}, save_latest=False)
                raise_together(self.files.error, "{}")
                own = {path.relative_to(writing).as_posix(): found for path, found in self.files.sums.items()}
                write_sums(writing, own)
        except CheckpointError as error:
            self.outcomes.append(Saved(step, error=str(error)))
            return
        if dist.get_rank() == 0:
            keep_newest(self.directory, self.run.job.keep_checkpoints)
            self.outcomes.append(Saved(step, time.perf_counter() - fence, size_bytes(final)))

    def load(self, path: Path) -> int:
        """Restore model and optimizer in place and return the step of the checkpoint; every rank calls it."""
        # First each file by one rank, in part: what one rank alone cannot read would leave the others waiting.
        error = None
        try:
            for file in sorted(path.glob(f"{TAG}/*.pt"))[dist.get_rank() :: dist.get_world_size()]:
                load_weights(file)
        except (OSError, RuntimeError, *MALFORMED) as unreadable:
            error = met_by_ranks(unreadable)
        raise_together(error, f"Checkpoint {path} cannot be read: {{}}.")
        found, state = self.engine.load_checkpoint(str(path), tag=TAG)
        raise_together(None if found else "a file is missing", f"Checkpoint {path} cannot be read: {{}}.")
        return int(state["step"])

    def ended(self) -> list[Saved]:
        """Return the results of checkpoints since the last call."""
        outcomes, self.outcomes = self.outcomes, []
        return outcomes

    def export(self, tokenizer_files: Sequence[Path]) -> None:
        """Write a LitGPT checkpoint directory: full weights, model_config.yaml, tokenizer; every rank calls it."""
        self.watchdog.begins("writing the export", weights_bytes(self.run))
        with written_aside(self.lease.run.export, self.lease) as writing:
            error = self.write_weights(writing)
            if dist.get_rank() == 0:
                write_file(writing / "model_config.yaml", yaml.safe_dump(litgpt_fields(self.run.model)))
                for file in tokenizer_files:
                    shutil.copy(file, writing)
            raise_together(error, f"The weights cannot be written to {self.lease.run.export}: {{}}.")

    def write_weights(self, directory: Path) -> str | None:
        """Write lit_model.pth on the first rank, weight by weight from all; return the error of writing."""
        if settings_of(self.run).gather_16bit_weights_on_model_save:
            self.files.error, self.files.sums = None, {}
            self.engine.save_16bit_model(str(directory), "lit_model.pth")
            return self.files.error
        whole = {}
        for name, parameter in self.engine.module.named_parameters():
            full = safe_get_full_fp32_param(parameter) if stage_of(self.run) else parameter.detach()
            if dist.get_rank() == 0:
                whole[name] = full.cpu()
        if dist.get_rank() > 0:
            return None
        try:
            save_archive(whole, directory / "lit_model.pth")
        except (OSError, RuntimeError) as error:
            return met_by_ranks(before_torch_archive(error))
        return None


def raise_together(own: str | None, sentence: str) -> None:
    """Raise CheckpointError on every rank if one met an error; `sentence` has a place for the errors."""
    if met := sorted({str(error) for error in gather(own) if error is not None}):
        raise CheckpointError(sentence.format("; ".join(met)))
