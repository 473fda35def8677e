"""DeepSpeed's configuration of a run, which a user of DeepSpeed writes to ds_config.json. No torch: rules read it too.

Every value is set: DeepSpeed drops an "auto" inside zero_optimization without a message, and uses its own default.
"""

from __future__ import annotations

import sys
from typing import Any

from jobs.layout import accumulation, has_gpus
from jobs.parallelism import Sharding, Strategy
from jobs.schema import DeepSpeed, Offload, Precision, Run

STAGES = {Strategy.single: 0, Strategy.ddp: 0, Strategy.zero1: 1, Strategy.zero2: 2, Strategy.zero3: 3}
"""ZeRO's stages by `parallelism.strategy`; at stage 0 every rank holds everything, as with DDP."""
EQUIVALENTS = {
    Sharding.FULL_SHARD: "zero3",
    Sharding.SHARD_GRAD_OP: "zero2",
    Sharding.NO_SHARD: "ddp",
    Sharding.HYBRID_SHARD: "zero3",
}
"""The choices of `parallelism` with which DeepSpeed splits what FSDP splits; HYBRID_SHARD has none inside a node."""


def stage_of(run: Run) -> int:
    """Return the ZeRO stage; FSDP, which rules refuse, counts as the last."""
    return STAGES.get(run.parallelism.strategy, 3)


def settings_of(run: Run) -> DeepSpeed:
    """Return the DeepSpeed settings of a run."""
    return run.engine.deepspeed or DeepSpeed()


def configuration(run: Run) -> dict[str, Any]:
    """Return the configuration as deepspeed.initialize accepts it."""
    return {
        "train_micro_batch_size_per_gpu": run.job.micro_batch_size,
        "gradient_accumulation_steps": accumulation(run),
        "gradient_clipping": run.job.clip_norm or 0.0,
        "bf16": {"enabled": run.job.precision is Precision.bfloat16},
        "fp16": {"enabled": run.job.precision is Precision.float16},
        # torch's AdamW also where DeepSpeed would compile its own for the CPU: one update for all engines.
        "zero_force_ds_cpu_optimizer": False,
        # Never: the record has the steps.
        "steps_per_print": sys.maxsize,
        "zero_optimization": zero(run),
    }


def zero(run: Run) -> dict[str, Any]:
    """Return the section zero_optimization; null becomes what Hugging Face's Trainer fills in for "auto"."""
    chosen, hidden, stage = settings_of(run), run.model.hidden_size, stage_of(run)
    values: dict[str, Any] = {
        "stage": stage,
        "overlap_comm": chosen.overlap_comm,
        "contiguous_gradients": chosen.contiguous_gradients,
        "reduce_scatter": chosen.reduce_scatter,
        "reduce_bucket_size": filled(chosen.reduce_bucket_size, hidden * hidden),
        "allgather_partitions": chosen.allgather_partitions,
        "allgather_bucket_size": chosen.allgather_bucket_size,
        "round_robin_gradients": chosen.round_robin_gradients,
        "sub_group_size": chosen.sub_group_size,
    }
    if stage == 3:
        values |= {
            "stage3_prefetch_bucket_size": filled(chosen.stage3_prefetch_bucket_size, 9 * hidden * hidden // 10),
            "stage3_param_persistence_threshold": filled(chosen.stage3_param_persistence_threshold, 10 * hidden),
            "stage3_max_live_parameters": chosen.stage3_max_live_parameters,
            "stage3_max_reuse_distance": chosen.stage3_max_reuse_distance,
            "stage3_gather_16bit_weights_on_model_save": chosen.gather_16bit_weights_on_model_save,
        }
    for name in ("offload_optimizer", "offload_param"):
        device: Offload = getattr(chosen, name)
        if device is not Offload.none:
            values[name] = {"device": device.name, "pin_memory": has_gpus(run)}
            values[name] |= {"nvme_path": chosen.nvme_path} if device is Offload.nvme else {}
    return values


def filled(chosen: int | None, otherwise: int) -> int:
    """Return a value, or another one where it is null."""
    return otherwise if chosen is None else chosen
