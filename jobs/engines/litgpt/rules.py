"""Rules of engine=litgpt: limits of LitGPT's scripts. Checked at composition, so without torch and LitGPT."""

from __future__ import annotations

from jobs.engines.litgpt.arguments import Script, script_of
from jobs.engines.native.rules import narrow_weights_have_narrow_arithmetic
from jobs.layout import degree_of, degree_product, has_gpus, layout_of
from jobs.parallelism import DP_SHARD, MODEL_AXES, Sharding
from jobs.plan.rules.native_only import latents_and_routers_are_native, prompts_are_native, quantized_bases_are_native
from jobs.plan.rules.rule import Rule, either, undivided
from jobs.schema import INSTRUCTIONS, ActivationCheckpointing, Precision, Run, Source


def ranks_only_shard(run: Run) -> str | None:
    """Require the script's own FSDP sharding on several ranks."""
    p, script = run.parallelism, script_of(run)
    layout = layout_of(run)
    if degree_product(run, MODEL_AXES) > 1:
        given = " ".join(f"{axis.field}={degree_of(run, axis)}" for axis in MODEL_AXES)
        return (
            f"engine=litgpt has data parallelism only, and parallelism={p.name} has {given}. "
            f"Set {sharding_of(run)}, or engine=native."
        )
    shard = run.ranks_per_node if script is Script.pretrain else run.ranks
    if layout.degree(DP_SHARD) != shard:
        whole = "the ranks of a node" if script is Script.pretrain else "all ranks"
        return (
            f"engine=litgpt: {script.name} shards weights over {whole} (FSDP), and parallelism={p.name} does not. Set "
            f"{sharding_of(run)}, or engine=native."
        )
    return None


def sharding_of(run: Run) -> str:
    """Return the assignments of the script's sharding: of the group `parallelism`, and of keys that would remain."""
    p = run.parallelism
    name, sharding = (
        ("fsdp_hybrid", Sharding.HYBRID_SHARD)
        if script_of(run) is Script.pretrain
        else ("fsdp_full", Sharding.FULL_SHARD)
    )
    other = [f"parallelism.sharding={sharding.name}"] if p.sharding not in {None, sharding} else []
    return " ".join([f"parallelism={name}", *undivided(run), *other])


def nodes_have_gpus(run: Run) -> str | None:
    """Require GPUs for pretraining on several nodes: on CPUs FSDP2 replaces Fabric's FSDP, without replicas."""
    if script_of(run) is Script.pretrain and run.nodes > 1 and not run.cluster.gpus:
        return (
            f"engine=litgpt: pretrain on nodes={run.nodes} needs GPUs, and cluster={run.cluster.name} has none. Set "
            "nodes=1, or choose a cluster with GPUs."
        )
    return None


def adapters_have_instructions(run: Run) -> str | None:
    """Require instruction data and a whole alpha for adapters."""
    if run.job.lora is not None and run.data.source not in INSTRUCTIONS:
        instructions = either(f"data={source.name}" for source in Source if source in INSTRUCTIONS)
        return (
            f"engine=litgpt trains adapters on instruction data, and data.source={run.data.source.name} is text. Set "
            f"{instructions}, or job.lora=null."
        )
    if run.job.lora is not None and run.job.lora.alpha != int(run.job.lora.alpha):
        return (
            f"engine=litgpt takes whole numbers as job.lora.alpha, not {run.job.lora.alpha:g}. Set job.lora.alpha=16."
        )
    return None


def clipping_is_the_scripts(run: Run) -> str | None:
    """Require a clip norm for pretraining, and none for fine-tuning."""
    script, norm = script_of(run), run.job.clip_norm
    if script is Script.pretrain and norm is None:
        return "engine=litgpt: pretrain always clips gradients, and job.clip_norm is null. Set job.clip_norm=1.0."
    if script is not Script.pretrain and norm is not None:
        return (
            f"engine=litgpt: {script.name} does not clip gradients (job.clip_norm={norm:g}). Set job.clip_norm=null, "
            "or engine=native."
        )
    return None


def schedule_is_the_scripts(run: Run) -> str | None:
    """Require a warm-up and a final learning rate of 0 for fine-tuning."""
    job, script = run.job, script_of(run)
    if script is Script.pretrain:
        return None
    if job.min_learning_rate:
        return (
            f"engine=litgpt: {script.name} ends its learning rate at 0, not at job.min_learning_rate="
            f"{job.min_learning_rate:g}. Set job.min_learning_rate=0, or engine=native."
        )
    if job.warmup_steps == 0:
        return f"engine=litgpt: {script.name} divides by job.warmup_steps. Set job.warmup_steps=1 or more."
    return None


def activations_are_the_scripts(run: Run) -> str | None:
    """Require full activation checkpointing for fine-tuning on several ranks, and none otherwise."""
    script, chosen = script_of(run), run.engine.activation_checkpointing
    again = script is not Script.pretrain and run.ranks > 1
    has = ActivationCheckpointing.full if again else ActivationCheckpointing.none
    if chosen is not has:
        where = "several ranks" if run.ranks > 1 else "one rank"
        return (
            f"engine=litgpt: {script.name} on {where} has engine.activation_checkpointing={has.name}, and it is "
            f"{chosen.name} here. Set engine.activation_checkpointing={has.name}, or engine=native."
        )
    return None


def compilation_is_the_scripts(run: Run) -> str | None:
    """Require compilation for pretraining, and none for fine-tuning."""
    script = script_of(run)
    compiles = script is Script.pretrain
    if run.engine.compile is not compiles:
        always = "always compiles" if compiles else "never compiles"
        return (
            f"engine=litgpt: {script.name} {always} the model. Set engine.compile={str(compiles).lower()}, or "
            "engine=native."
        )
    return None


def embeddings_are_apart(run: Run) -> str | None:
    """Refuse tied embeddings for fine-tuning."""
    if run.model.tie_embeddings and script_of(run) is not Script.pretrain:
        return (
            f"engine=litgpt: {script_of(run).name} does not tie embeddings (model.tie_embeddings, {run.model.name}). "
            "Choose another model, or set engine=native."
        )
    return None


def frequencies_are_litgpts(run: Run) -> str | None:
    """Refuse YaRN, which LitGPT does not have."""
    if run.model.rope_scaling is not None and run.model.rope_scaling.is_yarn:
        return (
            "engine=litgpt does not scale rotary frequencies by YaRN (model.rope_scaling.beta_slow, "
            f"{run.model.name}). Choose another model, or set engine=native."
        )
    return None


def nothing_is_saved_on_the_way(run: Run) -> str | None:
    """Refuse checkpoints during training, which LitGPT's scripts do not resume."""
    if run.job.checkpoint_every_steps is not None:
        return (
            "engine=litgpt saves its weights at the end only, and a run that stopped begins again "
            f"(job.checkpoint_every_steps={run.job.checkpoint_every_steps}). Set job.checkpoint_every_steps=null, or "
            "engine=native."
        )
    return None


def float16_has_gpus(run: Run) -> str | None:
    """Refuse float16 on CPUs, where Fabric computes in bfloat16 instead, and DeepSpeed supports few."""
    if run.job.precision is Precision.float16 and not has_gpus(run):
        return (
            f"engine={run.engine.kind.name} has job.precision=float16 on GPUs only, and cluster={run.cluster.name} has "
            "none. Set job.precision=float32 or bfloat16, or engine=native."
        )
    return None


RULES: tuple[Rule, ...] = (
    latents_and_routers_are_native,
    ranks_only_shard,
    nodes_have_gpus,
    adapters_have_instructions,
    clipping_is_the_scripts,
    schedule_is_the_scripts,
    activations_are_the_scripts,
    compilation_is_the_scripts,
    embeddings_are_apart,
    frequencies_are_litgpts,
    nothing_is_saved_on_the_way,
    float16_has_gpus,
    prompts_are_native,
    quantized_bases_are_native,
    narrow_weights_have_narrow_arithmetic,
)
