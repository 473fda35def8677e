"""What engine=native does not do; asked at composition, so no torch here."""

from __future__ import annotations

from jobs.layout import frees_weights
from jobs.plan.words import Rule
from jobs.schema import ActivationCheckpointing, Run, Schedule, Sharding, Strategy

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


def split_backward_finds_what_it_needs(run: Run) -> str | None:
    """A zero-bubble schedule runs the backward pass of inputs first and that of weights later.

    PyTorch refuses compiled layers there. Weights it finds by identity, and weights that were gathered again are
    others: it would train with gradients missing. Activations both halves would compute again, and TP's collectives
    with them, in an order that nothing makes the ranks agree on.
    """
    p, engine = run.parallelism, run.engine
    if p.pipeline == 1 or p.schedule not in SPLIT_BACKWARD:
        return None
    wrong = {
        "engine.compile=true, type engine.compile=false": engine.compile,
        f"sharding={p.sharding and p.sharding.name} (weights freed after forward), type "
        "parallelism.sharding=SHARD_GRAD_OP": frees_weights(run),
        f"engine.activation_checkpointing={engine.activation_checkpointing.name}, type "
        "engine.activation_checkpointing=none": engine.activation_checkpointing is not ActivationCheckpointing.none,
    }
    found = [what for what, is_so in wrong.items() if is_so]
    if found:
        return (
            f"parallelism.schedule={p.schedule.name} splits the backward pass and cannot do so with "
            f"{'; nor with '.join(found)}. Type parallelism.schedule=Interleaved1F1B to keep them."
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
    split_backward_finds_what_it_needs,
    compiled_layers_are_whole,
    context_sums_in_shard_groups,
)
