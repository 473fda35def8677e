"""Data: from a `Data` config to tokenized samples cached on disk, and from samples to deterministic batches.

    sources, records    the content of the files: text, instruction records
    tokenizer           token ids as LitGPT computes them, or a BPE trained on the text itself
    examples            few-shot prompts
    split, account      the samples held out of training; samples, tokens and padding in numbers
    recipe, tokenized   all that determines the samples; their tokens
    prepare             tokenize once into a cache directory named by its content
    dataset             that directory, memory-mapped
    virtual_tokens      positions in front of each sample for prompt tuning
    micro_batches       samples as padded rows, or packed end to end
    batches             the samples of a rank in step n

numpy only: submission tokenizes on the login node, where torch may be missing; ranks call the same functions.
"""

from __future__ import annotations

from jobs.data.batches import Batches, StepBatch, held_out_batches
from jobs.data.dataset import Dataset, open_dataset
from jobs.data.micro_batches import MicroBatch
from jobs.data.prepare import prepare, refuse_unready
from jobs.data.virtual_tokens import with_virtual_tokens

__all__ = [
    "Batches",
    "Dataset",
    "MicroBatch",
    "StepBatch",
    "held_out_batches",
    "open_dataset",
    "prepare",
    "refuse_unready",
    "with_virtual_tokens",
]
