"""Predictions of Megatron's EP, where replicas divide the experts: states, traffic, and proposed layouts."""

from __future__ import annotations

import random

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


NUMBERS = 4096 * 2048
"""Of a micro-batch at the input of a layer."""


def test_copies_of_tokens_are_ordered_once_more_where_they_travel() -> None:
    # Forward and backward; to the experts and back: a token is read once, and its eight copies are written.
    assert permuted_bytes(run_with()) == 2 * 2 * (2 * 9) * NUMBERS
    assert permuted_bytes(run_with("parallelism.expert=8")) == 2 * 2 * (2 * 9 + 4 * 8) * NUMBERS
    # The rows that reach a rank with one expert are in order.
    alone = ("model.experts=16", "parallelism.expert=16")
    assert permuted_bytes(run_with(*alone)) == 2 * 2 * (2 * 9) * NUMBERS


def test_under_tp_each_rank_sends_its_part_of_the_tokens_and_gathers_what_reaches_the_others() -> None:
    cut = ("parallelism=tp", "parallelism.tensor=2", "parallelism.expert=4")
    whole, parts = stage("parallelism.expert=4"), stage(*cut)
    # 48 layers, 8 copies, 4 exchanges of bfloat16: 3 of 4 copies leave their rank, with TP a half of the tokens each.
    assert whole.expert.inside_bytes == pytest.approx(48 * 4 * 8 * 3 / 4 * 2 * NUMBERS)
    assert parts.expert.inside_bytes == pytest.approx(whole.expert.inside_bytes / 2)
    # Half of each copy is on the other rank of TP; gathered and scattered in forward and in backward.
    assert parts.expert_tensor.wire_bytes == pytest.approx(48 * 4 * 8 / 2 * 2 * NUMBERS)
    # Of attention and the head only: sequence parallelism gathers their input in backward again.
    assert parts.tensor.wire_bytes == pytest.approx((48 + 1) * 5 / 2 * 2 * NUMBERS)
    assert permuted_bytes(run_with(*cut)) == 2 * 2 * (2 * 9 / 2 + 4 * 8) * NUMBERS


def test_deepep_sends_a_token_once_to_each_rank_and_once_across_the_network_to_each_node() -> None:
    plain, fewer = (
        stage("parallelism.expert=16", f"engine.expert_dispatcher={each}") for each in ("all_to_all", "deepep")
    )
    # Draws of 8 of the 128 experts, of which a rank has 8: the ranks that a token reaches.
    chance = random.Random(0)
    draws = [{expert // 8 for expert in chance.sample(range(128), 8)} for _ in range(20_000)]
    of_a_rank = sum(map(len, draws)) / len(draws) / 16
    of_a_node = sum(any(rank >= 8 for rank in ranks) for ranks in draws) / len(draws)
    each = 48 * 4 * 2 * NUMBERS
    assert plain.expert.outside_bytes == pytest.approx(8 / 2 * each)
    assert fewer.expert.outside_bytes == pytest.approx(of_a_node * each, rel=0.01)
    # On both nodes to the seven other ranks: from where it is, or has arrived.
    assert fewer.expert.inside_bytes == pytest.approx(2 * 7 * of_a_rank * each, rel=0.01)
    ordered = permuted_bytes(run_with("parallelism.expert=16", "engine.expert_dispatcher=deepep"))
    assert ordered == pytest.approx(2 * 2 * 2 * (16 * of_a_rank + 8) * NUMBERS, rel=0.01)


def test_a_search_proposes_to_divide_the_experts_among_replicas() -> None:
    found = list(read_layouts([each for each in QWEN if each != "parallelism=ddp"]).layouts())
    assert {each.run.parallelism.expert for each in found} >= {1, 2, 4, 8, 16}
    assert any("parallelism=ddp parallelism.expert=16" in each.overrides for each in found)
    assert not any(each.run.parallelism.expert > 1 and each.run.parallelism.context > 1 for each in found)
