"""Rules of engine=deepspeed. Checked at composition, so without torch and DeepSpeed."""

from __future__ import annotations

from jobs.engines.deepspeed.configuration import settings_of, stage_of
from jobs.engines.litgpt.rules import float16_has_gpus
from jobs.engines.nemo.rules import types_follow_the_arithmetic
from jobs.layout import degree_of, degree_product
from jobs.parallelism import MODEL_AXES
from jobs.plan.rules.native_only import latents_and_routers_are_native, prompts_are_native
from jobs.plan.rules.rule import Rule, undivided
from jobs.schema import Offload, Precision, Run


def ranks_are_data_parallel(run: Run) -> str | None:
    """Refuse TP, PP and CP."""
    p = run.parallelism
    if degree_product(run, MODEL_AXES) > 1:
        given = " ".join(f"{axis.field}={degree_of(run, axis)}" for axis in MODEL_AXES)
        ones = " ".join(undivided(run))
        return (
            f"engine=deepspeed has data parallelism only, and parallelism={p.name} has {given}. Set parallelism=zero3 "
            f"{ones}, or engine=native."
        )
    return None


def narrow_types_are_partitioned(run: Run) -> str | None:
    """Refuse 16 bits at stage 0.

    DeepSpeed 0.19 makes its optimizer's state by an update without gradients there, so that Adam's correction of its
    means is one step ahead, and losses are wrong by 0.2.
    """
    if run.job.precision is not Precision.float32 and stage_of(run) == 0:
        return (
            f"engine=deepspeed computes wrong updates in job.precision={run.job.precision.name} without partitions "
            f"(parallelism={run.parallelism.name} is ZeRO stage 0): Adam's first step is counted twice. Set "
            "parallelism=zero1, zero2 or zero3, or job.precision=float32."
        )
    return None


def offload_has_partitions(run: Run) -> str | None:
    """Require the stage that can move what it partitions, and a directory for NVMe."""
    chosen, stage = settings_of(run), stage_of(run)
    moved = {"offload_optimizer": chosen.offload_optimizer, "offload_param": chosen.offload_param}
    for name, place in moved.items():
        least = 1 if name == "offload_optimizer" and place is Offload.cpu else 3
        if place is not Offload.none and stage < least:
            stages = "zero1, zero2 or zero3" if least == 1 else "zero3"
            return (
                f"engine.deepspeed.{name}={place.name} moves what ZeRO stage {least} partitions, and parallelism="
                f"{run.parallelism.name} is stage {stage}. Set parallelism={stages}, or engine.deepspeed.{name}=none."
            )
    on_nvme = [name for name, place in moved.items() if place is Offload.nvme]
    if on_nvme and chosen.nvme_path is None:
        return (
            f"engine.deepspeed.{on_nvme[0]}=nvme writes files, and engine.deepspeed.nvme_path is not set. Set "
            "engine.deepspeed.nvme_path=DIRECTORY on a disk of each node."
        )
    if chosen.nvme_path is not None and not on_nvme:
        return (
            f"engine.deepspeed.nvme_path={chosen.nvme_path} is set, and nothing is offloaded to nvme. Set "
            "engine.deepspeed.nvme_path=null."
        )
    return None


def compiles_nothing(run: Run) -> str | None:
    """Refuse torch.compile, which the hooks of ZeRO break into pieces."""
    if run.engine.compile:
        return "engine=deepspeed runs layers eagerly. Set engine.compile=false, or engine=native."
    return None


def no_adapters(run: Run) -> str | None:
    """Refuse adapters."""
    if run.job.lora is not None:
        return (
            "engine=deepspeed trains all weights, not adapters (job.lora). Set job=finetune_full, engine=native, "
            "engine=nemo, or engine=litgpt."
        )
    return None


def model_is_dense_and_untied(run: Run) -> str | None:
    """Refuse experts and tied embeddings."""
    if run.model.experts:
        return (
            f"engine=deepspeed does not train mixtures of experts yet ({run.model.name} has {run.model.experts} "
            "experts). Choose a dense model, or set engine=native."
        )
    if run.model.tie_embeddings:
        return (
            f"engine=deepspeed does not tie embeddings (model.tie_embeddings, {run.model.name}). Choose another model, "
            "or set engine=native."
        )
    return None


RULES: tuple[Rule, ...] = (
    latents_and_routers_are_native,
    ranks_are_data_parallel,
    narrow_types_are_partitioned,
    float16_has_gpus,
    offload_has_partitions,
    compiles_nothing,
    no_adapters,
    prompts_are_native,
    types_follow_the_arithmetic,
    model_is_dense_and_untied,
)
