"""FSDP gathers embedding, each layer, and norm and head by themselves: no part waits for weights of another.

What it sends in a step is the least that its sharding allows.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from jobs.engines.native.traffic import Traffic, size_bytes
from jobs.plan.cost import parameters
from jobs.rundir import load_run
from tests.support.real_run import events, losses, make_run, printed, rank, train
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
        # Forward and backward; the head, with which backward starts, stays, and the embedding's needs no weights.
        assert Counter(gathered) == {
            embedding: micro_batches, layer: 2 * model.layers * micro_batches, head: micro_batches
        }  # fmt: skip


@pytest.mark.slow
def test_weights_kept_after_forward_are_gathered_once_a_step_and_gradients_reduced_as_chosen(tmp_path: Path) -> None:
    def sent(*settings: str) -> tuple[dict[object, object], list[float]]:
        run = make_run(
            tmp_path / "-".join(settings).replace("=", "-"),
            *settings,
            "job.steps=3",
            "data.max_samples=64",
            "scaling.global_batch_size=16",
        )
        assert set(train(run)) == {0}, printed(run)
        (layout,) = events(run, "layout")
        found: Any = layout["collectives"]
        return {each["collective"]: each["collective_bytes"] for each in found}, losses(run)

    once = 4 * parameters(load_run(make_run(tmp_path / "model").config).model)
    micro_batches = 16 // 2
    _, expected = sent("parallelism=single", "ranks_per_node=1")
    for reduce_each, times in (("micro_batch", micro_batches), ("step", 1)):
        moved, found = sent("parallelism=fsdp_grad_op", "ranks_per_node=2", f"parallelism.reduce_each={reduce_each}")
        assert (moved["all_gather"], moved["reduce_scatter"]) == (once, times * once), reduce_each
        assert found == pytest.approx(expected, rel=1e-5)
