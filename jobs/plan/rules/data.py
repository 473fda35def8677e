"""Rules of the data that need no file of it: prompt templates, held-out samples."""

from __future__ import annotations

from jobs.errors import DataError
from jobs.plan.rules.rule import Rule
from jobs.prompt_template import template_of
from jobs.schema import INSTRUCTIONS, Run


def prompt_fits_the_records(run: Run) -> str | None:
    """Require a prompt template for instruction data only, with fields that its records have."""
    if run.data.source not in INSTRUCTIONS:
        if run.data.prompt is None:
            return None
        return (
            f"data.prompt={run.data.prompt} has no meaning with data.source={run.data.source.name}, which is not "
            "instruction data. Set data.prompt=null."
        )
    try:
        template_of(run.data)
    except DataError as error:
        return str(error)
    return None


def held_out_samples_are_counted(run: Run) -> str | None:
    """Require held-out samples as a number, or as a share or number to draw, and not both."""
    data, split = run.data, run.data.test_split
    if split is None:
        return None
    if not split > 0 or (split >= 1 and not split.is_integer()):
        return (
            f"data.test_split={split:g} is neither a share between 0 and 1 nor a number of samples. Set "
            "data.test_split=0.2, data.test_split=100, or null."
        )
    if data.held_out_samples:
        return (
            f"data.test_split={split:g} draws the held-out samples, and data.held_out_samples={data.held_out_samples} "
            "takes the last ones. Set data.held_out_samples=0, or data.test_split=null."
        )
    return None


def examples_are_no_training_data(run: Run) -> str | None:
    """Require examples in prompts of instruction data, and no training on samples that could be their own example."""
    shots = run.data.shots
    if shots and run.data.source not in INSTRUCTIONS:
        return (
            f"data.shots={shots} has no meaning with data.source={run.data.source.name}, which is not instruction "
            "data. Set data.shots=0."
        )
    if shots and run.job.train:
        return (
            f"data.shots={shots} puts samples of the training data into prompts, which then contain answers that are "
            "trained on. Set data.shots=0, or job=evaluate."
        )
    return None


RULES: tuple[Rule, ...] = (prompt_fits_the_records, held_out_samples_are_counted, examples_are_no_training_data)
