"""The answer to an illegal product of degrees: overrides that compose, nearest first."""

from __future__ import annotations

import itertools
import math
import time
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from jobs.plan.fitting import nearest_fitting
from jobs.plan.legality import problems
from jobs.plan.nearest import nearest_legal
from jobs.schema import Run
from tests.support.composing import one

# Products of degrees alone: most of them need more memory than there is.
GPUS = ("cluster=xe9680_h100", "model=llama2_7b", "job.micro_batch_size=1", "gpu.memory_gb=null")
DEGREES = ("tensor", "pipeline", "context")


def legal(run: Run) -> bool:
    return not problems(run)


def with_parallelism(run: Run, **values: Any) -> Run:
    return replace(run, parallelism=replace(run.parallelism, **values))


def with_batch(run: Run, global_batch_size: int) -> Run:
    return replace(run, scaling=replace(run.scaling, global_batch_size=global_batch_size))


def base(parallelism: str, *overrides: str) -> Run:
    """A legal run, composed once and changed by the tests."""
    return one(*GPUS, f"parallelism={parallelism}", "scaling.global_batch_size=64", *overrides).run


@pytest.fixture(scope="module")
def ddp() -> Run:
    return base("ddp")


@pytest.fixture(scope="module")
def fsdp() -> Run:
    return base("fsdp_full")


def on(run: Run, nodes: int, ranks_per_node: int = 8) -> Run:
    return replace(run, nodes=nodes, ranks_per_node=ranks_per_node)


def given_as(run: Run) -> list[str]:
    """The overrides that a user typed to get this run."""
    p, keys = run.parallelism, (*DEGREES, "data_shard", "data_replicate")
    set_ = [f"parallelism.{key}={value}" for key in keys if (value := getattr(p, key)) is not None]
    return [*GPUS, f"parallelism={p.name}", f"nodes={run.nodes}", f"ranks_per_node={run.ranks_per_node}",
            f"scaling.global_batch_size={run.scaling.global_batch_size}", *set_]  # fmt: skip


def test_a_tensor_degree_that_does_not_fit_is_answered_with_those_beside_it(ddp: Run) -> None:
    assert nearest_legal(with_parallelism(on(ddp, 1), tensor=3), legal, count=2) == [
        "parallelism.tensor=4",
        "parallelism.tensor=2",
    ]


def test_only_keys_that_change_are_printed_and_fewer_of_them_come_first(ddp: Run) -> None:
    found = nearest_legal(with_parallelism(on(ddp, 1), tensor=4, pipeline=4), legal, count=5)
    assert found[:2] == ["parallelism.tensor=2", "parallelism.pipeline=2"]
    assert found.index("parallelism.tensor=1") < found.index("parallelism.tensor=2 parallelism.pipeline=2")


def test_two_small_changes_are_nearer_than_a_large_one(ddp: Run) -> None:
    run = with_parallelism(on(ddp, 4), tensor=2, pipeline=2)
    fitting = {(16, 2), (4, 4)}
    found = nearest_legal(run, lambda it: (it.parallelism.tensor, it.parallelism.pipeline) in fitting, count=1)
    assert found == ["parallelism.tensor=4 parallelism.pipeline=4"]


def test_a_shard_group_that_does_not_divide_is_replaced_or_unset(fsdp: Run) -> None:
    assert nearest_legal(with_parallelism(on(fsdp, 1), data_shard=3), legal) == [
        "parallelism.data_shard=4",
        "parallelism.data_shard=2",
        "parallelism.data_shard=null",
    ]


def test_replicas_and_shards_that_contradict_each_other_are_set_right(fsdp: Run) -> None:
    run = with_parallelism(on(fsdp, 1), data_shard=4, data_replicate=4)
    assert nearest_legal(run, legal, count=4) == [
        "parallelism.data_shard=2",
        "parallelism.data_replicate=2",
        "parallelism.data_shard=null",
        "parallelism.data_replicate=null",
    ]


def test_where_no_degrees_help_other_counts_of_ranks_do() -> None:
    run = replace(one("parallelism=single", "ranks_per_node=1", "model.heads=1", "model.kv_heads=1").run, nodes=3)
    alone = replace(run, model=replace(run.model, layers=1))
    assert nearest_legal(alone, legal)[0] == "nodes=1"


def test_the_global_batch_is_changed_only_when_nothing_else_helps(ddp: Run) -> None:
    run = with_batch(on(ddp, 1, 1), 9)
    run = replace(run, job=replace(run.job, micro_batch_size=4))
    assert nearest_legal(run, legal)[:2] == ["scaling.global_batch_size=8", "scaling.global_batch_size=12"]


def test_weak_scaling_is_answered_in_sequences_per_rank() -> None:
    run = one("ranks_per_node=1", "scaling=weak", "job.micro_batch_size=4", "scaling.sequences_per_rank=8").run
    run = replace(run, scaling=replace(run.scaling, sequences_per_rank=9))
    assert nearest_legal(run, legal)[:2] == ["scaling.sequences_per_rank=8", "scaling.sequences_per_rank=12"]


def test_a_run_that_no_choice_helps_has_no_answer(ddp: Run) -> None:
    assert nearest_legal(ddp, lambda _: False) == []


def test_the_run_is_neither_changed_nor_among_the_answers(fsdp: Run) -> None:
    run = with_parallelism(on(fsdp, 2), tensor=3, data_shard=5)
    before, asked = deepcopy(run), []

    def noting(candidate: Run) -> bool:
        asked.append(candidate)
        return False

    nearest_legal(run, noting)
    assert run == before
    assert run not in asked


def test_a_legal_run_is_answered_with_others(ddp: Run) -> None:
    assert len(nearest_legal(on(ddp, 1), legal)) == 3


degree = st.sampled_from([1, 2, 3, 4, 5, 6, 8, 16])
illegal = {"nodes": st.integers(1, 4), "ranks": st.integers(1, 8), "tensor": degree, "pipeline": degree,
           "context": degree, "shard": st.none() | degree, "replicate": st.none() | degree,
           "batch": st.sampled_from([7, 12, 64, 96])}  # fmt: skip


def made(fsdp: Run, nodes: int, ranks: int, batch: int, **degrees: int | None) -> Run:
    names = {"shard": "data_shard", "replicate": "data_replicate"}
    values = {names.get(key, key): value for key, value in degrees.items()}
    run = with_parallelism(with_batch(on(fsdp, nodes, ranks), batch), **values)
    assume(not legal(run))
    return run


@given(**illegal)
def test_answers_are_deterministic_and_distinct(fsdp: Run, **values: Any) -> None:
    run = made(fsdp, **values)
    found = nearest_legal(run, legal)
    assert len(set(found)) == len(found) <= 3
    assert nearest_legal(deepcopy(run), legal) == found


@pytest.mark.long
@pytest.mark.slow
@given(**illegal)
@settings(max_examples=20)
def test_every_answer_composes_to_a_legal_run(fsdp: Run, **values: Any) -> None:
    run = made(fsdp, **values)
    for text in nearest_legal(run, legal):
        changed = {change.split("=")[0] for change in text.split()}
        kept = [override for override in given_as(run) if override.split("=")[0] not in changed]
        assert legal(one(*kept, *text.split()).run)


@given(**illegal)
def test_the_first_answer_is_the_nearest_product_that_an_exhaustive_search_finds(fsdp: Run, **values: Any) -> None:
    run = made(fsdp, **(values | {"shard": None, "replicate": None}))
    old = [getattr(run.parallelism, key) for key in DEGREES]

    def far(new: tuple[int, ...]) -> float:
        return sum(abs(math.log2(b / a)) for a, b in zip(old, new, strict=True))

    whole = [n for n in range(1, run.ranks + 1) if run.ranks % n == 0]
    fitting = (new for new in itertools.product(whole, repeat=3) if run.ranks % math.prod(new) == 0)
    possible = [far(new) for new in fitting if legal(with_parallelism(run, **dict(zip(DEGREES, new, strict=True))))]
    found = nearest_legal(run, legal, count=1)
    if possible:
        changes = dict(change.removeprefix("parallelism.").split("=") for change in found[0].split())
        assert set(changes) <= set(DEGREES)
        new = tuple(int(changes.get(key, value)) for key, value in zip(DEGREES, old, strict=True))
        assert far(new) == pytest.approx(min(possible))
    else:
        others = ("nodes=", "ranks_per_node=", "scaling.global_batch_size=")
        assert found
        assert all(any(change.startswith(others) for change in text.split()) for text in found)


def test_a_thousand_ranks_are_answered_while_a_person_blinks(fsdp: Run) -> None:
    run = with_parallelism(with_batch(on(fsdp, 128), 1024), tensor=12, pipeline=10, data_shard=7)
    times_s = []
    for _ in range(3):
        start = time.perf_counter()
        assert nearest_legal(run, legal)
        times_s.append(time.perf_counter() - start)
    assert min(times_s) < 0.25  # about 0.02 on an idle machine


def test_up_to_4096_nodes_are_offered_where_the_cluster_sets_no_limit(fsdp: Run) -> None:
    assert fsdp.cluster.max_nodes is None
    (offered,) = nearest_fitting(fsdp, lambda near: near.nodes == 4096, 1)
    assert "nodes=4096" in offered.split()
    assert not nearest_fitting(fsdp, lambda near: near.nodes > 4096)
