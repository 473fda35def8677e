"""What engine=nemo does not do; asked at composition, so neither torch nor NeMo here."""

from __future__ import annotations

from jobs.layout import accumulation, pipeline_stages_per_rank, sequence_parallel
from jobs.plan.rules.native_only import choices_are_native
from jobs.plan.rules.rule import Rule, divisors, either
from jobs.schema import Precision, Run, Schedule, StageSplit, Strategy

SCHEDULES = (Schedule["1F1B"], Schedule["Interleaved1F1B"])


def unsupported(run: Run) -> str | None:
    """Why NeMo cannot execute this run, or None."""
    return next((sentence for rule in RULES if (sentence := rule(run))), None)


def weights_are_replicated(run: Run) -> str | None:
    """Megatron's data parallelism copies weights; what it cuts is the optimizer's state."""
    if run.parallelism.strategy is Strategy.fsdp:
        return (
            f"engine=nemo replicates weights and parallelism={run.parallelism.name} shards them; Megatron cuts "
            "optimizer state instead (engine.distributed_optimizer=true). Type parallelism=ddp, tp, pp or tp_pp, or "
            "engine=native."
        )
    return None


def schedule_is_megatrons(run: Run) -> str | None:
    """Megatron has two of the schedules."""
    p = run.parallelism
    if p.pipeline > 1 and p.schedule not in SCHEDULES:
        return (
            f"engine=nemo does not run parallelism.schedule={p.schedule.name}. Type parallelism.schedule=1F1B or "
            "Interleaved1F1B, or engine=native."
        )
    return None


def pipeline_stages_are_even(run: Run) -> str | None:
    """Every stage the same number of layers."""
    p = run.parallelism
    if p.pipeline > 1 and (p.stage_layers is not None or p.stage_split is not StageSplit.even):
        return (
            "engine=nemo gives every pipeline stage the same number of layers. Type parallelism.stage_layers=null "
            "parallelism.stage_split=even, or engine=native."
        )
    return None


def micro_batches_make_whole_rounds(run: Run) -> str | None:
    """The interleaved schedule hands micro-batches from stage to stage in rounds of one for each pipeline rank."""
    pipeline, count = run.parallelism.pipeline, accumulation(run)
    if pipeline > 1 and pipeline_stages_per_rank(run) > 1 and count % pipeline:
        return (
            f"engine=nemo runs parallelism.schedule={run.parallelism.schedule.name} in rounds of {pipeline} "
            f"micro-batches (parallelism.pipeline), and a step has {count}. Choose a global batch of a multiple of "
            f"{pipeline}, or type parallelism.schedule=1F1B."
        )
    return None


def loss_stays_cut(run: Run) -> str | None:
    """Megatron's loss works on logits that are cut along the vocabulary."""
    if run.parallelism.tensor > 1 and not run.parallelism.loss_parallel:
        return (
            "engine=nemo always leaves the logits cut along the vocabulary. Type parallelism.loss_parallel=true, or "
            "engine=native."
        )
    return None


def sequence_is_cut_on_gpus_only(run: Run) -> str | None:
    """Megatron's norms know what their gradients lack only as Transformer Engine's, or Apex's."""
    if sequence_parallel(run) and not run.cluster.gpus:
        return (
            f"parallelism.sequence_parallel=true needs Transformer Engine with engine=nemo, and cluster="
            f"{run.cluster.name} has no GPUs. Type parallelism.sequence_parallel=null, or engine=native."
        )
    return None


def compiles_nothing(run: Run) -> str | None:
    """torch.compile is the native engine's."""
    if run.engine.compile:
        return (
            "engine=nemo has kernels of its own instead of torch.compile. Type engine.compile=false, or engine=native."
        )
    return None


def types_follow_the_arithmetic(run: Run) -> str | None:
    """Megatron's optimizer keeps float32 beside weights of the arithmetic's type."""
    if run.engine.parameters is not Precision.float32:
        return (
            f"engine=nemo chooses the types of weights by job.precision, not by engine.parameters="
            f"{run.engine.parameters.name}. Type engine.parameters=float32, or engine=native."
        )
    return None


def model_is_dense_and_serial(run: Run) -> str | None:
    """Megatron's layer is attention, then feed-forward; experts are not mapped."""
    if run.model.parallel_residual:
        return (
            f"engine=nemo has no layers with attention and feed-forward side by side (model.parallel_residual, "
            f"{run.model.name}). Choose another model, or type engine=native."
        )
    if run.model.experts:
        return (
            f"engine=nemo does not train mixtures of experts yet ({run.model.name} has {run.model.experts} experts). "
            "Choose a dense model, or type engine=native."
        )
    return None


def tensor_divides_adapters(run: Run) -> str | None:
    """TP cuts an adapter's matrices along its rank."""
    lora, tensor = run.job.lora, run.parallelism.tensor
    if lora is not None and lora.rank % tensor:
        return (
            f"parallelism.tensor={tensor} does not divide job.lora.rank={lora.rank}. Use "
            f"{either(divisors(lora.rank))}, or type job.lora.rank= a multiple of {tensor}."
        )
    return None


RULES: tuple[Rule, ...] = (
    weights_are_replicated,
    schedule_is_megatrons,
    pipeline_stages_are_even,
    micro_batches_make_whole_rounds,
    loss_stays_cut,
    sequence_is_cut_on_gpus_only,
    compiles_nothing,
    choices_are_native,
    types_follow_the_arithmetic,
    model_is_dense_and_serial,
    tensor_divides_adapters,
)
