"""FSDP gathers embedding, each layer, and norm and head by themselves: no part waits for weights of another."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from jobs.engines.native.traffic import Traffic, size_bytes
from jobs.plan.cost import parameters
from jobs.rundir import load_run
from tests.support.real_run import make_run, printed, rank, train
from tests.support.training import long


def gathering_rank(directory: Path, number: int, world: int, start: str) -> None:
    """One rank, which writes the bytes of each all-gather of the counted step."""
    gathered: list[int] = []
    count = Traffic.count

    def record(self: Traffic, operator: str, args: tuple[Any, ...], result: Any) -> None:
        if "allgather" in operator:
            gathered.append(max(size_bytes(side) for side in (*args[:2], result)))
        count(self, operator, args, result)

    Traffic.count = record  # type: ignore[method-assign]
    try:
        rank(directory, number, world, start)
    finally:
        (directory / f"gathered{number}.json").write_text(json.dumps(gathered))


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["chunked", long("whole")])
def test_the_first_layer_waits_for_the_embedding_only(loss: str, tmp_path: Path) -> None:
    run = make_run(tmp_path, "parallelism=fsdp_full", "ranks_per_node=2", "job.micro_batch_size=2", "job.steps=3",
                   f"engine.loss={loss}")  # fmt: skip
    assert set(train(run, of_rank=gathering_rank)) == {0}, printed(run)
    model = load_run(run.config).model
    micro_batches = 8 // (2 * 2)
    embedding = 4 * model.vocab_size * model.hidden_size
    head = embedding + 4 * model.hidden_size
    layer = (4 * parameters(model) - embedding - head) // model.layers
    for file in run.path.glob("gathered*.json"):
        gathered = json.loads(file.read_text())
        assert gathered[0] == embedding
        # Forward and backward; the head, with which backward starts, stays.
        assert Counter(gathered) == {
            embedding: 2 * micro_batches, layer: 2 * model.layers * micro_batches, head: micro_batches
        }  # fmt: skip
