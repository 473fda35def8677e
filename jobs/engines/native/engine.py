"""The engine of slurmscale: LitGPT's model under torch's own parallelism."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from jobs.engines.engine import MXFP8_BOTH_WAYS, Engine, Overlap
from jobs.engines.native.optimizers.optimizer import kept_bytes
from jobs.layout import sequence_parallel, tensor_stays_on_link, uses_fsdp
from jobs.parallelism import Sharding, Strategy
from jobs.schema import Float8Recipe, Precision, Run

if TYPE_CHECKING:
    from jobs.plan.predict.states import States
    from jobs.work.work import Entry

CUT_PRODUCTS = 0.35
"""Share of the products of a compiled layer behind which TP's collectives hide. Chosen on torchtitan's three pairs with
and without (pytorch/torchtitan, benchmarks/asyncTP_llama3_h100_2025-06_torchtitan.md): they gain 10, 10 and 6 % of
their rates, and are predicted to gain 12, 9 and 8 %."""
FULLY_SHARDED = (("parallelism.strategy", Strategy.fsdp), ("parallelism.sharding", Sharding.FULL_SHARD))


class Native(Engine):
    """engine=native."""

    rules = "jobs.engines.native.rules"
    package, extra = "litgpt", "train"
    least_torch = (2, 11)
    """The first with attention for packed rows."""
    uses_autocast = counts_memory = reduces_apart = pads_for_kernels = shards_sequences_on_cpus = True
    chooses_schedule = writes_in_background = True
    float8_recipes: ClassVar[Mapping[Float8Recipe, float]] = {
        Float8Recipe.tensorwise: 0.0,
        # Along rows read once and written; along columns read once more before, for the largest numbers.
        Float8Recipe.rowwise: (2 + 1) + (2 + 2 + 1),
        Float8Recipe.mxfp8: MXFP8_BOTH_WAYS,
    }
    float8_package = "torchao 0.18"
    is_named = False
    evaluated_from = "checkpoints"

    @property
    def not_read(self) -> Mapping[str, str]:
        """Return Megatron's keys."""
        from jobs.plan.rules.native_only import NEMO_ONLY

        return NEMO_ONLY

    def overlap(self, run: Run) -> Overlap:
        """Return DDP's, and that of compiled products under TP (jobs.engines.native.compilation.overlaps_tp)."""
        cut = run.engine.compile and sequence_parallel(run) and tensor_stays_on_link(run)
        return Overlap(gradients=True, tensor=CUT_PRODUCTS if cut and run.engine.overlap_communication else 0.0)

    def gradient_bytes(self, run: Run) -> int:
        """Return those of `engine.gradients`; without FSDP those of the weights, if these are narrower."""
        narrow = not uses_fsdp(run) and run.engine.parameters is Precision.bfloat16
        return 2 if narrow or run.engine.gradients is Precision.bfloat16 else 4

    def states(self, run: Run) -> States:
        """Return the states in `engine.parameters`."""
        from jobs.engines.native.states import states

        return states(run)

    def bytes_per_parameter(self, run: Run) -> float:
        """Return the size of a weight and the optimizer's moments."""
        return (2 if run.engine.parameters is Precision.bfloat16 else 4) + kept_bytes(run)

    def shardings(self, run: Run) -> list[tuple[tuple[str, Any], ...]]:
        """Return FSDP, which a pipeline does without."""
        return [(), FULLY_SHARDED] if run.parallelism.pipeline == 1 else [()]

    def sharding_like_zero(self, run: Run) -> str:
        """Return FSDP's choice."""
        return f"parallelism={'fsdp_full' if run.parallelism.strategy is Strategy.zero3 else 'fsdp_grad_op'}"

    def notes(self, run: Run) -> Iterable[tuple[str, str]]:
        """Yield how the loss is computed, where that is not from all logits at once, and what is not known."""
        from jobs.engines.native.loss_chunk import loss_chunk

        if chunk := loss_chunk(run):
            yield "loss", f"from the logits of {chunk:,} labels at a time (engine.loss=chunked)"
        if run.job.optimizer_class is not None:
            yield (
                "optimizer",
                f"{run.job.optimizer_class}, counted as AdamW: two numbers for each weight, and their update",
            )

    def entry(self, run: Run) -> Entry:
        """Return the loop."""
        from jobs.runtime.imports import import_litgpt_alone

        # Only here: the other engines start as their own programs do, and ours is measured against LitGPT's start.
        import_litgpt_alone()
        from jobs.engines.native.trainer import train

        return train


ENGINE = Native()
