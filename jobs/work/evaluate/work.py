"""Evaluation of given weights, as the only work of a run (job.train=false)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from jobs.metrics import StoragePhase
from jobs.schema import Run
from jobs.work.language_model import LanguageModelWork

if TYPE_CHECKING:
    from jobs.plan.predict.states import States


class Evaluate(LanguageModelWork):
    """Evaluation on held-out samples."""

    entry_point = "jobs.work.evaluate.evaluate_only:evaluate_only"
    reads_samples = True
    not_read: Mapping[str, str] = {
        "job.loss_band.reference": "null", "stages.serve": "null", "job.checkpoint_copy_dir": "null",
    }  # fmt: skip
    reads_of_engine = frozenset({"loss", "tf32", "deterministic"})
    # Adapters and virtual tokens are refused by a rule of their own (jobs.plan.rules.values).
    reads_of_job = frozenset({
        "batching", "bucket_batches", "init_from", "init_from_is_remote", "lora", "micro_batch_size", "precision",
        "prompt_tuning", "seed", "sequence_length",
    })  # fmt: skip
    has_batch = True
    first_phase = StoragePhase.validate

    def engine_refusal(self, run: Run) -> str:
        """Return the refusal of another engine than the native one."""
        return (
            f"job.train=false evaluates by engine=native, and engine={run.engine.kind.name} is chosen. Set "
            "engine=native, or job.train=true."
        )

    def states_in_words(self, run: Run, held: States) -> tuple[str, str]:
        """Return the weights, which one process holds."""
        size = f"its weights in float32 take {held.total / 1e9:,.1f} GB, and an evaluation is one process"
        return size, "Choose a GPU with more memory"


WORK = Evaluate()
