"""Rules of engine=nemo. Checked at composition, so without torch and NeMo."""

from __future__ import annotations

import math

from jobs.engines.native.rules import balance_has_experts
from jobs.layout import accumulation, pipeline_stages_per_rank, sequence_parallel
from jobs.parallelism import Schedule
from jobs.plan.rules import float8
from jobs.plan.rules.batch import batch_to_set, one_stage_a_rank
from jobs.plan.rules.native_only import prompts_are_native, quantized_bases_are_native
from jobs.plan.rules.rule import Rule, divisors, either, multiples_near
from jobs.schema import INSTRUCTIONS, QKV, ExpertDispatcher, LoraTarget, Mlp, NormPlace, Precision, Run

ADAPTED = {
    "linear_qkv": QKV,
    "linear_proj": (LoraTarget.projection,),
    "linear_fc1": (LoraTarget.mlp,),
    "linear_fc2": (LoraTarget.mlp,),
}
"""Megatron's matrices that NeMo adapts, and the targets that each is."""
SCHEDULES = (Schedule["1F1B"], Schedule["Interleaved1F1B"])


def schedule_is_megatrons(run: Run) -> str | None:
    """Require one of Megatron's two schedules."""
    p = run.parallelism
    if p.pipeline > 1 and p.schedule not in SCHEDULES:
        return (
            f"engine=nemo does not run parallelism.schedule={p.schedule.name}. Set parallelism.schedule=1F1B or "
            "Interleaved1F1B, or engine=native."
        )
    return None


def micro_batches_make_whole_rounds(run: Run) -> str | None:
    """Require a multiple of PP micro-batches for the interleaved schedule."""
    pipeline, count = run.parallelism.pipeline, accumulation(run)
    if not makes_whole_rounds(run, count):
        return (
            f"engine=nemo runs parallelism.schedule={run.parallelism.schedule.name} in rounds of {pipeline} "
            f"micro-batches (parallelism.pipeline), and a step has {count}. Set "
            f"{batch_to_set(run, makes_whole_rounds)}, or {one_stage_a_rank(run)}."
        )
    return None


def makes_whole_rounds(run: Run, count: int) -> bool:
    """Return whether a number of micro-batches is a multiple of PP, where the schedule is interleaved."""
    return pipeline_stages_per_rank(run) == 1 or count % run.parallelism.pipeline == 0


def loss_stays_cut(run: Run) -> str | None:
    """Require loss parallelism: Megatron's loss works on logits sharded along the vocabulary."""
    if run.parallelism.tensor > 1 and not run.parallelism.loss_parallel:
        return (
            "engine=nemo always leaves the logits sharded along the vocabulary. Set parallelism.loss_parallel=true, or "
            "engine=native."
        )
    return None


def sequence_is_cut_on_gpus_only(run: Run) -> str | None:
    """Refuse sequence parallelism on CPUs: only the norms of Transformer Engine and Apex support it."""
    if sequence_parallel(run) and not run.cluster.gpus:
        return (
            f"parallelism.sequence_parallel=true needs Transformer Engine with engine=nemo, and cluster="
            f"{run.cluster.name} has no GPUs. Set parallelism.sequence_parallel=null, or engine=native."
        )
    return None


def compiles_nothing(run: Run) -> str | None:
    """Refuse torch.compile."""
    if run.engine.compile:
        return (
            "engine=nemo has kernels of its own instead of torch.compile. Set engine.compile=false, or engine=native."
        )
    return None


def types_follow_the_arithmetic(run: Run) -> str | None:
    """Refuse engine.parameters: Megatron's and ZeRO's weights have job.precision, their optimizers a float32 copy."""
    if run.engine.parameters is not Precision.float32:
        return (
            f"engine={run.engine.kind.name} chooses the types of weights by job.precision, not by engine.parameters="
            f"{run.engine.parameters.name}. Set engine.parameters=float32, or engine=native."
        )
    return None


def gradients_are_wide_or_the_arithmetics(run: Run) -> str | None:
    """Refuse types of gradients that Megatron does not have: float32, or that of the weights in bfloat16."""
    given = run.engine.gradients
    if given is Precision.float32 or (given is Precision.bfloat16 and run.job.precision is Precision.bfloat16):
        return None
    other = ""
    if given is Precision.bfloat16:
        other = ", or job.precision=bfloat16"
    elif run.job.precision is Precision.bfloat16:
        other = ", or engine.gradients=bfloat16"
    return (
        f"engine.gradients={given.name} with job.precision={run.job.precision.name}: Megatron sums gradients in "
        f"float32, or in bfloat16 with job.precision=bfloat16. Set engine.gradients=float32{other}."
    )


def float16_is_not_scaled(run: Run) -> str | None:
    """Refuse float16, whose loss scale the recipe does not set."""
    if run.job.precision is Precision.float16:
        return (
            "engine=nemo computes in bfloat16 or float32 here, not in job.precision=float16. Set job.precision="
            "bfloat16, or engine=native."
        )
    return None


def model_is_megatrons(run: Run) -> str | None:
    """Refuse what Megatron does not have, or what the recipe does not set."""
    model, scaling = run.model, run.model.rope_scaling
    short = scaling is not None and scaling.is_yarn and scaling.factor <= 1 and scaling.attention_factor != 1
    others = {
        "parallel_residual": model.parallel_residual,
        f"norm_place={model.norm_place.name}": model.norm_place is not NormPlace.before,
        "norm_unit_offset": model.norm_unit_offset,
        "norm_qk_whole": model.norm_qk_whole,
        "norm_rotated": model.norm_rotated,
        f"mlp={model.mlp.name}": model.mlp is Mlp.GemmaMLP,
        "attention_scores_scalar": model.attention_scores_scalar is not None,
        "chunked_window": model.chunked_window,
        "rope_local_base": model.rope_local_base is not None,
        "rope_in_windows": model.rope_in_windows,
        "scale_embeddings": model.scale_embeddings,
        "attention_softcap": model.attention_softcap is not None,
        "logits_softcap": model.logits_softcap is not None,
        "rope_scaling without low_freq_factor": scaling is not None and scaling.is_linear,
        "rope_scaling.attention_factor with a factor of at most 1": short,
        "query_temperature": model.query_temperature is not None,
        "latent": model.latent is not None,
        "router": model.router is not None,
        "shared_experts": model.shared_experts > 0,
        "dense_layers": model.dense_layers > 0,
        "experts_every": model.experts_every > 1,
    }
    if found := [f"model.{key}" for key, is_so in others.items() if is_so]:
        return (
            f"engine=nemo does not have {', '.join(found)} yet ({model.name}). Choose another model, or set "
            "engine=native."
        )
    return None


def windows_are_whole(run: Run) -> str | None:
    """Refuse windows and sinks of attention with context parallelism, whose ring in Transformer Engine has neither."""
    model, context = run.model, run.parallelism.context
    found = [f"model.{key}" for key in ("sliding_window", "attention_sinks") if getattr(model, key)]
    if context == 1 or not found:
        return None
    return (
        f"engine=nemo has no {' and '.join(found)} with parallelism.context={context} ({model.name}). Set "
        "parallelism.context=1, or engine=native."
    )


def experts_have_their_layout(run: Run) -> str | None:
    """Require of experts what Megatron does: no CP beside EP, biases that no rank divides, sequence parallelism."""
    model, p = run.model, run.parallelism
    if not model.experts:
        return None
    if p.expert > 1 and p.context > 1:
        return (
            f"engine=nemo divides experts over context-parallel ranks first, and parallelism.expert={p.expert} x "
            f"parallelism.context={p.context} are other ranks here. Set parallelism.context=1, or parallelism.expert=1."
        )
    if model.bias and p.tensor > 1:
        return (
            f"engine=nemo does not divide experts that have biases (model.bias, {model.name}), and parallelism.tensor="
            f"{p.tensor} would. Set parallelism.tensor=1, or engine=native."
        )
    if p.tensor > 1 and not sequence_parallel(run):
        return (
            f"engine=nemo trains experts under parallelism.tensor={p.tensor} with sequence parallelism only. Set "
            f"parallelism.{'sequence_parallel=true' if run.cluster.gpus else 'tensor=1'}, or engine=native."
        )
    return None


def dispatcher_has_its_place(run: Run) -> str | None:
    """Require for DeepEP whole experts on several ranks, GPUs, and bfloat16, which GPUs have that it runs on.

    With TP Megatron would send a token to all ranks that have a part of its experts, which is not predicted here.
    """
    if run.engine.expert_dispatcher is ExpertDispatcher.all_to_all:
        return None
    p, job = run.parallelism, run.job
    asked, off = "engine.expert_dispatcher=deepep", "engine.expert_dispatcher=all_to_all"
    if p.expert == 1:
        divided = "parallelism.expert above 1" if run.model.experts else f"experts, and {run.model.name} has none"
        return f"{asked} needs {divided}. Set {off}."
    if p.tensor > 1:
        return f"{asked} needs whole experts, and parallelism.tensor={p.tensor} divides them. Set {off}."
    if job.precision is not Precision.bfloat16:
        return f"{asked} sends bfloat16, not job.precision={job.precision.name}. Set job.precision=bfloat16, or {off}."
    if not run.cluster.gpus:
        return f"{asked} needs NVIDIA GPUs, and cluster={run.cluster.name} has none. Set {off}."
    return None


def balance_counts_whole_sequences(run: Run) -> str | None:
    """Require of a balance loss what the native engine does, and rows that are labels throughout.

    Megatron multiplies the loss by the tokens of a micro-batch, and divides all gradients by the labels of the batch.
    """
    if (wrong := balance_has_experts(run)) is not None or run.job.expert_balance_loss == 0:
        return wrong
    if run.data.source not in INSTRUCTIONS:
        return None
    return (
        f"job.expert_balance_loss={run.job.expert_balance_loss:g} with engine=nemo needs rows of text, and data.source="
        f"{run.data.source.name} has labels in a part of each. Set job.expert_balance_loss=0, or engine=native."
    )


def adapters_are_not_of_experts(run: Run) -> str | None:
    """Refuse adapters of experts."""
    lora = run.job.lora
    if not run.model.experts or lora is None or LoraTarget.mlp not in lora.targets:
        return None
    others = ",".join(target.name for target in lora.targets if target is not LoraTarget.mlp)
    return (
        f"engine=nemo has no adapters of experts (job.lora.targets has mlp, {run.model.name}). Set job.lora.targets="
        f"[{others or 'query,key,value'}], or engine=native."
    )


def tensor_divides_adapters(run: Run) -> str | None:
    """Require that TP divides the rank of adapters."""
    lora, tensor = run.job.lora, run.parallelism.tensor
    if lora is not None and lora.rank % tensor:
        return (
            f"parallelism.tensor={tensor} does not divide job.lora.rank={lora.rank}. Use "
            f"{either(divisors(lora.rank))}, or set job.lora.rank to a multiple of {tensor}."
        )
    return None


def adapters_are_of_whole_matrices(run: Run) -> str | None:
    """Refuse adapters of a part of query, key and value, which Megatron has as one matrix."""
    qkv, targets = ADAPTED["linear_qkv"], [] if run.job.lora is None else run.job.lora.targets
    found = [target.name for target in qkv if target in targets]
    if not 0 < len(found) < len(qkv):
        return None
    whole = ",".join(target.name for target in LoraTarget if target in (*qkv, *targets))
    return (
        "engine=nemo has query, key and value as one matrix with one adapter, and job.lora.targets has "
        f"{' and '.join(found)} only. Set job.lora.targets=[{whole}], or engine=native."
    )


def float8_is_possible(run: Run) -> str | None:
    """Require for products in few bits, which Transformer Engine computes, a model and a GPU that have them."""
    if (wrong := float8.recipe_is_the_engines(run)) is not None or not run.engine.float8:
        return wrong
    return (
        float8.model_is_suitable(run)
        or float8.all_weights_train(run)
        or tokens_fill_float8(run)
        or float8.gpu_is_suitable(run)
    )


def tokens_fill_float8(run: Run) -> str | None:
    """Require rows of activations that Transformer Engine multiplies in few bits: whole units of tokens of a rank.

    The gradient of a weight sums over tokens, which blocks of MXFP8 and NVFP4 divide, too.
    """
    job, cut = run.job, run.parallelism.context * (run.parallelism.tensor if sequence_parallel(run) else 1)
    rows = float8.needs_of(run).rows
    tokens, unit = job.micro_batch_size * job.sequence_length / cut, rows * cut
    if tokens % rows == 0:
        return None
    near = multiples_near(job.sequence_length, unit // math.gcd(unit, job.micro_batch_size))
    parts = f" / {cut} ranks" if cut > 1 else ""
    return (
        f"{float8.asked(run)} requires a multiple of {rows} tokens on a rank, and job.micro_batch_size="
        f"{job.micro_batch_size} x {job.sequence_length}{parts} = {tokens:g}. Set job.sequence_length={near}, or "
        f"{float8.off(run)}."
    )


RULES: tuple[Rule, ...] = (
    schedule_is_megatrons,
    micro_batches_make_whole_rounds,
    loss_stays_cut,
    sequence_is_cut_on_gpus_only,
    compiles_nothing,
    prompts_are_native,
    quantized_bases_are_native,
    types_follow_the_arithmetic,
    gradients_are_wide_or_the_arithmetics,
    float16_is_not_scaled,
    model_is_megatrons,
    windows_are_whole,
    experts_have_their_layout,
    dispatcher_has_its_place,
    balance_counts_whole_sequences,
    float8_is_possible,
    tensor_divides_adapters,
    adapters_are_of_whole_matrices,
    adapters_are_not_of_experts,
)
