"""Samples that LitGPT, which tokenizes instructions itself, would read otherwise than other engines."""

from __future__ import annotations

from jobs.data import Dataset
from jobs.data.tokenizer import CONFIG
from jobs.engines.litgpt.arguments import Script, script_of
from jobs.errors import DataError
from jobs.schema import Run


def refuse_bare_tokenizer(run: Run, dataset: Dataset) -> None:
    """Raise DataError if the tokenizer has no configuration file, which LitGPT's fine-tuning reads."""
    names = {file.name for file in dataset.tokenizer_files}
    if script_of(run) is not Script.pretrain and CONFIG not in names:
        raise DataError(
            f"engine=litgpt needs a {CONFIG} next to the tokenizer, and data.tokenizer={run.data.tokenizer} has none. "
            "Copy the file that comes with the tokenizer."
        )


def refuse_unended(dataset: Dataset) -> None:
    """Raise DataError where LitGPT would leave responses without an end token."""
    unended = int(dataset.meta.get("litgpt_unended", 0))
    if unended:
        raise DataError(
            f"{unended} of {len(dataset)} responses already end with the tokenizer's end token, and LitGPT removes it, "
            "so that the model would not learn to stop. Set engine=native, or data.prompt to a template whose response "
            "does not end with that token, and data.tokenizer to one that adds no end token itself."
        )
