"""Training states of engine=native on the rank with the most, at the moment of a step that holds the most."""

from __future__ import annotations

from dataclasses import replace

from jobs.engines.engine import engine_of
from jobs.engines.native.optimizers.optimizer import kept_bytes
from jobs.layout import accumulation, frees_weights, uses_ddp, uses_fsdp
from jobs.parallelism import ReduceEach, Strategy
from jobs.plan.predict.activations import WIDTHS
from jobs.plan.predict.states import Held, States, parameters_by_place, parameters_held, undivided_gradients
from jobs.schema import OptimizerKind, Precision, Run


def states(run: Run) -> States:
    """Return the states of engine=native, all in `engine.parameters`; frozen weights in `job.precision`.

    A step has two peaks: the update, when gradients are whole; and the start of backward, when FSDP with weights kept
    after forward (SHARD_GRAD_OP) holds those of all ranks in the type of the arithmetic. In a pipeline torch keeps
    weights and gradients of a stage whole until its last micro-batch (jobs.engines.native.rules);
    parallelism.reduce_each=step does so with the gradients of FSDP without one.

    A run that trains nothing holds its weights in float32 (jobs.work.evaluate.evaluate).
    """
    if not run.job.train:
        return States(weights=WIDTHS[Precision.float32] * parameters_held(run).total, gradients=0, optimizer=0)
    both = zip(*(parameters_by_place(run, sharded=sharded, stored=True) for sharded in (True, False)), strict=True)
    return max((states_at(run, held, whole) for held, whole in both), key=lambda states: states.total)


def sums_in_float32(run: Run) -> bool:
    """Return whether gradients of bfloat16 weights are kept in float32, so that micro-batches add up exactly.

    With the optimizer that keeps small updates. FSDP sums in the type in which it reduces (parallelism.reduce_each),
    and DDP keeps gradients in the type of the weights.
    """
    job, engine = run.job, run.engine
    precise = job.optimizer is OptimizerKind.adamw_stochastic and engine.gradients is Precision.float32
    return precise and accumulation(run) > 1 and not uses_fsdp(run) and not uses_ddp(run)


def states_at(run: Run, held: Held, whole: Held) -> States:
    """Return the states of a rank from the parameters that it keeps between steps, and those before FSDP."""
    p, width, narrow = run.parallelism, WIDTHS[run.engine.parameters], WIDTHS[run.job.precision]
    trained, frozen = held.trained(run), held.total - held.trained(run)
    update = States(
        weights=width * trained + narrow * frozen + held.scale_bytes,
        gradients=0
        if run.engine.update_in_backward
        else (4 if sums_in_float32(run) else width) * (trained + undivided_gradients(run)),
        optimizer=round(kept_bytes(run) * trained),
    )
    if p.strategy is not Strategy.fsdp or held == whole:
        return update
    kept = replace(update, gathered=narrow * whole.total if p.pipeline > 1 or not frees_weights(run) else 0)
    # In the type in which FSDP reduces them.
    sums = engine_of(run).gradient_bytes(run) * whole.trained(run)
    if p.pipeline > 1:
        backward = replace(kept, gradients=sums)
    elif accumulation(run) == 1:
        # The first micro-batch has no gradients yet.
        backward = replace(kept, gradients=0)
    elif p.reduce_each is ReduceEach.step:
        backward = replace(kept, gradients=sums)
    else:
        backward = kept
    return max(update, backward, key=lambda states: states.total)
