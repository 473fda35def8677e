"""The rank grid, exhaustively up to 64 ranks."""

from __future__ import annotations

import math
from dataclasses import fields
from itertools import product

import pytest

from jobs.engines.native.loss_chunk import loss_chunk
from jobs.layout import Layout, padding
from jobs.parallelism import AXES, AXIS_NAMES, DATA_AXES, DP_REPLICATE, DP_SHARD, MODEL_AXES, TP, Parallelism
from jobs.plan.table import plan_notes
from tests.support.composing import one


def grids(most: int) -> list[Layout]:
    degrees = (1, 2, 3, 4)
    return [
        Layout(world // rpn, rpn, shape)
        for shape in product(degrees, repeat=len(AXES))
        if (world := math.prod(shape)) <= most
        for rpn in degrees
        if world % rpn == 0
    ]


def test_every_axis_is_a_key_of_the_configuration_and_the_users_to_set_or_data_parallel() -> None:
    assert {axis.name for axis in (*MODEL_AXES, *DATA_AXES)} == set(AXIS_NAMES)
    assert {axis.field for axis in AXES} <= {field.name for field in fields(Parallelism)}


def test_the_groups_of_every_axis_partition_the_ranks() -> None:
    for layout in grids(64):
        for axis, degree in zip(AXES, layout.shape, strict=True):
            groups = layout.groups(axis)
            assert sorted(rank for group in groups for rank in group) == list(range(layout.world_size))
            assert {len(group) for group in groups} == {degree}


def test_a_group_differs_in_its_own_axis_only_and_runs_along_it() -> None:
    for layout in grids(24):
        for index, axis in enumerate(AXES):
            for group in layout.groups(axis):
                places = [layout.coordinates(rank) for rank in group]
                assert [place[index] for place in places] == list(range(layout.shape[index]))
                assert len({place[:index] + place[index + 1 :] for place in places}) == 1


def test_the_tensor_axis_stays_inside_a_node_when_it_divides_it() -> None:
    for layout in grids(64):
        if layout.ranks_per_node % layout.degree(TP) == 0:
            assert not layout.crosses_nodes(TP)


def test_a_grid_that_does_not_fill_the_world_is_an_assertion_error() -> None:
    with pytest.raises(AssertionError, match="= 4, world size = 2"):
        Layout(nodes=1, ranks_per_node=2, shape=(2, 2, 1, 1, 1, 1))


@pytest.mark.parametrize(
    ("parallelism", "replicate", "shard"),
    [("ddp", 8, 1), ("fsdp_full", 1, 8), ("fsdp_grad_op", 1, 8), ("fsdp_no_shard", 8, 1), ("fsdp_hybrid", 2, 4)],
)
def test_each_parallelism_cuts_eight_ranks_on_two_nodes_as_its_name_states(
    parallelism: str, replicate: int, shard: int
) -> None:
    from jobs.layout import layout_of

    layout = layout_of(one(f"parallelism={parallelism}", "nodes=2", "ranks_per_node=4", "job.micro_batch_size=1").run)
    assert (layout.degree(DP_REPLICATE), layout.degree(DP_SHARD)) == (replicate, shard)
    assert not layout.crosses_nodes(DP_SHARD) or parallelism in {"fsdp_full", "fsdp_grad_op"}


def test_a_hybrid_shard_group_stays_inside_a_node_beside_context_parallelism() -> None:
    from jobs.layout import layout_of

    gpus = ("cluster=xe9680_h100", "model=llama2_7b", "job.micro_batch_size=1", "scaling.global_batch_size=64")
    layout = layout_of(one(*gpus, "parallelism=fsdp_hybrid", "parallelism.context=2", "nodes=2").run)
    assert (layout.degree(DP_REPLICATE), layout.degree(DP_SHARD)) == (2, 4)
    assert not layout.crosses_nodes(DP_SHARD)


@pytest.mark.parametrize(
    ("overrides", "multiple"),
    [
        (("ranks_per_node=1",), 1),
        (("ranks_per_node=1", "gpu=h100_sxm"), 64),
        (("ranks_per_node=1", "gpu=h100_sxm", "job.sequence_length=96"), 1),
        (("parallelism=tp", "ranks_per_node=2"), 2),
        (("parallelism=tp", "ranks_per_node=2", "gpu=h100_sxm"), 64),
    ],
)
def test_rows_have_few_lengths_on_gpus_and_none_beyond_the_sequence(overrides: tuple[str, ...], multiple: int) -> None:
    run = one(*overrides).run
    assert padding(run) == (multiple, False)
    assert run.job.sequence_length % multiple == 0


@pytest.mark.parametrize(
    ("overrides", "chunk"),
    [
        (("cluster=xe9680_h100", "model=llama3_8b", "job.sequence_length=8192"), 4096),
        (("cluster=xe9680_h100", "model=llama3_8b", "job.sequence_length=8192", "parallelism.tensor=8"), None),
        (("cluster=xe9680_h100", "model=llama2_7b", "job.sequence_length=4096"), None),
        (("cluster=xe9680_h100", "model=llama2_7b", "job.sequence_length=4096", "job.micro_batch_size=4"), 8192),
        (("cluster=xe9680_h100", "model=llama2_7b", "job.micro_batch_size=4", "engine.loss=whole"), None),
        (("cluster=xe9680_h100", "model=llama2_7b", "job.sequence_length=512", "engine.loss=chunked"), 8192),
        (
            (
                "cluster=generic_slurm",
                "cluster.gpus=true",
                "ranks_per_node=1",
                "model=llama3_8b",
                "job.sequence_length=8192",
            ),
            4096,
        ),
        (("model=llama3_8b", "job.sequence_length=8192"), None),
        (("model=llama3_8b", "engine.loss=chunked"), 1024),
    ],
)
def test_gpus_compute_the_loss_in_chunks_that_their_memory_holds_and_the_plan_prints_it(
    overrides: tuple[str, ...], chunk: int | None
) -> None:
    kept = "engine.activation_checkpointing=full"  # what fits the memory that decides
    run = one("job.micro_batch_size=1", "ranks_per_node=8", "parallelism=fsdp_full", kept, *overrides).run
    assert loss_chunk(run) == chunk
    printed = [note for note in plan_notes([run]) if note.startswith("loss")]
    assert printed == ([f"loss ({run.name}): from the logits of {chunk:,} labels at a time (engine.loss=chunked)"]
                       if chunk else [])  # fmt: skip
