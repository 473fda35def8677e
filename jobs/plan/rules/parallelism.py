"""Rules of the rank grid: degrees, what each axis divides, and the data-parallel groups."""

from __future__ import annotations

import math

from jobs.engines.engine import engine_of
from jobs.layout import (
    PIPELINE_STAGES_PER_RANK,
    data_degree,
    degree_of,
    degree_product,
    linked_ranks,
    pipeline_stages_per_rank,
    sequence_parallel,
    shard_degree,
    tensor_stays_on_link,
)
from jobs.parallelism import MODEL_AXES, SHARD_PARTS, ReduceEach, Schedule, Sharding, StageSplit, Strategy
from jobs.plan.rules.rule import Rule, divisors, either, multiples_near
from jobs.schema import Run
from jobs.work.work import work_of

ONE_PIPELINE_STAGE = (Schedule["GPipe"], Schedule["1F1B"])


def sharding_goes_with_fsdp(run: Run) -> str | None:
    """Require a sharding with FSDP, and refuse one with any other strategy."""
    p = run.parallelism
    if p.strategy is Strategy.fsdp and p.sharding is None:
        return (
            f"parallelism.strategy=fsdp needs a sharding. Set parallelism.sharding to one of "
            f"{either(s.name for s in Sharding)}."
        )
    if p.strategy is not Strategy.fsdp and (p.sharding is not None or p.data_shard is not None):
        return (
            f"parallelism.sharding and data_shard have no meaning with strategy={p.strategy.name}. "
            "Set parallelism.sharding=null parallelism.data_shard=null, or parallelism=fsdp_full."
        )
    if p.sharding is Sharding.NO_SHARD and (p.data_shard or 1) > 1:
        return (
            f"parallelism.data_shard={p.data_shard} contradicts sharding=NO_SHARD. Set parallelism.data_shard=null, "
            "or parallelism.sharding=HYBRID_SHARD."
        )
    return None


def is_sharded(run: Run) -> bool:
    """Return whether FSDP shards the weights."""
    return run.parallelism.strategy is Strategy.fsdp and run.parallelism.sharding is not Sharding.NO_SHARD


def gathering_ahead_needs_shards(run: Run) -> str | None:
    """Refuse to prefetch weights that FSDP does not shard."""
    p = run.parallelism
    if p.prefetch is not None and not is_sharded(run):
        return (
            f"parallelism.prefetch={p.prefetch} gathers FSDP's weights ahead, and parallelism={p.name} shards none. "
            "Set parallelism.prefetch=null, or parallelism=fsdp_full."
        )
    return None


def reducing_once_needs_shards(run: Run) -> str | None:
    """Refuse to choose FSDP's interval where gradients are reduced once per step anyway."""
    p = run.parallelism
    if p.reduce_each is ReduceEach.micro_batch:
        return None
    if not is_sharded(run) or p.pipeline > 1:
        return (
            f"parallelism.reduce_each={p.reduce_each.name} is for FSDP's shards without a pipeline; "
            f"parallelism={p.name} reduces gradients once per step in any case. Set "
            "parallelism.reduce_each=micro_batch, or parallelism=fsdp_grad_op."
        )
    return None


def tensor_divides_matrices(run: Run) -> str | None:
    """Require that TP divides heads, key/value heads, the feed-forward and the vocabulary."""
    m, tensor = run.model, run.parallelism.tensor
    # Whole heads, since a head's scores are computed on one rank; rows of the vocabulary, for embedding and head.
    sizes = (("heads", m.heads), ("kv_heads", m.kv_heads), (m.inner_size_key, m.inner_size),
             *((("intermediate_size", m.intermediate_size),) if any(m.is_dense) else ()),
             ("vocab_size", m.vocab_size))  # fmt: skip
    for key, size in sizes:
        if size % tensor:
            allowed = either(divisors(math.gcd(*(size for _, size in sizes))))
            return f"parallelism.tensor={tensor} does not divide model.{key}={size} ({m.name}). Use {allowed}."
    if run.parallelism.sequence_parallel and tensor == 1:
        return (
            "parallelism.sequence_parallel=true shards activations over the TP group, and parallelism.tensor=1 has "
            "none. Set parallelism.sequence_parallel=null, or parallelism.tensor=2."
        )
    return None


def cuts_divide_sequence(run: Run) -> str | None:
    """Require that the sequence divides evenly: by TP with sequence parallelism, by 2 x CP with context parallelism.

    Ring attention gives each rank one piece from each half of the sequence, which balances causal attention.
    """
    p, job = run.parallelism, run.job
    # Sequence parallelism divides each CP rank's part once more.
    unit = (p.tensor if sequence_parallel(run) else 1) * (2 * p.context if p.context > 1 else 1)
    if job.row_length % unit == 0:
        return None
    why = f"tensor={p.tensor}" + (f" x 2 x context={p.context}" if p.context > 1 else "")
    given, key, most = (
        f"job.sequence_length={job.sequence_length}",
        "job.sequence_length",
        run.model.max_sequence_length,
    )
    near = multiples_near(job.sequence_length, unit, most)
    if job.virtual_tokens:
        given += f" behind job.prompt_tuning.virtual_tokens={job.virtual_tokens}"
        below = job.virtual_tokens - job.row_length % unit
        fitting = (n for n in (below, below + unit) if 0 < n <= most - job.sequence_length)
        key, near = "job.prompt_tuning.virtual_tokens", either(fitting)
    remedies = [f"{key}={near}"] if near else []
    if p.context == 1:
        remedies.append("parallelism.sequence_parallel=false")
    elif not near:
        # Every positive multiple is longer than the model's rotary table.
        remedies.append("parallelism.context=1, or smaller degrees")
    return f"{given} is split along the sequence and is not a multiple of {unit} ({why}). Set {', or '.join(remedies)}."


def context_needs_gpus(run: Run) -> str | None:
    """Refuse context parallelism without GPUs: PyTorch's ring attention has no CPU kernel."""
    p = run.parallelism
    if p.context > 1 and not run.cluster.gpus:
        return (
            f"parallelism.context={p.context} needs GPUs (ring attention has no CPU kernel), and cluster="
            f"{run.cluster.name} has none. Choose a cluster with GPUs, or set parallelism.context=1."
        )
    return None


def parts_divide_shard_groups(run: Run) -> str | None:
    """Require that EP divides FSDP's shard group, or Megatron's replicas, and the experts of the model."""
    degrees, model = {axis: degree_of(run, axis) for axis in SHARD_PARTS}, run.model
    of_replicas = engine_of(run).divides_experts_of_replicas
    group = "data-parallel group" if of_replicas else "shard group"
    shard = 1 if max(degrees.values()) == 1 else data_degree(run) if of_replicas else shard_degree(run)
    for axis, degree in degrees.items():
        given, count = f"{axis.key}={degree}", getattr(model, axis.divides)
        if degree == 1:
            continue
        if not count:
            return (
                f"{given} divides {axis.divides}, and model={model.name} has none. Set {axis.key}=1, or choose a model "
                f"with {axis.divides} (model={axis.example})."
            )
        if not of_replicas and not is_sharded(run):
            return (
                f"{given} divides {axis.divides} inside FSDP's shard group, and parallelism={run.parallelism.name} has "
                "none. Set parallelism.strategy=fsdp parallelism.sharding=FULL_SHARD."
            )
        if count % degree or shard % degree:
            return (
                f"{given} does not divide model.{axis.divides}={count} ({model.name}) and the {group} of {shard} "
                f"ranks. Set {axis.key}={either(divisors(math.gcd(count, shard)))}."
            )
        # The next part divides what this one leaves.
        shard //= degree
    return None


def pipeline_settings_have_a_pipeline(run: Run) -> str | None:
    """Refuse settings of pipeline stages without a pipeline."""
    p = run.parallelism
    if p.pipeline > 1:
        return None
    given = [key for key in ("stages_per_rank", "stage_layers") if getattr(p, key) is not None]
    if given:
        return (
            f"parallelism.{given[0]} describes a pipeline, and parallelism.pipeline=1 has none. Set "
            f"{' '.join(f'parallelism.{key}=null' for key in given)}, or parallelism.pipeline=2."
        )
    return None


def schedule_fits_pipeline_stages(run: Run) -> str | None:
    """Require the stages per rank that the schedule supports."""
    p = run.parallelism
    count = pipeline_stages_per_rank(run)
    if p.pipeline == 1 or count == PIPELINE_STAGES_PER_RANK[p.schedule]:
        return None
    if p.schedule in ONE_PIPELINE_STAGE:
        return (
            f"parallelism.schedule={p.schedule.name} holds one stage per rank, not {count}. Set "
            "parallelism.stages_per_rank=null, or parallelism.schedule=Interleaved1F1B."
        )
    if p.schedule is Schedule["ZBVZeroBubble"] or count < 2:
        allowed = "2" if p.schedule is Schedule["ZBVZeroBubble"] else "2 or more"
        return (
            f"parallelism.schedule={p.schedule.name} holds {allowed} stages per rank, not {count}. Set "
            "parallelism.stages_per_rank=2, or parallelism.schedule=1F1B."
        )
    return None


def pipeline_stages_share_layers(run: Run) -> str | None:
    """Require at least one layer for each pipeline stage, and all layers in some stage."""
    p, layers, name = run.parallelism, run.model.layers, run.model.name
    stages = p.pipeline * pipeline_stages_per_rank(run)
    whole = [pipeline for pipeline in divisors(layers) if layers % (pipeline * stages // p.pipeline) == 0] or [1]
    what = f"parallelism.pipeline={p.pipeline}" + (
        f" x {pipeline_stages_per_rank(run)} stages per rank" if stages > p.pipeline else ""
    )
    if p.stage_layers is not None:
        counts = p.stage_layers
        if len(counts) != stages or sum(counts) != layers or min(counts) < 1:
            return (
                f"parallelism.stage_layers={counts} must give each of {stages} stages ({what}) a layer or "
                f"more, {layers} in all ({name}). Set parallelism.stage_layers=null, or to {stages} such numbers."
            )
        return None
    if stages > layers:
        return (
            f"{what} makes {stages} stages of {layers} layers ({name}): a stage needs one. Set "
            f"parallelism.pipeline={either(whole)}."
        )
    if layers % stages and p.stage_split is StageSplit.even:
        unequal = ", or parallelism.stage_split=balanced for stages of unequal length" if work_of(run).has_batch else ""
        return (
            f"{what} does not divide model.layers={layers} ({name}). Set parallelism.pipeline={either(whole)}{unequal}."
        )
    return None


def tied_embeddings_share_a_pipeline_stage(run: Run) -> str | None:
    """Refuse tied embeddings with a pipeline, which puts embedding and head on different ranks."""
    if run.model.tie_embeddings and run.parallelism.pipeline > 1:
        return (
            f"model.tie_embeddings=true keeps embedding and head in one weight, and parallelism.pipeline="
            f"{run.parallelism.pipeline} puts them on different ranks. Set parallelism.pipeline=1, or "
            "model.tie_embeddings=false."
        )
    return None


def grid_fills_world(run: Run) -> str | None:
    """Require DP x CP x TP x PP = world size, and shard groups that divide DP."""
    p = run.parallelism
    model_ranks = degree_product(run, MODEL_AXES)
    if run.ranks % model_ranks:
        # The fewest nodes whose ranks are a multiple of the degrees' product.
        whole_nodes = model_ranks // math.gcd(model_ranks, run.ranks_per_node)
        shown = [axis for axis in MODEL_AXES if not axis.rare or degree_of(run, axis) > 1]
        product = " x ".join(["dp", *(f"{axis.field}({degree_of(run, axis)})" for axis in shown)])
        return (
            f"{product} cannot be the world size {run.ranks} = "
            f"nodes({run.nodes}) x ranks_per_node({run.ranks_per_node}): {run.ranks} is not a multiple "
            f"of {model_ranks}. Set nodes={multiples_near(run.nodes, whole_nodes)}, or smaller degrees."
        )
    dp = data_degree(run)
    replicas = dp * degree_product(run, (axis for axis in MODEL_AXES if axis.averages_gradients))
    if p.strategy is Strategy.single and replicas > 1:
        one_rank = "nodes=1 ranks_per_node=1, or " if model_ranks == 1 else ""
        return (
            f"parallelism={p.name} has one replica and no data parallelism, but {run.ranks} ranks make {replicas}. "
            f"Set {one_rank}parallelism=ddp."
        )
    shard = shard_degree(run)
    # Without data_shard the number of replicas is free, and the shard group follows from it. With data_shard only one
    # number of replicas is possible, which the last check requires.
    free = p.data_replicate if p.strategy is Strategy.fsdp and p.data_shard is None else None
    for key, value in (("data_shard", p.data_shard), ("data_replicate", free)):
        if value is not None and dp % value:
            allowed = either(divisors(dp))
            return f"parallelism.{key}={value} does not divide dp={dp}. Set parallelism.{key} to one of {allowed}."
    if dp % shard:
        return (
            f"the shard group of {p.name}={shard} does not divide dp={dp}. Set parallelism.data_shard to one of "
            f"{either(divisors(dp))}."
        )
    if p.data_replicate is not None and p.data_replicate * shard != dp:
        return (
            f"parallelism.data_replicate={p.data_replicate} x shard group {shard} is not dp={dp}. Set "
            f"parallelism.data_replicate={dp // shard}, or null."
        )
    return None


def tensor_crosses_nodes(run: Run) -> str | None:
    """Warn if TP, which communicates in every layer, needs the network between nodes."""
    if not tensor_stays_on_link(run):
        domain = f", {linked_ranks(run)} in an NVLink domain" if linked_ranks(run) > run.ranks_per_node else ""
        return (
            f"parallelism.tensor={run.parallelism.tensor} puts ranks of one TP group on different nodes "
            f"(ranks_per_node={run.ranks_per_node}{domain}): every layer then waits for the network."
        )
    return None


def sharding_is_the_engines(run: Run) -> str | None:
    """Refuse ZeRO with other engines than DeepSpeed, and FSDP with DeepSpeed."""
    return engine_of(run).sharding_refusal(run)


RULES: tuple[Rule, ...] = (
    sharding_goes_with_fsdp,
    gathering_ahead_needs_shards,
    reducing_once_needs_shards,
    tensor_divides_matrices,
    cuts_divide_sequence,
    context_needs_gpus,
    pipeline_settings_have_a_pipeline,
    schedule_fits_pipeline_stages,
    pipeline_stages_share_layers,
    tied_embeddings_share_a_pipeline_stage,
    grid_fills_world,
    parts_divide_shard_groups,
)
WARNINGS: tuple[Rule, ...] = (tensor_crosses_nodes,)
