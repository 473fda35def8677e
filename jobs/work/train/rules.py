"""Rules of trainings that are followed by a load on what they trained. Checked at composition, so without torch."""

from __future__ import annotations

import re

from jobs.plan.rules.rule import Rule
from jobs.schema import Run
from jobs.work.serve.after_training import run_after
from jobs.work.serve.rules import RULES as RULES_OF_SERVING


def load_has_weights(run: Run) -> str | None:
    """Require weights to serve, and a load that one replica takes."""
    if run.stages.serve is None:
        return None
    without = "or stages.serve=null."
    if run.job.prompt_tuning is not None:
        return "stages.serve serves a whole model, and this run trains virtual tokens. Set stages.serve=null."
    if not run.job.export:
        return f"stages.serve serves the export of a run, and job.export is false. Set job.export=true, {without}"
    served = run_after(run, "")
    if served.job.sequence_length > run.model.max_sequence_length:
        return (
            f"a request of stages.serve has up to {served.job.sequence_length} tokens, and {run.model.name} at most "
            f"{run.model.max_sequence_length} (model.max_sequence_length). Set stages.serve.serving.output_tokens and "
            f"input_tokens to less, {without}"
        )
    texts = [text for rule in RULES_OF_SERVING if (text := rule(served))]
    # Its keys are those of job=serve, in the section of the stage.
    return "\n".join(re.sub(r"\b(?=(?:serving|engine\.server)\.)", "stages.serve.", text) for text in texts) or None


VALUES: tuple[Rule, ...] = (load_has_weights,)
