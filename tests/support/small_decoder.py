"""The small model of the tests in one process, with weights large enough for attention to matter."""

from __future__ import annotations

import torch

from jobs.engines.native.load_sharded import load_sharded
from jobs.engines.native.model import Decoder, empty_model
from jobs.engines.native.weights import values_of
from tests.support.composing import one
from tests.support.real_run import SMALL


def decoder(*overrides: str, chunk: int | None = None) -> Decoder:
    """The model for rows of up to 32 positions; `chunk`: size of the parts of its loss."""
    run = one(*SMALL, "parallelism=single", "ranks_per_node=1", *overrides).run
    gpt = empty_model(run.model, 32, chunk)
    load_sharded(gpt, torch.device("cpu"), values_of(None, 7), tensor=1, tied=False)
    with torch.no_grad():
        for weight in gpt.parameters():
            if weight.ndim == 2:
                weight.mul_(8)
    return gpt
