"""Training of a language model by one of the engines."""

from __future__ import annotations

from jobs.engines.engine import engine_of
from jobs.schema import Run
from jobs.work.language_model import LanguageModelWork
from jobs.work.work import Entry


class Train(LanguageModelWork):
    """Training, whose loop is the engine's."""

    engine = None
    rules = "jobs.work.train.rules"
    reads_samples = True
    has_batch = True

    def entry(self, run: Run) -> Entry:
        """Return the loop of the engine."""
        return engine_of(run).entry(run)


WORK = Train()
