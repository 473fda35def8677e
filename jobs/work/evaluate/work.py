"""Evaluation of given weights, as the only work of a run (job.train=false)."""

from __future__ import annotations

from jobs.metrics import StoragePhase
from jobs.schema import Run
from jobs.work.language_model import LanguageModelWork
from jobs.work.work import Entry


class Evaluate(LanguageModelWork):
    """Evaluation on held-out samples."""

    reads_samples = True
    has_batch = True
    first_phase = StoragePhase.validate

    def entry(self, run: Run) -> Entry:
        """Return the evaluation."""
        from jobs.work.evaluate.evaluate_only import evaluate_only

        return evaluate_only


WORK = Evaluate()
