"""Parameters that train next to frozen weights: adapters (LoRA), or virtual tokens (prompt tuning, P-tuning)."""

from __future__ import annotations

import torch
from litgpt.model import GPT

from jobs.engines.native.customization.lora import ADAPTER, adapt, with_adapters
from jobs.engines.native.customization.nf4 import quantize
from jobs.engines.native.customization.prompt_tuning import PROMPT, add_prompt, with_prompt
from jobs.engines.native.weights import TYPES, Values
from jobs.schema import Job


def customize(gpt: GPT, job: Job, dtype: torch.dtype) -> None:
    """Add the trainable parameters and freeze all weights, in place; full fine-tuning changes nothing."""
    if job.lora is not None:
        if job.lora.quantize_base is not None:
            quantize(gpt, TYPES[job.precision])
        adapt(gpt, job.lora, dtype)
    if job.prompt_tuning is not None:
        add_prompt(gpt, job.prompt_tuning, dtype)
    if not job.trains_all_weights:
        for name, parameter in gpt.named_parameters():
            parameter.requires_grad_(ADAPTER in name or name.startswith(PROMPT))


def with_first_values(values: Values, gpt: GPT, job: Job) -> Values:
    """Return a source of first weights that draws what was added from the seed, and takes all others from `values`."""
    if job.lora is not None:
        return with_adapters(values, job.seed)
    if job.prompt_tuning is not None:
        return with_prompt(values, job.prompt_tuning, gpt.config, job.seed)
    return values
