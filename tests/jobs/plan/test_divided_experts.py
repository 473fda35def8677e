"""Predictions of Megatron's EP, where replicas divide the experts: states, traffic, and proposed layouts."""

from __future__ import annotations

import pytest

from jobs.explore.layouts import read_layouts
from jobs.plan.predict.matrix_products import permuted_bytes
from jobs.plan.predict.states import states
from jobs.plan.predict.step_time import StageWork, step_work
from jobs.schema import Run
from tests.support.composing import one

QWEN = ("model=qwen3_30b_a3b", "engine=nemo", "cluster=xe9680_h100", "nodes=2", "parallelism=ddp",
        "engine.distributed_optimizer=true", "job.micro_batch_size=1", "scaling.global_batch_size=512",
        "job.precision=bfloat16", "job.sequence_length=4096", "gpu.memory_gb=null")  # fmt: skip
EXPERTS = 48 * 128 * 3 * 2048 * 768
OTHERS = 30_532_122_624 - EXPERTS


def run_with(*overrides: str) -> Run:
    return one(*QWEN, *overrides).run


def stage(*overrides: str) -> StageWork:
    work = step_work(run_with(*overrides))
    assert work is not None
    (only,) = work.stages
    return only


@pytest.mark.parametrize("expert", [1, 2, 8, 16])
def test_a_rank_holds_its_experts_and_shards_their_optimizer_over_the_ranks_that_have_the_same(expert: int) -> None:
    held = states(run_with(f"parallelism.expert={expert}"))
    mine = OTHERS + EXPERTS // expert
    assert held.weights == 2 * mine
    assert held.gradients == 4 * mine
    # A float32 copy and two moments: of all other weights a sixteenth, of experts as much whatever EP is.
    assert held.optimizer == pytest.approx(12 * (OTHERS + EXPERTS) / 16, rel=1e-6)


def test_without_a_distributed_optimizer_a_rank_has_the_whole_state_of_its_experts() -> None:
    held = states(run_with("parallelism.expert=8", "engine.distributed_optimizer=false"))
    assert held.optimizer == 12 * (OTHERS + EXPERTS // 8)


def test_gradients_of_experts_are_reduced_among_the_ranks_that_have_the_same() -> None:
    # Gradients in float32 and weights in bfloat16, (n - 1) / n of each.
    whole, divided = stage("parallelism.expert=1"), stage("parallelism.expert=8")
    assert whole.replica.wire_bytes == pytest.approx(6 * 15 / 16 * (OTHERS + EXPERTS), rel=1e-3)
    assert divided.replica.wire_bytes == pytest.approx(6 * 15 / 16 * OTHERS, rel=1e-2)
    assert divided.expert_replica.group.ranks == 2
    assert divided.expert_replica.wire_bytes == pytest.approx(6 * 1 / 2 * EXPERTS / 8, rel=1e-6)
    assert stage("parallelism.expert=16").expert_replica.group.ranks == 1
    # The same parameters are updated by each rank.
    assert divided.optimizer_s == pytest.approx(whole.optimizer_s, rel=1e-6)


def test_copies_of_tokens_are_ordered_once_more_where_they_travel() -> None:
    numbers = 4096 * 2048
    # Forward and backward; to the experts and back: a token is read once, and its eight copies are written.
    assert permuted_bytes(run_with()) == 2 * 2 * (2 * 9) * numbers
    assert permuted_bytes(run_with("parallelism.expert=8")) == 2 * 2 * (2 * 9 + 4 * 8) * numbers


def test_a_search_proposes_to_divide_the_experts_among_replicas() -> None:
    found = list(read_layouts([each for each in QWEN if each != "parallelism=ddp"]).layouts())
    assert {each.run.parallelism.expert for each in found} >= {1, 2, 4, 8, 16}
    assert any("parallelism=ddp parallelism.expert=16" in each.overrides for each in found)
    assert not any(each.run.parallelism.expert > 1 and each.run.parallelism.context > 1 for each in found)
