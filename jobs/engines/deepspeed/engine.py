"""DeepSpeed's ZeRO around LitGPT's model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jobs.engines.deepspeed.configuration import EQUIVALENTS, filled, settings_of, stage_of
from jobs.engines.engine import Engine, Overlap
from jobs.parallelism import Strategy
from jobs.plan.cost import parameters
from jobs.schema import Offload, Precision, Run

if TYPE_CHECKING:
    from jobs.plan.predict.states import States


ZERO3 = 3
"""The stage of ZeRO that partitions weights."""


class DeepSpeed(Engine):
    """engine=deepspeed."""

    entry_point = "jobs.engines.deepspeed.train:train"
    rules = "jobs.engines.deepspeed.rules"
    package, extra = "deepspeed", "deepspeed"
    evaluated_from = "export"

    def states(self, run: Run) -> States:
        """Return what the stage partitions over all ranks, without what is offloaded."""
        from jobs.plan.predict.activations import WIDTHS
        from jobs.plan.predict.states import States, parameters_held

        whole, stage, chosen = parameters_held(run, sharded=False).total, stage_of(run), settings_of(run)
        weights, gradients, optimizer = (whole // run.ranks if stage >= least else whole for least in (3, 2, 1))
        width = WIDTHS[run.job.precision]
        return States(
            weights=width * weights if chosen.offload_param is Offload.none else 0,
            gradients=width * gradients if chosen.offload_optimizer is Offload.none else 0,
            optimizer=(12 if stage else 8) * optimizer if chosen.offload_optimizer is Offload.none else 0,
        )

    def bytes_per_parameter(self, run: Run) -> int:
        """Return the optimizer's float32 weights and moments; below stage 3 also the weights of the arithmetic."""
        narrow = 4 if run.job.precision is Precision.float32 else 2
        return 12 + (0 if run.parallelism.strategy is Strategy.zero3 else narrow)

    def shardings(self, run: Run) -> list[tuple[tuple[str, Any], ...]]:
        """Return ZeRO's last stage."""
        return [(), (("parallelism.strategy", Strategy.zero3),)]

    def sharding_refusal(self, run: Run) -> str | None:
        """Return the refusal of FSDP."""
        p = run.parallelism
        if p.strategy is not Strategy.fsdp or p.sharding is None:
            return None
        return (
            f"parallelism={p.name} is PyTorch's FSDP, and engine=deepspeed has ZeRO. Set "
            f"parallelism={EQUIVALENTS[p.sharding]}, or engine=native."
        )

    def zero_stage(self, run: Run) -> int:
        """Return the stage of ZeRO."""
        return stage_of(run)

    def overlap(self, run: Run) -> Overlap:
        """Return that of gradients, by DeepSpeed's own key."""
        return Overlap(gradients=settings_of(run).overlap_comm)

    def buffer_bytes(self, run: Run) -> int:
        """Return the buffers of collectives, each at most a message of all parameters.

        Twice for overlapped reductions; stage 3 also holds gathered weights
        (https://www.deepspeed.ai/docs/config-json/, section ZeRO).
        """
        chosen, most = settings_of(run), parameters(run.model)
        reduced = filled(chosen.reduce_bucket_size, run.model.hidden_size**2) * (2 if chosen.overlap_comm else 1)
        gathered = chosen.stage3_max_live_parameters if stage_of(run) == ZERO3 else chosen.allgather_bucket_size
        return (4 if run.job.precision is Precision.float32 else 2) * (min(reduced, most) + min(gathered, most))


ENGINE = DeepSpeed()
