"""Checkpoints by torch.distributed.checkpoint (DCP): copied to memory, written in the background, resharded on load.

Any layout of the same model can load a checkpoint: parameters have LitGPT's names and row order. If weights
are frozen, a checkpoint contains only the adapters or virtual tokens; the base weights come again from job.init_from or
the seed.
"""

from __future__ import annotations

import io
import shutil
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, cast

import torch
import torch.distributed as dist
import yaml
from litgpt.config import Config
from litgpt.model import GPT
from torch import Tensor
from torch.distributed.checkpoint._state_dict_stager import StateDictStager
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load as load_dcp
from torch.distributed.checkpoint.state_dict_saver import save as save_dcp
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.tensor import DTensor
from torch.futures import Future as TorchFuture
from torch.optim import Optimizer

from jobs.engines.litgpt.names import litgpt_fields
from jobs.engines.native.customization.lora import ADAPTER, merged_weights
from jobs.engines.native.customization.lora_files import LITGPT_FILE, write_adapters
from jobs.engines.native.customization.prompt_files import write_prompt
from jobs.engines.native.customization.prompt_tuning import trained_embeddings
from jobs.engines.native.float8 import plain
from jobs.engines.native.load_sharded import shard_of
from jobs.engines.native.tensor_parallel import as_in_litgpt, grouped_by_rank, layout_rows
from jobs.engines.native.updates.average import averages, key_of_average
from jobs.errors import CheckpointError, before_torch_archive
from jobs.lease import Lease
from jobs.metrics import Metric
from jobs.output import write_file
from jobs.plan.cost import checkpoint_bytes, weights_bytes
from jobs.runtime.checkpoints.copies import Copies
from jobs.runtime.checkpoints.directory import (
    Saved,
    group_of_files,
    keep_newest,
    met_by_ranks,
    size_bytes,
    together,
    write_sums,
    written_aside,
)
from jobs.runtime.checkpoints.pickles import MALFORMED, load_as_data
from jobs.runtime.checkpoints.sums import SummedFiles
from jobs.runtime.watchdog import Watchdog
from jobs.schema import Run

# Keys by parameter name: pipeline ranks hold different parameters, whose positions in a list would collide.
FLAT = StateDictOptions(flatten_optimizer_state_dict=True)
# Without frozen weights, whose absence is not an error.
TRAINED = replace(FLAT, ignore_frozen_params=True, strict=False)
Order = Callable[[str, Tensor, Config, int], Tensor]


class Saver:
    """Write checkpoints of one model and optimizer, one at a time, and load them; training waits for a copy only.

    `ended` returns the results. A checkpoint that cannot be written leaves no files, and earlier ones stay.
    """

    def __init__(
        self, run: Run, lease: Lease, gpt: GPT, optimizer: Optimizer, *, counts: dict[str, Tensor], watchdog: Watchdog
    ) -> None:
        self.run = run
        self.job = run.job
        self.options = options_of(run)
        self.lease = lease
        self.directory = lease.run.checkpoints
        self.gpt = gpt
        self.optimizer = optimizer
        self.counts = counts
        self.watchdog = watchdog
        self.tensor = run.parallelism.tensor
        # Two checkpoints: the previous one may still be written in the background.
        self.sizes_bytes = {"a checkpoint": 2 * checkpoint_bytes(run), "the export": 3 * weights_bytes(run)}
        writes = run.job.checkpoint_every_steps is not None or run.job.export
        self.group = group_of_files(run, max(self.sizes_bytes.values())) if writes else None
        # One stager for all checkpoints reuses the memory that it copies into. The DefaultStager around it does not
        # work: torch 2.11 closes it after the first copy.
        self.stager = StateDictStager(pin_memory=torch.cuda.is_available())
        self.writer = ThreadPoolExecutor(1, "checkpoint")
        self.under_way: Future[Saved] | None = None
        wanted = run.job.checkpoint_copy_dir
        self.copies = Copies(lease.run, wanted) if wanted is not None else None
        self.outcomes: list[Saved] = []

    def save(self, step: int, *, last: bool) -> None:
        """Write the state after a step, after the previous checkpoint is complete; every rank calls it.

        The last one is written in the foreground: the process ends after it.
        """
        self.watchdog.begins(f"writing the checkpoint of step {step}", self.sizes_bytes["a checkpoint"])
        self.finish()
        weights, moments = self.trained_state()
        state = {
            "model": in_litgpt_order(weights, self.gpt.config, self.tensor),
            "optimizer": in_litgpt_order(moments, self.gpt.config, self.tensor),
            "step": torch.tensor(step),
            **self.counts,
        }
        if self.job.checkpoint_in_background and not last:
            self.under_way = self.writer.submit(self.write, step, self.stager.stage(state), last=last)
        else:
            self.outcomes.append(self.write(step, state, last=last))

    def write(self, step: int, state: Any, *, last: bool) -> Saved:
        """Write a state to a temporary directory and rename it; every rank calls it, from any thread."""
        fence = time.perf_counter()
        final = self.directory / f"step-{step:08d}"
        try:
            with written_aside(final, self.lease, self.group) as writing:
                write_sums(writing, save_sharded(state, writing, self.group, keeps_plans=True), self.group)
        except CheckpointException as error:
            return Saved(step, error=met_by_ranks(error))
        except CheckpointError as error:
            return Saved(step, error=str(error))
        write_time_s = time.perf_counter() - fence
        met: dict[str, list[str]] = {}
        if self.copies is not None:
            met = self.copies.unreported(self.group)
            # A process that ends with this checkpoint has no time for another write.
            if not last:
                self.copies.begin(final)
        if dist.get_rank() > 0:
            return Saved(step)
        keep_newest(self.directory, self.job.keep_checkpoints)
        return Saved(step, write_time_s, size_bytes(final), copy_errors=met)

    def load(self, path: Path) -> int:
        """Restore model, optimizer and counts in place and return the step of the checkpoint; every rank calls it."""
        weights, moments = self.trained_state()
        # Loading replaces every value: only the sharding of these tensors matters, not the order of their rows.
        state: dict[str, Any] = {
            "model": {name: plain(value) for name, value in weights.items()},
            "optimizer": moments,
            "step": torch.tensor(0),
            **self.counts,
        }
        read_into(state, path, self.copies)
        if weights:
            set_state_dict(
                self.gpt,
                self.optimizer,
                model_state_dict=in_layout_order(state["model"], self.gpt.config, self.tensor),
                optim_state_dict=in_layout_order(state["optimizer"], self.gpt.config, self.tensor),
                options=self.options,
            )
        return int(state["step"])

    def trained_state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what this rank trains and its moments; both are empty on a pipeline rank that trains nothing.

        torch refuses an optimizer without parameters.
        """
        if not any(group["params"] for group in self.optimizer.param_groups):
            return {}, {}
        return get_state_dict(self.gpt, self.optimizer, options=self.options)

    def loaded(self) -> Mapping[Metric, int]:
        """Return the bytes that the ranks loaded from copies and from the shared directory; every rank calls it."""
        return {} if self.copies is None else self.copies.loaded()

    def clear(self) -> None:
        """Remove the copies of this node; every rank calls it."""
        if self.copies is not None:
            self.copies.clear()

    def finish(self) -> None:
        """Wait for the checkpoint in progress."""
        if self.under_way is not None:
            self.outcomes.append(self.under_way.result())
            self.under_way = None

    def ended(self) -> list[Saved]:
        """Return the results of checkpoints since the last call."""
        if self.under_way is not None and self.under_way.done():
            self.finish()
        outcomes, self.outcomes = self.outcomes, []
        return outcomes

    def export(self, tokenizer_files: Sequence[Path]) -> None:
        """Write a LitGPT checkpoint directory: full weights, model_config.yaml, tokenizer; every rank calls it.

        Adapters are added to the weights, and next to them in files of their own (customization.lora_files).
        Beside virtual tokens there are no weights, since they are those of job.init_from.
        The weights go through a sharded checkpoint, so that only the first rank holds more than its shards.
        """
        self.watchdog.begins("writing the export", self.sizes_bytes["the export"])
        directory = self.lease.run.export
        with written_aside(directory, self.lease, self.group) as writing:
            files, prompt = self.exported(), trained_embeddings(self.gpt)
            try:
                for name, state in files.items():
                    save_sharded(state, writing / f"{name}.sharded", self.group)
            except CheckpointException as error:
                raise CheckpointError(
                    f"The weights cannot be written to {directory}: {met_by_ranks(error)}."
                ) from error

            def complete() -> None:
                for name in files:
                    sharded = writing / f"{name}.sharded"
                    # torch.save hides the cause of a failed write if it gets a path; an open file raises OSError.
                    with (writing / name).open("wb") as file:
                        dcp_to_torch_save(sharded, cast(Path, file))
                    shutil.rmtree(sharded)
                write_file(writing / "model_config.yaml", yaml.safe_dump(litgpt_fields(self.run.model)))
                if self.job.lora is not None:
                    write_adapters(self.run, writing)
                if prompt is not None:
                    write_prompt(self.run, writing, prompt)
                for tokenizer_file in tokenizer_files:
                    shutil.copy(tokenizer_file, writing)

            together(complete if dist.get_rank() == 0 else None, self.group)

    def exported(self) -> dict[str, dict[str, Any]]:
        """Return the state of each file of an export, sharded; every rank calls it."""
        if self.job.prompt_tuning is not None:
            return {}
        weights, config = get_model_state_dict(self.gpt), self.gpt.config
        if self.job.ema_decay is not None:
            weights |= averages(weights, self.trained_state()[1])
        if self.job.lora is None:
            return {"lit_model.pth": in_litgpt_order(weights, config, self.tensor)}
        adapters = {name: weights.pop(name) for name in list(weights) if ADAPTER in name}
        weights |= dict(merged_weights(self.gpt, self.tensor))
        return {
            "lit_model.pth": in_litgpt_order(weights, config, self.tensor),
            LITGPT_FILE: {"model": in_litgpt_order(adapters, config, self.tensor)},
        }


class Writer(FileSystemWriter):
    """DCP's writer with the file system's own error: the archive's error hides it on the way to other ranks."""

    def __init__(self, directory: Path, **keywords: Any) -> None:
        super().__init__(directory, **keywords)
        self.fs = self.files = SummedFiles()

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> TorchFuture[list[WriteResult]]:
        """Write this rank's shards."""
        try:
            return super().write_data(plan, planner)
        except RuntimeError as error:
            raise before_torch_archive(error) from None


def save_sharded(
    state: Mapping[str, Any], directory: Path, group: dist.ProcessGroup | None = None, *, keeps_plans: bool = False
) -> dict[str, int]:
    """Write a state, each rank its shards, and return the sums of this rank's files (checkpoint_sums).

    With `keeps_plans` the ranks exchange only what has changed since the last such call: which rank writes what.
    Every rank of the group calls it, and raises the error of any rank.
    """
    writer = Writer(directory)
    planner = DefaultSavePlanner(enable_plan_caching=keeps_plans)
    try:
        save_dcp(dict(state), storage_writer=writer, planner=planner, process_group=group)
    except BaseException:
        forget_plans()
        raise
    return writer.files.sums


def forget_plans() -> None:
    """Forget the plans of earlier checkpoints: after an error some ranks may have one that the first does not know.

    torch 2.11 would write a checkpoint without the shards of these ranks then.
    """
    kept: tuple[dict[str, Any], ...] = (
        SavePlanner._cached_save_plan,  # noqa: SLF001 (torch clears them nowhere)
        SavePlanner._cached_final_save_plan,  # noqa: SLF001
        SavePlanner._cached_all_plans,  # noqa: SLF001
        SavePlanner._cached_global_plan,  # noqa: SLF001
        SavePlanner._cached_metadata,  # noqa: SLF001
    )
    for plans in kept:
        plans.clear()


def options_of(run: Run) -> StateDictOptions:
    """Return which parameters a run's checkpoints contain, and how."""
    return FLAT if run.job.trains_all_weights else TRAINED


def load_weights(gpt: GPT, run: Run, path: Path) -> int:
    """Restore the trained weights of an unsharded model, or their average, and return the step of the checkpoint."""
    # These tensors are the model's own; loading fills them in place.
    model = get_model_state_dict(gpt, options=options_of(run))
    state: dict[str, Any] = {"model": model, "step": torch.tensor(0)}
    read_into(state, path)
    if run.job.ema_decay is not None:
        read_into({"optimizer": {key_of_average(name): model[name] for name, _ in gpt.named_parameters()}}, path)
    return int(state["step"])


class WithCopies(FileSystem):
    """The file system of torch's distributed checkpoints, with the copies on this node in place of the files."""

    def __init__(self, copies: Copies) -> None:
        self.copies = copies

    def concat_path(self, path: Any, suffix: str) -> Any:
        """Return the path of a file."""
        return self.copies.copy / suffix if suffix in self.copies.whole else super().concat_path(path, suffix)


class Reader(FileSystemReader):
    """DCP's reader with the copies on this node; it checks what it reads from files that nobody has checked."""

    def __init__(self, directory: Path, copies: Copies) -> None:
        super().__init__(directory)
        self.copies = copies
        self.fs = WithCopies(copies)

    def _slice_file(self, file: Any, sinfo: Any) -> IO[bytes]:
        """Return the part of a file that contains one value."""
        part = super()._slice_file(file, sinfo)
        self.copies.counts(sinfo.relative_path, sinfo.length)
        if sinfo.relative_path not in self.copies.unchecked:
            return part
        # torch writes each value as a ZIP archive, which has a CRC-32 of its content, and reads it without comparing.
        content = io.BytesIO(part.read())
        with zipfile.ZipFile(content) as archive:
            if (damaged := archive.testzip()) is not None:
                raise ValueError(f"{sinfo.relative_path}: {damaged} changed after it was written")
        content.seek(0)
        return content


def read_into(state: dict[str, Any], path: Path, copies: Copies | None = None) -> None:
    """Load the entries of a state from a checkpoint, in place; every rank calls it. Raise CheckpointError."""
    load_as_data()
    reader = FileSystemReader(path) if copies is None else Reader(path, copies)
    try:
        load_dcp(state, storage_reader=reader)
    except (CheckpointException, OSError, RuntimeError, *MALFORMED) as error:
        raise CheckpointError(f"Checkpoint {path} cannot be read: {met_by_ranks(error)}.") from error


def in_litgpt_order(state: Mapping[str, Any], config: Config, tensor: int) -> dict[str, Any]:
    """Return a state with the rows of fused qkv in LitGPT's order (see tensor_parallel), sharded as before."""
    return {name: reordered(name, plain(value), as_in_litgpt, config, tensor) for name, value in state.items()}


def in_layout_order(state: Mapping[str, Any], config: Config, tensor: int) -> dict[str, Any]:
    """Return a state with the rows of fused qkv grouped by TP rank: the inverse of in_litgpt_order."""
    return {name: reordered(name, value, grouped_by_rank, config, tensor) for name, value in state.items()}


def reordered(name: str, value: Any, order: Order, config: Config, tensor: int) -> Any:
    """Return a value with its rows in another order; every rank that holds a shard of it calls this."""
    if layout_rows(name, config, tensor) is None or not isinstance(value, DTensor) or value.ndim == 0:
        return value
    # Rows change ranks, so the whole tensor is gathered, one at a time.
    return shard_of(order(name, value.full_tensor(), config, tensor), value)
