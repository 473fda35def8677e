"""What engine=native does not do; asked at composition, so no torch here."""

from __future__ import annotations

from jobs.plan.words import Rule
from jobs.schema import ActivationCheckpointing, Run, Schedule, Sharding, Strategy

# They run the backward pass of inputs and of weights apart, which a compiled layer does not allow.
SPLIT_BACKWARD = (Schedule["InterleavedZeroBubble"], Schedule["ZBVZeroBubble"])


def no_adapters(run: Run) -> str | None:
    """Adapters are NeMo's."""
    if run.job.lora is not None:
        return "engine=native trains all weights, not adapters (job.lora). Type engine=nemo, or job=finetune_full."
    return None


def no_distributed_optimizer(run: Run) -> str | None:
    """Megatron's name for what FSDP does here."""
    if run.engine.distributed_optimizer:
        return (
            "engine.distributed_optimizer=true is Megatron's. Type engine.distributed_optimizer=false and "
            "parallelism.sharding=SHARD_GRAD_OP, or engine=nemo."
        )
    return None


def zero_bubble_is_eager(run: Run) -> str | None:
    """PyTorch's zero-bubble schedules refuse compiled stages."""
    p = run.parallelism
    if run.engine.compile and p.pipeline > 1 and p.schedule in SPLIT_BACKWARD:
        return (
            f"parallelism.schedule={p.schedule.name} cannot run compiled layers. Type engine.compile=false, or "
            "parallelism.schedule=1F1B."
        )
    return None


def zero_bubble_keeps_activations(run: Run) -> str | None:
    """Each half of a backward pass in two halves would compute the activations again, and TP's collectives with them.

    Nothing makes the ranks of a TP group do that in one order.
    """
    p, mode = run.parallelism, run.engine.activation_checkpointing
    if mode is not ActivationCheckpointing.none and p.pipeline > 1 and p.schedule in SPLIT_BACKWARD:
        return (
            f"parallelism.schedule={p.schedule.name} splits the backward pass, and each half would compute again what "
            f"engine.activation_checkpointing={mode.name} leaves out. Type engine.activation_checkpointing=none, or "
            "parallelism.schedule=Interleaved1F1B."
        )
    return None


def compiled_layers_are_whole(run: Run) -> str | None:
    """PyTorch 2.13 loses DTensors in the backward pass of layers that are cut and compiled."""
    if run.engine.compile and run.parallelism.tensor > 1:
        return (
            f"engine.compile=true does not run with parallelism.tensor={run.parallelism.tensor}: PyTorch's compiled "
            "backward pass fails on cut layers. Type engine.compile=false, or parallelism.tensor=1."
        )
    return None


def zero_bubble_keeps_weights(run: Run) -> str | None:
    """The backward pass of weights finds them by identity, and weights gathered again are others.

    PyTorch does not notice: it would train with gradients missing.
    """
    p = run.parallelism
    freed = p.sharding in (Sharding.FULL_SHARD, Sharding.HYBRID_SHARD)
    if freed and p.pipeline > 1 and p.schedule in SPLIT_BACKWARD:
        return (
            f"parallelism.schedule={p.schedule.name} needs weights that stay until backward, and sharding="
            f"{p.sharding and p.sharding.name} frees them. Type parallelism.sharding=SHARD_GRAD_OP (with data_shard="
            "RANKS to shard within nodes), or parallelism.schedule=1F1B."
        )
    return None


def context_sums_in_shard_groups(run: Run) -> str | None:
    """Gradients of a sequence's parts meet in FSDP's shard group."""
    p = run.parallelism
    if p.context > 1 and (p.strategy is not Strategy.fsdp or p.sharding is Sharding.NO_SHARD):
        return (
            f"parallelism.context={p.context} sums gradients in FSDP's shard group, and parallelism={p.name} has none. "
            "Type parallelism.strategy=fsdp parallelism.sharding=FULL_SHARD."
        )
    return None


NATIVE: tuple[Rule, ...] = (
    no_adapters,
    no_distributed_optimizer,
    zero_bubble_is_eager,
    compiled_layers_are_whole,
    zero_bubble_keeps_weights,
    zero_bubble_keeps_activations,
    context_sums_in_shard_groups,
)
