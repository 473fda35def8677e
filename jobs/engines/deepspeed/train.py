"""Training by DeepSpeed: the loop of jobs.work.train.loop with ZeRO's partitions, update and checkpoints.

Only `train` imports DeepSpeed, which takes seconds and is not installed everywhere.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

import torch

from jobs.errors import ConfigError
from jobs.lease import Lease
from jobs.ranks import Rank, torchrun_environment
from jobs.schema import Run
from jobs.work.train import loop
from jobs.work.train.tokens import Tokens


def train(run: Run, lease: Lease, rank: Rank) -> None:
    """Train one run to its end, or stop at a step boundary after a signal.

    Raise ConfigError without DeepSpeed, and SupersededError on all ranks, at a step boundary, if another start takes
    the run over.
    """
    if find_spec("deepspeed") is None:
        raise ConfigError(
            "engine=deepspeed needs DeepSpeed on the nodes, and their Python has none. Run pip install --editable "
            "'.[train,deepspeed]' in the checkout, or set a container or cluster.python that has it."
        )
    os.environ |= torchrun_environment(rank, run.ranks_per_node)
    if not torch.cuda.is_available():
        # Else it looks for other accelerators, and warns that it found none.
        os.environ["DS_ACCELERATOR"] = "cpu"
    from jobs.engines.deepspeed.trainer import Trainer

    loop.train(run, lease, rank, Tokens, Trainer)
