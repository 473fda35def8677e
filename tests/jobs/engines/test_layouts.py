"""Every legal product of parallelisms computes the losses of one process; illegal ones are refused with a reason."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from _pytest.mark import ParameterSet

from jobs.parallelism import Schedule
from tests.support.layouts import TINY, matrix, quick
from tests.support.real_run import make_run, printed, steps, train
from tests.support.training import assert_equal

CASES = matrix()
QUICK = quick()
IN_CI = (
    "parallelism=tp_pp_fsdp-ranks_per_node=4",
    "parallelism=tp_fsdp",
    "parallelism=pp_fsdp-ranks",
    "parallelism=fsdp_hybrid",
    "parallelism=pp-schedule=Interleaved1F1B",
    "parallelism=pp-schedule=ZBVZeroBubble",
)


def marked(name: str) -> ParameterSet:
    """Mark products of more than two ranks as slow, and as long those that are not of CI.

    CI has the product of all techniques on four ranks, and on two ranks TP and PP with sharding, hybrid sharding, and
    the two schedules with several stages on a rank that differ most.
    """
    ranks = CASES[name].ranks
    marks = [pytest.mark.slow] if ranks > 2 else []
    in_ci = name in QUICK and name.startswith(IN_CI)
    return pytest.param(name, marks=marks if in_ci else [*marks, pytest.mark.long])


@pytest.fixture(scope="module")
def one_process(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, float]]:
    """The tiny model on one rank: what every product must reproduce."""
    run = make_run(
        tmp_path_factory.mktemp("one"), *TINY, "parallelism=single", "ranks_per_node=1", "job.micro_batch_size=4",
        small=False,
    )  # fmt: skip
    assert train(run) == [0], printed(run)
    rows = steps(run)
    assert len(rows) == 5
    assert rows[-1]["loss"] < rows[0]["loss"] - 0.1, "a model that learns nothing would hide a wrong update"
    return rows


@pytest.mark.parametrize("name", [marked(name) for name in CASES])
def test_every_legal_product_computes_what_one_process_computes(
    name: str, one_process: list[dict[str, float]], tmp_path: Path
) -> None:
    run = make_run(tmp_path, *TINY, *CASES[name].overrides, "name=case", small=False)
    assert train(run) == [0] * CASES[name].ranks, printed(run)
    assert_equal(steps(run), one_process)


@pytest.mark.long
@pytest.mark.slow
def test_a_tensor_parallel_run_exports_biases_in_litgpts_order_as_weights(tmp_path: Path) -> None:
    more = ("model.attention_bias=true", "job.export=true", "job.steps=2", "scaling.global_batch_size=2")
    runs = [make_run(tmp_path, *more, *each) for each in (
        ("parallelism=single", "ranks_per_node=1"), ("parallelism=tp", "parallelism.tensor=2", "ranks_per_node=2")
    )]  # fmt: skip
    for run, ranks in zip(runs, (1, 2), strict=True):
        assert train(run) == [0] * ranks, printed(run)
    one, split = (torch.load(run.export / "lit_model.pth", weights_only=True) for run in runs)
    assert any(name.endswith("qkv.bias") and value.count_nonzero() for name, value in one.items())
    torch.testing.assert_close(split, one, rtol=1e-3, atol=1e-4)


def test_the_matrix_holds_every_axis_and_schedule_that_a_cpu_can_run() -> None:
    chosen = {override for case in CASES.values() for override in case.overrides}
    assert {f"parallelism.schedule={schedule.name}" for schedule in Schedule} <= chosen
    for axis in ("tensor", "pipeline", "data_replicate", "data_shard"):
        assert {f"parallelism.{axis}={degree}" for degree in (2, 4)} <= chosen, axis
    assert {case.ranks for case in CASES.values()} == {1, 2, 3, 4, 6, 8}
