"""What LitGPT's scripts do not do; asked at composition, so neither torch nor LitGPT here."""

from __future__ import annotations

from jobs.layout import MODEL_AXES, degree_of, layout_of
from jobs.plan.litgpt_arguments import Script, script_of
from jobs.plan.rules.native import narrow_weights_have_narrow_arithmetic
from jobs.plan.rules.native_only import choices_are_native
from jobs.plan.rules.rule import Rule
from jobs.schema import INSTRUCTIONS, ActivationCheckpointing, Run


def ranks_only_shard(run: Run) -> str | None:
    """Several ranks are FSDP as the script has it, and nothing else."""
    p, script = run.parallelism, script_of(run)
    layout = layout_of(run)
    if any(degree_of(run, axis) > 1 and run.engine.kind not in axis.engines for axis in MODEL_AXES):
        given = " ".join(f"{axis.field}={degree_of(run, axis)}" for axis in MODEL_AXES)
        return (
            f"engine=litgpt has data parallelism only, and parallelism={p.name} has {given}. "
            f"Type parallelism={sharding_of(script)}, or engine=native."
        )
    shard = run.ranks_per_node if script is Script.pretrain else run.ranks
    if layout.dp_shard != shard:
        whole = "the ranks of a node" if script is Script.pretrain else "all ranks"
        return (
            f"engine=litgpt: {script.name} shards weights over {whole} (FSDP), and parallelism={p.name} does not. Type "
            f"parallelism={sharding_of(script)}, or engine=native."
        )
    return None


def sharding_of(script: Script) -> str:
    """What the script does on several ranks, as a parallelism of ours."""
    return "fsdp_hybrid" if script is Script.pretrain else "fsdp_full"


def nodes_have_gpus(run: Run) -> str | None:
    """On CPUs FSDP2 stands in for Fabric's FSDP; its mesh there has no copies."""
    if script_of(run) is Script.pretrain and run.nodes > 1 and not run.cluster.gpus:
        return (
            f"engine=litgpt: pretrain on nodes={run.nodes} needs GPUs, and cluster={run.cluster.name} has none. Type "
            "nodes=1, or choose a cluster with GPUs."
        )
    return None


def adapters_have_instructions(run: Run) -> str | None:
    """LitGPT's adapters are trained by a script for instruction data."""
    if run.job.lora is not None and run.data.source not in INSTRUCTIONS:
        return (
            f"engine=litgpt trains adapters on instruction data, and data.source={run.data.source.name} is text. Type "
            "data=alpaca, data=pubmedqa or data=docstrings, or job.lora=null."
        )
    if run.job.lora is not None and run.job.lora.alpha != int(run.job.lora.alpha):
        return (
            f"engine=litgpt takes whole numbers as job.lora.alpha, not {run.job.lora.alpha:g}. Type job.lora.alpha=16."
        )
    return None


def clipping_is_the_scripts(run: Run) -> str | None:
    """Pretraining wants a norm, fine-tuning refuses one."""
    script, norm = script_of(run), run.job.clip_norm
    if script is Script.pretrain and norm is None:
        return "engine=litgpt: pretrain always clips gradients, and job.clip_norm is null. Type job.clip_norm=1.0."
    if script is not Script.pretrain and norm is not None:
        return (
            f"engine=litgpt: {script.name} does not clip gradients (job.clip_norm={norm:g}). Type job.clip_norm=null, "
            "or engine=native."
        )
    return None


def schedule_is_the_scripts(run: Run) -> str | None:
    """Fine-tuning divides by the warm-up and ends its cosine at zero."""
    job, script = run.job, script_of(run)
    if script is Script.pretrain:
        return None
    if job.min_learning_rate:
        return (
            f"engine=litgpt: {script.name} ends its learning rate at 0, not at job.min_learning_rate="
            f"{job.min_learning_rate:g}. Type job.min_learning_rate=0, or engine=native."
        )
    if job.warmup_steps == 0:
        return f"engine=litgpt: {script.name} divides by job.warmup_steps. Type job.warmup_steps=1 or more."
    return None


def activations_are_the_scripts(run: Run) -> str | None:
    """Fine-tuning on several ranks computes activations again, everything else keeps them."""
    script, chosen = script_of(run), run.engine.activation_checkpointing
    again = script is not Script.pretrain and run.ranks > 1
    has = ActivationCheckpointing.full if again else ActivationCheckpointing.none
    if chosen is not has:
        where = "several ranks" if run.ranks > 1 else "one rank"
        return (
            f"engine=litgpt: {script.name} on {where} has engine.activation_checkpointing={has.name}, and it is "
            f"{chosen.name} here. Type engine.activation_checkpointing={has.name}, or engine=native."
        )
    return None


def compilation_is_the_scripts(run: Run) -> str | None:
    """Pretraining compiles the model, fine-tuning does not."""
    script = script_of(run)
    compiles = script is Script.pretrain
    if run.engine.compile is not compiles:
        always = "always compiles" if compiles else "never compiles"
        return (
            f"engine=litgpt: {script.name} {always} the model. Type engine.compile={str(compiles).lower()}, or "
            "engine=native."
        )
    return None


def embeddings_are_apart(run: Run) -> str | None:
    """Fine-tuning takes embedding and head as two."""
    if run.model.tie_embeddings and script_of(run) is not Script.pretrain:
        return (
            f"engine=litgpt: {script_of(run).name} does not tie embeddings (model.tie_embeddings, {run.model.name}). "
            "Choose another model, or type engine=native."
        )
    return None


def nothing_is_saved_on_the_way(run: Run) -> str | None:
    """LitGPT's own checkpoints are not resumed by this program."""
    if run.job.checkpoint_every_steps is not None:
        return (
            "engine=litgpt saves its weights at the end only, and a run that stopped begins again "
            f"(job.checkpoint_every_steps={run.job.checkpoint_every_steps}). Type job.checkpoint_every_steps=null, or "
            "engine=native."
        )
    return None


def optimizer_is_whole(run: Run) -> str | None:
    """Megatron's name for what FSDP does here."""
    if run.engine.distributed_optimizer:
        return (
            "engine.distributed_optimizer=true is Megatron's. Type engine.distributed_optimizer=false, or engine=nemo."
        )
    return None


LITGPT: tuple[Rule, ...] = (
    ranks_only_shard,
    nodes_have_gpus,
    adapters_have_instructions,
    clipping_is_the_scripts,
    schedule_is_the_scripts,
    activations_are_the_scripts,
    compilation_is_the_scripts,
    embeddings_are_apart,
    nothing_is_saved_on_the_way,
    optimizer_is_whole,
    choices_are_native,
    narrow_weights_have_narrow_arithmetic,
)
