"""The script of LitGPT and its arguments for a run. No torch here, since `plan` prints them.

Other arguments keep LitGPT's defaults: validation, its example, logs, saving the weights at the end.
"""

from __future__ import annotations

import json
import shlex
from enum import Enum
from pathlib import Path
from typing import Any

from jobs.engines.litgpt.names import litgpt_fields
from jobs.layout import accumulation
from jobs.schema import INSTRUCTIONS, Lora, LoraTarget, Precision, Run, Source

PRECISIONS = {
    (Precision.float32, Precision.float32): "32-true",
    (Precision.bfloat16, Precision.float32): "bf16-mixed",
    (Precision.bfloat16, Precision.bfloat16): "bf16-true",
    (Precision.float16, Precision.float32): "16-mixed",  # with torch's dynamic loss scaling
}
"""LitGPT's names for `job.precision` and `engine.parameters`."""
READ = "0.5.12"
"""The LitGPT version that these arguments were written for (litgpt/args.py)."""
START, OUT = "start", "out"
"""Directories of a run's litgpt/: the checkpoint it starts from, and what LitGPT writes."""


class Script(Enum):
    """LitGPT's scripts, by its names on the command line."""

    finetune_full = "litgpt.finetune.full"
    finetune_lora = "litgpt.finetune.lora"
    pretrain = "litgpt.pretrain"


def script_of(run: Run) -> Script:
    """Return the script: fine-tuning for instruction data or adapters, pretraining for text and random tokens."""
    if run.job.lora is not None:
        return Script.finetune_lora
    return Script.finetune_full if run.data.source in INSTRUCTIONS else Script.pretrain


def arguments_of(run: Run, where: Path, steps: int | None = None, steps_per_epoch: int | None = None) -> dict[str, Any]:
    """Return the arguments of the script's `setup` as on its command line; model and data come from the run directory.

    `steps` and `steps_per_epoch` are None before the data is tokenized; arguments that depend on them are left out.
    """
    job, script = run.job, script_of(run)
    start, out = where / START, where / OUT
    optimizer = {"lr": job.learning_rate, "betas": [job.beta1, job.beta2], "weight_decay": job.weight_decay}
    train: dict[str, Any] = {
        "save_interval": None,
        "global_batch_size": run.global_batch_size,
        "micro_batch_size": job.micro_batch_size,
        "lr_warmup_steps": job.warmup_steps,
        "max_seq_length": job.sequence_length,
    }
    common: dict[str, Any] = {
        "out_dir": str(out),
        "precision": PRECISIONS[job.precision, run.engine.parameters],
        "devices": run.ranks_per_node,
        "num_nodes": run.nodes,
        "seed": job.seed,
        "optimizer": {"class_path": "torch.optim.AdamW", "init_args": optimizer},
        "train": train,
    }
    if script is Script.pretrain:
        train |= {
            "max_norm": job.clip_norm,
            "min_lr": job.min_learning_rate,
            "tie_embeddings": run.model.tie_embeddings,
        }
        if steps:
            train["max_tokens"] = steps * run.global_batch_size * job.sequence_length
        has_none = run.data.source is Source.random or (
            run.data.source is Source.megatron_binary and run.data.tokenizer is None
        )
        tokenizer = {} if has_none else {"tokenizer_dir": str(start)}
        return (
            common
            | tokenizer
            | {
                "model_name": run.model.name,
                "model_config": litgpt_fields(run.model),
                "initial_checkpoint_dir": str(start),
                "logger_name": "csv",
            }
        )
    train["max_steps"] = job.steps
    if steps and steps_per_epoch:
        # Epochs that contain the steps: ceil(steps / steps_per_epoch).
        train["epochs"] = -(-steps // steps_per_epoch)
    if job.lora:
        common |= lora_arguments(job.lora)
    return common | {"checkpoint_dir": str(start)}


def lora_arguments(lora: Lora) -> dict[str, Any]:
    """Return LitGPT's arguments of adapters, which it also keeps next to them."""
    # LitGPT's type of alpha is a whole number.
    alpha = int(lora.alpha) if lora.alpha == int(lora.alpha) else lora.alpha
    sizes = {"lora_r": lora.rank, "lora_alpha": alpha, "lora_dropout": lora.dropout}
    return sizes | {f"lora_{target.name}": target in lora.targets for target in LoraTarget}


def command(run: Run, arguments: dict[str, Any]) -> list[str]:
    """Return the command line with these arguments, without data."""
    given = dict(arguments)
    first = given.pop("checkpoint_dir", None) or given.pop("model_name")
    words = ["litgpt", script_of(run).name, first]
    train = given.pop("train")
    given |= {f"train.{key}": value for key, value in train.items()}
    for key, value in given.items():
        text = json.dumps(value) if isinstance(value, dict) else "null" if value is None else str(value)
        words.append(f"--{key}={text}")
    return words


def described(run: Run) -> str:
    """Return the description of the call that `plan` prints."""
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 (only to describe: it brings email)

    micro, per_rank = run.job.micro_batch_size, accumulation(run)
    try:
        installed = version("litgpt")
    except PackageNotFoundError:
        installed = f"{READ} (not installed here)"
    words = command(run, arguments_of(run, Path("RUN_DIR/litgpt")))
    lines = " \\\n    ".join([shlex.join(words[:3]), *(shlex.join([word]) for word in words[3:])])
    gbs, ranks = run.global_batch_size, f"{run.ranks_per_node} x {run.nodes}"
    return (
        f"{run.name}: litgpt {installed} is called as {script_of(run).value}.setup, with the run's samples in the "
        "run's order. As a command line, without arguments that depend on the samples (train.epochs, "
        f"train.max_tokens):\n{lines}\n"
        f"litgpt {READ}: train.global_batch_size={gbs} counts the samples of a step over all devices and nodes: {gbs} "
        f"/ ({ranks}) / {micro} = {per_rank} micro-batches per rank. With a version that derives another number "
        "the run does not start."
    )
