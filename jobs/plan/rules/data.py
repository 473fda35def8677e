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
            f"data.prompt={run.data.prompt} has no meaning with data.source={run.data.source.name}, which is no "
            "instruction data. Set data.prompt=null."
        )
    try:
        template_of(run.data)
    except DataError as error:
        return str(error)
    return None


RULES: tuple[Rule, ...] = (prompt_fits_the_records,)
