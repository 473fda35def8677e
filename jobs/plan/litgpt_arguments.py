"""What LitGPT is asked to do: which of its scripts, with which arguments. No torch here, since `plan` shows it.

Arguments that are not given keep LitGPT's own defaults: validation, its example, logs, the weights saved at the end.
"""

from __future__ import annotations

import json
import shlex
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from jobs.layout import accumulation
from jobs.plan.litgpt_names import litgpt_fields
from jobs.schema import INSTRUCTIONS, Precision, Run, Source

PRECISIONS = {
    (Precision.float32, Precision.float32): "32-true",
    (Precision.bfloat16, Precision.float32): "bf16-mixed",
    (Precision.bfloat16, Precision.bfloat16): "bf16-true",
}
"""LitGPT's names for `job.precision` and `engine.parameters`."""
READ = "0.5.12"
"""The version whose code these arguments were read from (litgpt/args.py)."""
START, OUT = "start", "out"
"""Directories of a run's litgpt/: the checkpoint it starts from, and what LitGPT writes."""


class Script(Enum):
    """LitGPT's scripts, by its names on the command line."""

    finetune_full = "litgpt.finetune.full"
    finetune_lora = "litgpt.finetune.lora"
    pretrain = "litgpt.pretrain"


def script_of(run: Run) -> Script:
    """Instruction data are fine-tuned on, with adapters or without; text and random tokens are pretrained on."""
    if run.job.lora is not None:
        return Script.finetune_lora
    return Script.finetune_full if run.data.source in INSTRUCTIONS else Script.pretrain


def arguments_of(run: Run, where: Path, steps: int | None = None, steps_per_epoch: int | None = None) -> dict[str, Any]:
    """Arguments of the script's `setup`, as its command line has them; model and data come from the run directory.

    `steps` and `steps_per_epoch` are None before the data are tokenized; what follows from them is then left out.
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
        tokenizer = {} if run.data.source is Source.random else {"tokenizer_dir": str(start)}
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
        # One more pass than the steps begin in; with job.epochs there are so many.
        train["epochs"] = -(-steps // steps_per_epoch)
    if job.lora:
        common |= {"lora_r": job.lora.rank, "lora_alpha": int(job.lora.alpha), "lora_dropout": job.lora.dropout}
    return common | {"checkpoint_dir": str(start)}


def command(run: Run, arguments: dict[str, Any]) -> list[str]:
    """The command line that gives LitGPT these arguments, its data aside."""
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
    """What `plan` says of the call, for a person."""
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
        "run's order as data. In words of its command line, less what follows from the samples (train.epochs, "
        f"train.max_tokens):\n{lines}\n"
        f"litgpt {READ}: train.global_batch_size={gbs} means the samples of a step over all devices and nodes, {gbs} / "
        f"({ranks}) / {micro} = {per_rank} micro-batches a rank. A run under a version that makes another number of "
        "them refuses to start."
    )
