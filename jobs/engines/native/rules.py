"""Rules of engine=native. Checked at composition, so without torch."""

from __future__ import annotations

import re

from jobs.engines.native.optimizers.adamw_8bit import block_of, weights_of
from jobs.engines.native.optimizers.own import OF_JOB
from jobs.layout import (
    data_degree,
    degree_of,
    degree_product,
    frees_weights,
    has_gpus,
    sequence_parallel,
    uses_ddp,
    uses_fsdp,
)
from jobs.parallelism import DP_SHARD, MODEL_AXES, SHARD_GROUP_AXES, Schedule, Sharding, Strategy
from jobs.plan.cost import parameters, trained_parameters
from jobs.plan.pipeline_stages import layer_counts
from jobs.plan.rules import float8
from jobs.plan.rules.batch import one_stage_a_rank
from jobs.plan.rules.float8 import GPU_OF_THIS_MACHINE
from jobs.plan.rules.native_only import typed
from jobs.plan.rules.rule import Rule
from jobs.schema import (
    QKV,
    TEXTS,
    ActivationCheckpointing,
    Batching,
    Kernels,
    LigerKernel,
    LoraTarget,
    Loss,
    Mlp,
    Norm,
    OptimizerKind,
    Precision,
    RouterScores,
    Run,
    WeightsReader,
)

SPLIT_BACKWARD = (Schedule["InterleavedZeroBubble"], Schedule["ZBVZeroBubble"])


def split_backward_finds_what_it_needs(run: Run) -> str | None:
    """Refuse settings that break a zero-bubble schedule, which computes gradients of inputs first, of weights later.

    PyTorch refuses compiled layers there. It finds weights by identity, so weights that FSDP gathered again would get
    no gradients. Both halves would recompute activations with TP's collectives, in an order that differs by rank.
    """
    p, engine = run.parallelism, run.engine
    if p.pipeline == 1 or p.schedule not in SPLIT_BACKWARD:
        return None
    remedies = {
        "engine.compile=true": "engine.compile=false" if engine.compile else None,
        f"sharding={p.sharding and p.sharding.name} (weights freed after forward)": (
            "parallelism.sharding=SHARD_GRAD_OP" if frees_weights(run) else None
        ),
        f"engine.activation_checkpointing={engine.activation_checkpointing.name}": (
            None
            if engine.activation_checkpointing is ActivationCheckpointing.none
            else "engine.activation_checkpointing=none"
        ),
    }
    found = {what: remedy for what, remedy in remedies.items() if remedy}
    if found:
        return (
            f"parallelism.schedule={p.schedule.name} splits the backward pass and cannot do so with "
            f"{', nor with '.join(found)}. Set {' '.join(found.values())}, or {one_stage_a_rank(run)}."
        )
    return None


def compiled_layers_are_whole(run: Run) -> str | None:
    """Refuse compilation where a layer is not one graph.

    Experts take as many tokens as the router gives them. Selective checkpointing has to be inside the graph, where
    PyTorch 2.13 cannot keep the DTensors of TP.
    """
    if not run.engine.compile:
        return None
    if run.model.experts:
        return (
            f"engine.compile=true does not run with experts ({run.model.name}): their tokens depend on the data. "
            "Set engine.compile=false, or choose a dense model."
        )
    if run.parallelism.tensor > 1 and run.engine.activation_checkpointing is ActivationCheckpointing.selective:
        return (
            "engine.compile=true with engine.activation_checkpointing=selective does not run with "
            f"parallelism.tensor={run.parallelism.tensor}: PyTorch cannot keep sharded activations inside a graph. Set "
            "engine.activation_checkpointing=full or none, or engine.compile=false."
        )
    return None


def checkpointed_layers_exist(run: Run) -> str | None:
    """Refuse a number of checkpointed layers that changes nothing: without checkpointing, or above what a stage has."""
    count, mode = run.engine.checkpointed_layers, run.engine.activation_checkpointing
    if count is None:
        return None
    if mode is ActivationCheckpointing.none:
        return (
            f"engine.checkpointed_layers={count} is the number of layers that engine.activation_checkpointing applies "
            "to, which is none. Set engine.checkpointed_layers=null, or engine.activation_checkpointing=full."
        )
    most = max(layer_counts(run))
    if count > most:
        return (
            f"engine.checkpointed_layers={count} is more than the {most:,} layers of "
            f"{'a pipeline stage' if run.parallelism.pipeline > 1 else 'the model'}. Set engine.checkpointed_layers="
            f"{most}, or engine.checkpointed_layers=null for all."
        )
    return None


def gradient_sums_have_a_shard_group(run: Run) -> str | None:
    """Require FSDP for axes whose gradients are summed in its shard group (jobs.parallelism.SHARD_GROUP_AXES)."""
    p = run.parallelism
    if p.strategy is Strategy.fsdp and p.sharding is not Sharding.NO_SHARD:
        return None
    for axis in SHARD_GROUP_AXES:
        if axis is not DP_SHARD and degree_of(run, axis) > 1:
            return (
                f"{axis.key}={degree_of(run, axis)} sums gradients in FSDP's shard group, and parallelism={p.name} has "
                "none. Set parallelism.strategy=fsdp parallelism.sharding=FULL_SHARD."
            )
    return None


def there_is_something_to_read_once(run: Run) -> str | None:
    """Refuse engine.weights=node for random weights, which are not read."""
    if run.engine.weights is WeightsReader.node and run.job.init_from is None and run.job.train:
        return (
            "engine.weights=node reads job.init_from once a node, and job.init_from is not set: random weights are not "
            "read. Set job.init_from=DIRECTORY, or engine.weights=each."
        )
    return None


def narrow_weights_have_narrow_arithmetic(run: Run) -> str | None:
    """Refuse float32 arithmetic on bfloat16 weights, float32 in name only, and float16 weights."""
    if run.engine.parameters is Precision.float16:
        return (
            "engine.parameters=float16 would lose small updates and gradients; loss scaling needs weights in float32. "
            "Set engine.parameters=float32; job.precision=float16 is the type of the arithmetic."
        )
    if run.engine.parameters is Precision.bfloat16 and run.job.precision is not Precision.bfloat16:
        return (
            f"engine.parameters=bfloat16 keeps weights in bfloat16, and job.precision={run.job.precision.name} "
            "computes in another type. Set engine.parameters=float32, or job.precision=bfloat16."
        )
    return None


def gradients_have_digits(run: Run) -> str | None:
    """Refuse types of gradients that arithmetic or replicas do not have, and a type where nothing is sent or summed."""
    given = run.engine.gradients
    if given is Precision.float32:
        return None
    if given is Precision.bfloat16 and run.job.precision is Precision.bfloat16:
        if uses_fsdp(run) or uses_ddp(run) or run.job.optimizer is OptimizerKind.adamw_stochastic:
            return None
        return (
            f"engine.gradients={given.name} is the type in which replicas send gradients, and parallelism="
            f"{run.parallelism.name} has one. Set engine.gradients=float32, or parallelism=ddp."
        )
    return (
        f"engine.gradients={given.name} with job.precision={run.job.precision.name}: gradients are sent in float32, or "
        "in bfloat16 with job.precision=bfloat16. Set engine.gradients=float32."
    )


def optimizer_fits(run: Run) -> str | None:
    """Refuse settings that an optimizer does not have: weights that it would not round, another's loop, adapters."""
    optimizer = run.job.optimizer
    if run.job.optimizer_class is not None or run.job.optimizer_arguments:
        return own_class_is_alone(run)
    if optimizer is OptimizerKind.adamw:
        return None
    if optimizer is OptimizerKind.muon and not run.job.trains_all_weights:
        return (
            f"job.optimizer=muon orthogonalizes the updates of whole matrices, and job={run.job.name} trains others "
            "next to frozen ones. Set job.optimizer=adamw, or a job that trains all weights."
        )
    if optimizer is OptimizerKind.adamw_8bit and (wrong := blocks_are_whole(run)) is not None:
        return wrong
    if optimizer is OptimizerKind.adamw_stochastic and run.engine.parameters is not Precision.bfloat16:
        return (
            f"job.optimizer=adamw_stochastic rounds weights to bfloat16, and engine.parameters="
            f"{run.engine.parameters.name} keeps them in another type. Set engine.parameters=bfloat16 "
            "job.precision=bfloat16, or job.optimizer=adamw."
        )
    if run.engine.optimizer_loop is not None:
        return (
            f"engine.optimizer_loop={run.engine.optimizer_loop.name} chooses a loop of PyTorch's AdamW, which "
            f"job.optimizer={optimizer.name} does not use. Set engine.optimizer_loop=null, or job.optimizer=adamw."
        )
    return None


def own_class_is_alone(run: Run) -> str | None:
    """Refuse a class of the user that has no module or is one of two choices, and arguments that are keys of the run.

    It is imported before a submission (jobs.engines.native.optimizers.own).
    """
    job = run.job
    path, off = job.optimizer_class, "Set job.optimizer_class=null"
    if path is None:
        return (
            f"job.optimizer_arguments.{next(iter(job.optimizer_arguments))} is an argument of job.optimizer_class, "
            "which is not set. Set job.optimizer_class=PACKAGE.MODULE.CLASS, or job.optimizer_arguments={}."
        )
    if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)+", path):
        return f"job.optimizer_class={path!r} is no path as torch.optim.NAdam is. {off}, or PACKAGE.MODULE.CLASS."
    if job.optimizer is not OptimizerKind.adamw:
        return (
            f"job.optimizer={job.optimizer.name} and job.optimizer_class={path} are two rules of the update. {off}, or "
            "job.optimizer=adamw."
        )
    if run.engine.optimizer_loop is not None:
        return (
            f"engine.optimizer_loop={run.engine.optimizer_loop.name} chooses a loop of PyTorch's AdamW, which "
            f"job.optimizer_class={path} does not use. Set engine.optimizer_loop=null, or job.optimizer_class=null."
        )
    if doubled := [key for key in job.optimizer_arguments if key in OF_JOB]:
        return (
            f"job.optimizer_arguments.{doubled[0]} is {OF_JOB[doubled[0]]}, which every optimizer gets. Set that, and "
            "job.optimizer_arguments without it."
        )
    return None


def blocks_are_whole(run: Run) -> str | None:
    """Refuse moments in 8 bits of adapters and virtual tokens, and where TP would cut a block with one scale."""
    off = "Set job.optimizer=adamw"
    if not run.job.trains_all_weights:
        return (
            f"job.optimizer=adamw_8bit saves moments of all weights, and job={run.job.name} trains others next to "
            f"frozen ones, which have few. {off}, or a job that trains all weights."
        )
    tensor = run.parallelism.tensor
    for _, each in weights_of(run):
        if each.split.name == "columns" and each.columns % (tensor * (block := block_of(each.columns))):
            return (
                f"job.optimizer=adamw_8bit keeps rows of {each.columns:,} numbers in blocks of {block} with one scale, "
                f"which parallelism.tensor={tensor} would cut. {off}, or parallelism.tensor=1."
            )
    return None


UPDATED_ALONE = (OptimizerKind.adamw, OptimizerKind.adamw_8bit, OptimizerKind.adamw_stochastic)
"""Optimizers whose update of a weight needs no other one."""


def update_finds_whole_gradients(run: Run) -> str | None:
    """Refuse updates during backward where a gradient is not complete then, or the update needs more than it."""
    job, p = run.job, run.parallelism
    if not run.engine.update_in_backward:
        return None
    each, own = data_degree(run) * job.micro_batch_size, job.optimizer_class
    found = [
        (why, remedy)
        for why, remedy, wrong in (
            ("a pipeline completes gradients at the end of a step", "parallelism.pipeline=1", p.pipeline > 1),
            (
                f"a step has {run.global_batch_size // each} micro-batches, whose gradients add up",
                f"scaling.global_batch_size={each}",
                run.global_batch_size > each,
            ),
            ("job.clip_norm needs the norm of all gradients", "job.clip_norm=null", job.clip_norm is not None),
            (
                "float16 skips an update whose gradients overflow",
                "job.precision=bfloat16",
                job.precision is Precision.float16,
            ),
            (
                f"parallelism={p.name} has DDP reduce gradients later",
                f"parallelism={'fsdp_no_shard' if run.ranks > 1 else 'single'}",
                uses_ddp(run),
            ),
            ("EP divides the gradients of experts after backward", "parallelism.expert=1", p.expert > 1),
            ("job.ema_decay averages all weights at a time", "job.ema_decay=null", job.ema_decay is not None),
            (f"{own} may need all weights at a time", "job.optimizer_class=null", own is not None),
            (
                f"job.optimizer={job.optimizer.name} gathers matrices",
                "job.optimizer=adamw",
                job.optimizer not in UPDATED_ALONE,
            ),
        )
        if wrong
    ]
    if not found:
        return None
    whys = "; ".join(why for why, _ in found)
    remedies = " ".join(remedy for _, remedy in found)
    asked, off = "engine.update_in_backward=true", "engine.update_in_backward=false"
    return (
        f"{asked} updates a weight by its own gradient as soon as that is there, but {whys}. Set {remedies}, or {off}."
    )


def sums_have_products(run: Run) -> str | None:
    """Refuse sums in products where a gradient is reduced, sharded, compiled or adapted, or of another type.

    PyTorch's product into float32 of narrower operands exists on GPUs only, and has not been tried.
    """
    job, p, engine = run.job, run.parallelism, run.engine
    if not engine.sums_in_products:
        return None
    wide = job.optimizer is OptimizerKind.adamw_stochastic and engine.gradients is Precision.float32
    found = [
        (why, remedy)
        for why, remedy, wrong in (
            (
                f"parallelism={p.name} shares gradients or the model among ranks",
                "parallelism=single",
                p.strategy is not Strategy.single or p.tensor * p.pipeline > 1,
            ),
            (
                "a step has one micro-batch",
                f"scaling.global_batch_size={2 * job.micro_batch_size}",
                run.global_batch_size <= job.micro_batch_size * data_degree(run),
            ),
            ("compiled products are torch's", "engine.compile=false", engine.compile),
            ("float8 has products of its own", "engine.float8=false", engine.float8),
            (
                f"job.precision={job.precision.name} casts weights of engine.parameters={engine.parameters.name}",
                f"engine.parameters={job.precision.name}",
                job.precision is not engine.parameters,
            ),
            ("its sums are in float32", "engine.gradients=bfloat16", wide),
            (f"job={job.name} trains others next to the weights", "job=finetune_full", not job.trains_all_weights),
        )
        if wrong
    ]
    if not found:
        return None
    whys = "; ".join(why for why, _ in found)
    remedies = " ".join(remedy for _, remedy in found)
    return (
        f"engine.sums_in_products=true adds gradients of several micro-batches in the products of one GPU, but {whys}. "
        f"Set {remedies}, or engine.sums_in_products=false."
    )


def overlap_has_products(run: Run) -> str | None:
    """Refuse a switch that switches nothing: only compiled products under TP overlap by choice."""
    engine = run.engine
    if engine.overlap_communication or (engine.compile and sequence_parallel(run)):
        return None
    return (
        "engine.overlap_communication=false has an effect on compiled products under sequence-parallel TP only, with "
        "engine=native. Set engine.overlap_communication=true, or parallelism=tp engine.compile=true."
    )


def average_is_of_all_weights(run: Run) -> str | None:
    """Refuse an average of adapters or virtual tokens, which an export adds to the weights as they are."""
    if run.job.ema_decay is None or run.job.trains_all_weights:
        return None
    return (
        f"job.ema_decay={run.job.ema_decay:g} averages the weights of the model, and job={run.job.name} trains others "
        "next to them. Set job.ema_decay=null, or job=finetune_full."
    )


def z_loss_is_in_chunks(run: Run) -> str | None:
    """Refuse a z-loss from all logits at once, where it would keep them."""
    if run.job.z_loss == 0 or run.engine.loss is not Loss.whole:
        return None
    return (
        f"job.z_loss={run.job.z_loss:g} is computed in chunks of labels, and engine.loss=whole computes all logits at "
        "once. Set engine.loss=chunked, or job.z_loss=0."
    )


def packed_rows_are_whole(run: Run) -> str | None:
    """Refuse packed rows with CP: ring attention is causal over the whole row."""
    if run.job.batching is Batching.packed and run.parallelism.context > 1:
        return (
            f"job.batching=packed keeps attention within samples, and parallelism.context={run.parallelism.context} "
            "shards rows over ranks, whose ring attention cannot. Set job.batching=padded, or parallelism.context=1."
        )
    return None


def balance_has_experts(run: Run) -> str | None:
    """Refuse a balance loss without experts, and of parts of sequences: it is a product of means over whole ones."""
    asked, off = f"job.expert_balance_loss={run.job.expert_balance_loss:g}", "Set job.expert_balance_loss=0"
    if run.job.expert_balance_loss == 0:
        return None
    if not run.model.experts:
        return f"{asked} balances experts, and model={run.model.name} has none. {off}, or choose a model with experts."
    if run.parallelism.context > 1:
        return (
            f"{asked} is computed from whole sequences, and parallelism.context={run.parallelism.context} divides "
            f"them. {off}, or parallelism.context=1."
        )
    return None


def shifted_bias_exists(run: Run) -> str | None:
    """Refuse a change of the bias of experts where the router has none."""
    router, speed = run.model.router, run.job.expert_bias_speed
    if speed == 0 or (router is not None and router.scores is RouterScores.sigmoid):
        return None
    return (
        f"job.expert_bias_speed={speed:g} changes the bias by which experts are chosen, and model={run.model.name} has "
        "none (model.router.scores=sigmoid). Set job.expert_bias_speed=0, or choose a model with it (deepseek_v3)."
    )


def windows_are_whole(run: Run) -> str | None:
    """Refuse sliding windows with CP: ring attention is causal over the whole row."""
    if run.model.sliding_window is not None and run.parallelism.context > 1:
        return (
            f"model.sliding_window={run.model.sliding_window} ({run.model.name}) limits what a token attends to, and "
            f"parallelism.context={run.parallelism.context} shards rows over ranks, whose ring attention cannot. Set "
            "parallelism.context=1."
        )
    return None


def sinks_are_whole(run: Run) -> str | None:
    """Refuse attention sinks with CP: each step of ring attention would add them to its sums."""
    if run.model.attention_sinks and run.parallelism.context > 1:
        return (
            f"model.attention_sinks=true ({run.model.name}) adds to the sums of a whole row, of which ring attention "
            f"(parallelism.context={run.parallelism.context}) has a part at a time. Set parallelism.context=1."
        )
    return None


def caps_are_whole(run: Run) -> str | None:
    """Refuse capped scores of attention with CP: ring attention is by kernels, which do not have them."""
    if run.model.attention_softcap is not None and run.parallelism.context > 1:
        return (
            f"model.attention_softcap={run.model.attention_softcap:g} ({run.model.name}) changes scores of attention, "
            f"which ring attention (parallelism.context={run.parallelism.context}) cannot. Set parallelism.context=1."
        )
    return None


def latent_keys_are_whole(run: Run) -> str | None:
    """Refuse latent attention with CP: ring attention has keys and values of one size."""
    if run.model.latent is not None and run.parallelism.context > 1:
        return (
            f"model.latent ({run.model.name}) has values of another size than keys, and parallelism.context="
            f"{run.parallelism.context} sends both around, which torch's ring attention cannot. Set "
            "parallelism.context=1."
        )
    return None


def adapters_have_their_matrices(run: Run) -> str | None:
    """Refuse adapters of shared experts and routers by scores of all experts, and of a half of latent keys and values.

    And 4 bits for matrices of such experts and of latent attention.
    """
    model, lora = run.model, run.job.lora
    found = [key for key in ("latent", "router", "shared_experts") if getattr(model, key)]
    if lora is None or not found:
        return None
    has = f"{model.name} has {', '.join(f'model.{key}' for key in found)}"
    if lora.quantize_base is not None:
        return (
            f"job.lora.quantize_base={lora.quantize_base.name} keeps plain matrices in 4 bits, and {has}. Set "
            "job.lora.quantize_base=null, or choose another model."
        )
    targets = lora.targets
    if LoraTarget.mlp in targets and (model.router or model.shared_experts):
        attention = [*QKV, LoraTarget.projection]
        others = [target for target in attention if target in targets] or attention
        return (
            f"job.lora.targets={typed(targets)} adapts plain feed-forwards, and {has}. Set job.lora.targets="
            f"{typed(others)}, or job=finetune_full."
        )
    if model.latent and (LoraTarget.key in targets) != (LoraTarget.value in targets):
        both = [target for target in LoraTarget if target in {*targets, LoraTarget.key, LoraTarget.value}]
        return (
            f"job.lora.targets={typed(targets)} adapts keys or values alone, which model.latent ({model.name}) makes "
            f"by the same matrices. Set job.lora.targets={typed(both)}."
        )
    return None


def packed_text_has_no_prompt(run: Run) -> str | None:
    """Refuse virtual tokens in packed windows of text: only the first document of a sample would attend to them."""
    if run.job.batching is Batching.packed and run.job.virtual_tokens and run.data.source in TEXTS:
        return (
            "job.batching=packed keeps attention within the documents of text, of which only the first in a sample has "
            "the virtual tokens of job.prompt_tuning. Set job.batching=padded."
        )
    return None


def fused_kernels_fit(run: Run) -> str | None:
    """Refuse Liger's kernels without GPUs, and where they do not replace the model's operations on whole tensors."""
    model, asked = run.model, f"engine.kernels={run.engine.kernels.name}"
    if run.engine.kernels is Kernels.torch:
        return None
    chosen = run.engine.liger_kernels
    if not chosen or len(set(chosen)) < len(chosen):
        return (
            f"engine.liger_kernels={typed(chosen)} does not name each operation once that {asked} replaces. Set "
            f"engine.liger_kernels={typed(list(LigerKernel))} or some of them, or engine.kernels=torch."
        )
    others = {
        LigerKernel.rms_norm: (f"model.norm={model.norm.name}, not RMSNorm", model.norm is not Norm.RMSNorm),
        LigerKernel.swiglu: (f"model.mlp={model.mlp.name}, not LLaMAMLP", model.mlp is not Mlp.LLaMAMLP),
        LigerKernel.rope: (f"model.rope_fraction={model.rope_fraction:g}, not 1", model.rope_fraction != 1),
    }
    if model.latent is not None:
        others[LigerKernel.rope] = ("model.latent, whose heads are rotated in part", True)
    if unfit := [what for kernel, (what, is_so) in others.items() if is_so and kernel in chosen]:
        fit = [kernel for kernel, (_, is_so) in others.items() if not is_so]
        some = f"engine.liger_kernels={typed(fit)}, or " if fit else ""
        return f"{asked} has no kernels for {model.name} ({'; '.join(unfit)}). Set {some}engine.kernels=torch."
    if run.parallelism.tensor > 1:
        return (
            f"{asked} computes on whole tensors, and parallelism.tensor={run.parallelism.tensor} shards them. "
            "Set engine.kernels=torch, or parallelism.tensor=1."
        )
    if run.engine.compile:
        return (
            f"{asked} and engine.compile=true both fuse a layer's operations. Set engine.compile=false, or "
            "engine.kernels=torch."
        )
    if run.engine.kernels is Kernels.liger and not has_gpus(run):
        return (
            f"engine.kernels=liger needs GPUs, and cluster={run.cluster.name} has none. Set engine.kernels=torch, or "
            f"engine.kernels=liger_or_torch to have them wherever a rank can; {GPU_OF_THIS_MACHINE}."
        )
    return None


def buckets_are_ddps(run: Run) -> str | None:
    """Refuse a bucket size where DDP does not reduce the gradients."""
    p = run.parallelism
    if p.bucket_mb is None or (p.strategy is Strategy.ddp and degree_product(run, MODEL_AXES) == 1):
        return None
    return (
        f"parallelism.bucket_mb={p.bucket_mb} is the size of DDP's buckets, and parallelism={p.name} has none. Set "
        "parallelism.bucket_mb=null, or parallelism=ddp."
    )


def matrices_in_4_bits_are_whole(run: Run) -> str | None:
    """Refuse matrices in 4 bits where TP would cut their blocks, in compiled layers, and rows of no whole numbers.

    FSDP divides them by rows of numbers of the arithmetic's type (jobs.engines.native.customization.nf4).
    """
    if not run.job.quantizes_base:
        return None
    model, asked, off = run.model, "job.lora.quantize_base=nf4", "Set job.lora.quantize_base=null"
    if run.parallelism.tensor > 1:
        return (
            f"{asked} keeps matrices in blocks of 64 numbers with common scales, which parallelism.tensor="
            f"{run.parallelism.tensor} would cut. Set parallelism.tensor=1 (parallelism=fsdp_full divides weights in 4 "
            "bits over ranks), or job.lora.quantize_base=null."
        )
    if run.engine.compile:
        return f"{asked} runs layers eagerly. Set engine.compile=false, or job.lora.quantize_base=null."
    unit = 4 * (2 if run.job.precision is Precision.float32 else 1)
    inputs = {
        "hidden_size": model.hidden_size,
        model.inner_size_key: model.inner_size,
        "heads x head_size": model.heads * model.head_size,
    }
    for key, size in inputs.items():
        if size % unit:
            return f"{asked} requires rows of a multiple of {unit} numbers, but model {key}={size} is not. {off}."
    return None


def float8_has_its_hardware(run: Run) -> str | None:
    """Require for products in few bits what every engine needs, no TP, no experts, and no frozen weights.

    And compilation, which fuses the casts and scales: in kernels of their own they cost more than such products save.
    """
    if (wrong := float8.recipe_is_the_engines(run)) is not None or not run.engine.float8:
        return wrong
    asked, off = float8.asked(run), float8.off(run)
    if not run.engine.compile:
        return (
            f"{asked} without engine.compile=true is slower than bfloat16: every cast and scale is a kernel "
            f"of its own. Set {off}, or engine.compile=true."
        )
    if run.parallelism.tensor > 1:
        return (
            f"{asked} multiplies whole matrices, and parallelism.tensor={run.parallelism.tensor} shards "
            f"them. Set {off}, or parallelism.tensor=1."
        )
    if (wrong := float8.model_is_suitable(run)) is not None:
        return wrong
    if run.model.experts:
        return f"{asked} does not run with experts ({run.model.name}). Set {off}, or choose a dense model."
    return float8.all_weights_train(run) or float8.gpu_is_suitable(run)


# --- warnings ------------------------------------------------------------------------------------------------


def pipeline_stages_are_gathered(run: Run) -> str | None:
    """Warn of FSDP in a pipeline: torch keeps weights and gradients of a stage whole until its last micro-batch."""
    p = run.parallelism
    if p.pipeline == 1 or p.strategy is not Strategy.fsdp or data_degree(run) == 1:
        return None
    width = 4 if run.job.precision is Precision.float32 else 2
    sums = 4 if run.engine.gradients is Precision.float32 else 2
    held_bytes = (width * parameters(run.model) + sums * trained_parameters(run)) / (p.pipeline * p.tensor)
    return (
        f"parallelism.pipeline={p.pipeline} with FSDP: within a step every rank holds the whole weights and "
        f"{run.engine.gradients.name} gradients of its pipeline stage, about {held_bytes / 1e9:,.3g} GB; only "
        "optimizer state stays sharded. For less, raise parallelism.pipeline or parallelism.tensor, or set "
        "parallelism.pipeline=1."
    )


RULES: tuple[Rule, ...] = (
    split_backward_finds_what_it_needs,
    compiled_layers_are_whole,
    checkpointed_layers_exist,
    gradient_sums_have_a_shard_group,
    there_is_something_to_read_once,
    narrow_weights_have_narrow_arithmetic,
    gradients_have_digits,
    optimizer_fits,
    update_finds_whole_gradients,
    overlap_has_products,
    sums_have_products,
    average_is_of_all_weights,
    z_loss_is_in_chunks,
    packed_rows_are_whole,
    windows_are_whole,
    sinks_are_whole,
    caps_are_whole,
    shifted_bias_exists,
    latent_keys_are_whole,
    adapters_have_their_matrices,
    balance_has_experts,
    packed_text_has_no_prompt,
    fused_kernels_fit,
    buckets_are_ddps,
    matrices_in_4_bits_are_whole,
    float8_has_its_hardware,
)
WARNINGS: tuple[Rule, ...] = (pipeline_stages_are_gathered,)
