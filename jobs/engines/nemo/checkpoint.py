"""Checkpoints in Megatron's distributed format by NeMo's own reader and writer, and the export to LitGPT.

With LoRA a checkpoint contains the adapters only: the base weights come from job.init_from again.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import yaml
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.core import CheckpointingException
from megatron.core.dist_checkpointing.dict_utils import merge
from megatron.core.models.gpt.gpt_model import GPTModel
from nemo.lightning.pytorch.strategies import MegatronStrategy
from nemo.utils.model_utils import unwrap_model
from torch.distributed.checkpoint.api import CheckpointException

from jobs.engines.litgpt.names import litgpt_fields
from jobs.engines.nemo.weights import ADAPTER, litgpt_weights
from jobs.errors import CheckpointError
from jobs.lease import Lease
from jobs.output import write_file
from jobs.plan.cost import weights_bytes
from jobs.runtime.checkpoints.directory import (
    group_of_files,
    keep_newest,
    met_by_ranks,
    save_archive,
    together,
    write_sums,
    written_aside,
)
from jobs.runtime.checkpoints.pickles import MALFORMED, load_as_data, load_weights
from jobs.runtime.checkpoints.sums import sum_of
from jobs.runtime.exchange import broadcast
from jobs.schema import Run


def save(run: Run, final: Path, lease: Lease, strategy: MegatronStrategy) -> None:
    """Save weights and optimizer, then remove old checkpoints; every rank calls it. Raise CheckpointError."""
    metadata = strategy.sharded_state_dict_metadata
    state = sharded_state(run, strategy, metadata, loading=False)
    try:
        with written_aside(final, lease) as writing:
            strategy.checkpoint_io.save_checkpoint(state, writing, storage_options={"content_metadata": metadata})
            sums: dict[str, int] = {}
            # A rank that cannot read its files back fails together with the others, which would wait for its sums.
            together(lambda: sums.update(own_sums(writing)), None)
            write_sums(writing, sums)
    except (CheckpointingException, OSError, RuntimeError) as error:
        raise CheckpointError(f"Checkpoint {final} could not be written ({error}). The last good one stays.") from error
    except CheckpointException as error:
        # The writers are processes and pass on only the text of an error, such as "unexpected pos" for a full disk.
        raise CheckpointError(
            f"Checkpoint {final} could not be written ({reasons_of_first_rank(error)}). The last good one stays. "
            f"Is the disk full? Run df -h {final.parent}"
        ) from error
    if dist.get_rank() == 0:
        keep_newest(final.parent, run.job.keep_checkpoints)


def own_sums(checkpoint: Path) -> dict[str, int]:
    """Return the sums of this rank's files: Megatron writes them in other processes, so they are read again."""
    own = f"__{dist.get_rank()}_"
    first = dist.get_rank() == 0
    files = [file for file in checkpoint.rglob("*") if file.is_file()]
    files = [file for file in files if file.name.startswith(own) or (first and not file.name.startswith("__"))]
    return {file.relative_to(checkpoint).as_posix(): sum_of(file) for file in files}


def load(run: Run, path: Path, strategy: MegatronStrategy) -> None:
    """Restore weights and optimizer in place; every rank calls it. Raise CheckpointError."""
    load_as_data()
    try:
        metadata = strategy.unwrapped_checkpoint_io.load_content_metadata(path)
        state = sharded_state(run, strategy, metadata, loading=True)
        state = strategy.checkpoint_io.load_checkpoint(path, sharded_state_dict=state)
    except (CheckpointingException, CheckpointException, OSError, RuntimeError, *MALFORMED) as error:
        raise CheckpointError(f"Checkpoint {path} cannot be read: {met_by_ranks(error)}.") from error
    strategy.load_model_state_dict(state, strict=run.job.lora is None)
    (optimizer,) = strategy.optimizers
    optimizer.load_state_dict(by_optimizer(run, state["optimizer"]))


def by_optimizer(run: Run, state: dict[str | int, Any]) -> dict[str | int, Any]:
    """Return a loaded state in the structure of this run, whatever the EP of the run that saved it.

    With EP Megatron has an optimizer of the experts, number 1, after that of all other parameters, and else one of
    all. Tensors are loaded by name; what they have in common, as the number of the step, lies where it was saved.
    """
    others = {name: part for name, part in state.items() if not isinstance(name, int)}
    if run.parallelism.expert == 1:
        return merge(others, state[0]) if 0 in state else state
    if not others:
        return state
    found: dict[str | int, Any] = {number: merge(state[number], copy.deepcopy(others)) for number in (0, 1)}
    # A distributed optimizer has its groups of parameters one level deeper.
    for group in found[1].get("optimizer", found[1])["param_groups"]:
        group["is_expert_parallel"] = True
    return found


def reasons_of_first_rank(error: CheckpointException) -> str:
    """Return the errors of all ranks, which Megatron gives to the first one only; every rank calls it."""
    reasons: str = broadcast(met_by_ranks(error))
    return reasons


def sharded_state(run: Run, strategy: MegatronStrategy, metadata: dict[str, Any], *, loading: bool) -> dict[str, Any]:
    """Return this rank's shards as Megatron's sharded state dictionary."""
    weights = strategy.megatron_parallel.sharded_state_dict(metadata=metadata)
    return {
        "state_dict": adapters_of(weights) if run.job.lora else weights,
        "optimizer": strategy.optimizer_sharded_state_dict(is_loading=loading, metadata=metadata),
    }


def adapters_of(weights: dict[str, Any]) -> dict[str, Any]:
    """Return the adapters of a state; virtual pipeline stages are nested dictionaries."""
    return {
        name: adapters_of(value) if isinstance(value, dict) else value
        for name, value in weights.items()
        if isinstance(value, dict) or ADAPTER in name
    }


def export(run: Run, lease: Lease, strategy: MegatronStrategy, tokenizer_files: list[Path]) -> None:
    """Write a LitGPT checkpoint directory: full weights, model_config.yaml, tokenizer; every rank calls it.

    A distributed optimizer that overlaps would gather the last update in the next forward pass, which never comes.
    Raise CheckpointError on every rank where any of them cannot write.
    """
    if strategy.ddp_config.overlap_param_gather:
        strategy.megatron_parallel.force_param_sync()
    group = group_of_files(run, 3 * weights_bytes(run))
    with written_aside(lease.run.export, lease, group) as writing:
        # One replica gathers over TP. Each of its pipeline stages writes its layers to a file, and each EP rank its
        # experts; rank 0 merges them.
        writes = parallel_state.get_expert_data_parallel_rank() == 0
        together(partial(write_pipeline_stage, strategy, writing) if writes else None, group)
        first = dist.get_rank() == 0
        together(partial(merge_pipeline_stages, run, writing, tokenizer_files) if first else None, group)


def write_pipeline_stage(strategy: MegatronStrategy, writing: Path) -> None:
    """Write the weights of this pipeline and EP rank to a file of its own; all TP ranks of the stage call it."""
    state = dict(pipeline_stage_weights(strategy))
    if parallel_state.get_tensor_model_parallel_rank() == 0:
        stage = parallel_state.get_pipeline_model_parallel_rank()
        save_archive(state, writing / f"stage{stage}-{parallel_state.get_expert_model_parallel_rank()}.pth")


def merge_pipeline_stages(run: Run, writing: Path, tokenizer_files: list[Path]) -> None:
    """Replace the files of the pipeline stages by a checkpoint directory of LitGPT's."""
    stages = sorted(writing.glob("stage*.pth"))
    whole: dict[str, torch.Tensor] = {}
    for stage in stages:
        whole |= load_weights(stage)
    if run.model.tie_embeddings:
        whole["transformer.wte.weight"] = whole["lm_head.weight"]
    save_archive(whole, writing / "lit_model.pth")
    for stage in stages:
        stage.unlink()
    write_file(writing / "model_config.yaml", yaml.safe_dump(litgpt_fields(run.model)))
    for file in tokenizer_files:
        shutil.copy(file, writing)


def pipeline_stage_weights(strategy: MegatronStrategy) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield this pipeline rank's weights by LitGPT's names."""
    for model in models(strategy):
        yield from litgpt_weights(model)


def models(strategy: MegatronStrategy) -> list[GPTModel]:
    """Return this rank's virtual pipeline stages without the wrappers of NeMo and Megatron."""
    return [unwrap_model(chunk.module) for chunk in strategy.megatron_parallel]
