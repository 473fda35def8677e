"""Scaling: known truths recovered from runs with known numbers, and comparisons that must not be made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.compare.loss import loss_doubts
from analysis.intervals import Spread
from analysis.load.discover import read_runs
from analysis.report.caveats import warnings
from analysis.report.digest import Digest
from analysis.report.headline import headlines
from analysis.report.points_table import point_table
from analysis.scaling.groups import Group, scaling_groups
from jobs.parallelism import Parallelism, Sharding, Strategy
from jobs.schema import Precision, Run, Scaling, ScalingMode
from tests.support.fake_runs import a_run, finished_run, prepared, with_job
from tests.support.measured_runs import RIGHT, SLIGHTLY_OFF, WRONG, measured_run


def groups_in(path: Path) -> list[Group]:
    return scaling_groups(read_runs([path]))


def answer_in(path: Path) -> str:
    runs = read_runs([path])
    return " ".join(headlines(Digest(runs, scaling_groups(runs, loss_doubts(runs)))))


# --- known truths ----------------------------------------------------------------------------------------------


def test_perfect_strong_scaling_has_speedup_ranks_and_efficiency_one(tmp_path: Path) -> None:
    for ranks in (1, 2, 4, 8):
        finished_run(tmp_path, a_run(f"n{ranks}", nodes=ranks), step_time_s=1.0 / ranks)
    (group,) = groups_in(tmp_path)
    speedups = [group.speedup(point) for point in group.points]
    assert speedups == [Spread(ranks, ranks, ranks, 1) for ranks in (1, 2, 4, 8)]
    assert [group.efficiency(point) for point in group.points] == [Spread(1, 1, 1, 1)] * 4


def test_weak_scaling_has_an_efficiency_and_no_speedup(tmp_path: Path) -> None:
    # Twice the work in 1.25 times the time.
    finished_run(tmp_path, a_run("n1", weak=True), step_time_s=1.0, tokens=1000)
    finished_run(tmp_path, a_run("n2", weak=True, nodes=2), step_time_s=1.25, tokens=2000)
    (group,) = groups_in(tmp_path)
    efficiency = group.efficiency(group.points[1])
    assert efficiency is not None
    assert efficiency.median == 0.8
    assert group.speedup(group.points[1]) is None


def test_repeats_stay_repeats_median_smallest_largest_and_count(tmp_path: Path) -> None:
    for repeat, step_time_s in enumerate((0.5, 0.25, 1.0), start=1):
        finished_run(tmp_path, a_run(f"r{repeat}", repeat=repeat), step_time_s=step_time_s)
    (group,) = groups_in(tmp_path)
    (point,) = group.points
    assert point.throughput == Spread(median=2048, low=1024, high=4096, n=3)


def test_the_spread_of_an_efficiency_is_that_of_its_repeats_over_the_references_median(tmp_path: Path) -> None:
    for repeat, (one, two) in enumerate(((1.0, 0.5), (2.0, 1.0), (4.0, 2.0)), start=1):
        finished_run(tmp_path, a_run(f"n1-r{repeat}", repeat=repeat), step_time_s=one)
        finished_run(tmp_path, a_run(f"n2-r{repeat}", nodes=2, repeat=repeat), step_time_s=two)
    (group,) = groups_in(tmp_path)
    assert group.efficiency(group.points[1]) == Spread(median=1.0, low=0.5, high=2.0, n=3)


def test_the_reference_is_the_fewest_ranks_that_were_measured(tmp_path: Path) -> None:
    prepared(tmp_path, a_run("n1"))  # never started: no point
    finished_run(tmp_path, a_run("n2", nodes=2), step_time_s=1.0)
    finished_run(tmp_path, a_run("n8", nodes=8), step_time_s=0.5)
    (group,) = groups_in(tmp_path)
    assert group.reference is not None
    assert group.reference.place == "2 ranks on 2 nodes"
    assert group.efficiency(group.points[1]) == Spread(0.5, 0.5, 0.5, 1)


def test_one_rank_count_gives_no_reference_and_no_speedup(tmp_path: Path) -> None:
    finished_run(tmp_path, a_run("one-node", ranks_per_node=2))
    finished_run(tmp_path, a_run("two-nodes", nodes=2))
    (group,) = groups_in(tmp_path)
    assert [point.place for point in group.points] == ["2 ranks on 1 node", "2 ranks on 2 nodes"]
    assert group.reference is None
    assert group.efficiency(group.points[1]) is None
    assert group.speedup(group.points[1]) is None


def test_a_line_of_one_point_has_the_declared_mode(tmp_path: Path) -> None:
    finished_run(tmp_path, a_run("n1", weak=True))
    (one,) = groups_in(tmp_path)
    assert one.mode == "weak"


@given(
    st.lists(
        st.tuples(st.integers(1, 64), st.floats(1.0, 1e6)), min_size=2, max_size=12, unique_by=lambda item: item[0]
    )
)
def test_speedup_is_efficiency_times_the_ratio_of_ranks(points: list[tuple[int, float]]) -> None:
    (group,) = scaling_groups(measured_run(nodes, rate) for nodes, rate in points)
    assert group.reference is not None
    for point in group.points:
        speedup, efficiency = group.speedup(point), group.efficiency(point)
        assert speedup is not None
        assert efficiency is not None
        assert speedup.median == pytest.approx(efficiency.median * point.ranks / group.reference.ranks)


@given(st.floats(0.0, 1.0))
def test_amdahls_law_is_recovered(serial: float) -> None:
    def rate(ranks: int) -> float:
        return 1000 / (serial + (1 - serial) / ranks)

    (group,) = scaling_groups(measured_run(ranks, rate(ranks)) for ranks in (1, 2, 4, 8, 16))
    speedups = [spread.median for point in group.points if (spread := group.speedup(point))]
    efficiencies = [spread.median for point in group.points if (spread := group.efficiency(point))]
    assert speedups == pytest.approx([1 / (serial + (1 - serial) / ranks) for ranks in (1, 2, 4, 8, 16)])
    assert efficiencies[0] == 1
    assert all(later <= earlier * (1 + 1e-12) for earlier, later in pairwise(efficiencies))


@given(st.lists(st.floats(1.0, 1e6), min_size=1, max_size=9), st.randoms(use_true_random=False))
def test_the_order_of_the_runs_does_not_matter(rates: list[float], random: Any) -> None:
    runs = [measured_run(1, rate, repeat=i) for i, rate in enumerate(rates)]
    shuffled = random.sample(runs, len(runs))
    assert scaling_groups(runs)[0].points[0].throughput == scaling_groups(shuffled)[0].points[0].throughput


# --- comparisons that must not be made -------------------------------------------------------------------------

OTHER = {
    "global_batch_size=32": lambda run: replace(run, scaling=Scaling(mode=ScalingMode.strong, global_batch_size=32)),
    "learning_rate=0.01": lambda run: with_job(run, learning_rate=0.01),
    "precision=bfloat16": lambda run: with_job(run, precision=Precision.bfloat16),
    "layers=4": lambda run: replace(run, model=replace(run.model, layers=4)),
    "weak": lambda run: replace(run, scaling=Scaling(mode=ScalingMode.weak, sequences_per_rank=16)),
}


@pytest.mark.parametrize("label", OTHER)
def test_runs_that_differ_in_a_setting_are_not_points_of_one_line(tmp_path: Path, label: str) -> None:
    change: Callable[[Run], Run] = OTHER[label]
    finished_run(tmp_path, a_run("a"))
    finished_run(tmp_path, change(a_run("b", nodes=2)))
    groups = groups_in(tmp_path)
    assert len(groups) == 2
    assert any(group.label.endswith(label) for group in groups)
    assert all(group.reference is None for group in groups)


def test_runs_on_other_devices_are_not_points_of_one_line(tmp_path: Path) -> None:
    finished_run(tmp_path, a_run("a"))
    finished_run(tmp_path, a_run("b", nodes=2), device_name="Other CPU")
    assert [group.label for group in groups_in(tmp_path)] == ["ddp device=Other CPU", "ddp device=Test CPU"]


def test_time_limit_sweep_and_cache_do_not_part_a_line(tmp_path: Path) -> None:
    finished_run(tmp_path, a_run("a"))
    moved = replace(a_run("b", nodes=2, sweep="other"), wall_time_min=99, runs_dir="elsewhere")
    finished_run(tmp_path, replace(moved, data=replace(moved.data, cache_dir="scratch")))
    assert len(groups_in(tmp_path)) == 1


def test_a_label_names_the_model_only_where_models_differ(tmp_path: Path) -> None:
    finished_run(tmp_path, a_run("a", model="tiny"))
    (one,) = groups_in(tmp_path)
    finished_run(tmp_path, a_run("b", model="large"))
    two = groups_in(tmp_path)
    assert (one.label, one.described) == ("ddp", "tiny with ddp")
    assert [(group.label, group.described) for group in two] == [
        ("large ddp", "large with ddp"),
        ("tiny ddp", "tiny with ddp"),
    ]


def test_a_label_states_what_a_name_stands_for_only_once(tmp_path: Path) -> None:
    finished_run(tmp_path, a_run("a"))
    finished_run(tmp_path, with_job(a_run("b"), name="finetune", learning_rate=0.5, weight_decay=0.0))
    assert [group.label for group in groups_in(tmp_path)] == ["ddp finetune", "ddp pretrain"]


# --- a fast wrong run does not win -----------------------------------------------------------------------------


def a_sweep_with_a_fast_wrong_run(path: Path) -> None:
    sharded = Parallelism(name="fsdp_full", strategy=Strategy.fsdp, sharding=Sharding.FULL_SHARD)
    for i in (1, 2, 3):
        finished_run(path, a_run(f"ddp-r{i}", repeat=i), losses=RIGHT)
    finished_run(path, replace(a_run("wrong"), parallelism=sharded), losses=WRONG, step_time_s=0.001)


def test_a_fast_run_with_another_loss_is_not_named_fastest(tmp_path: Path) -> None:
    a_sweep_with_a_fast_wrong_run(tmp_path)
    runs = read_runs([tmp_path])
    doubts = loss_doubts(runs)
    assert {path.name: text for path, text in doubts.items()} == {
        "wrong": "final loss 5 is 150.0 % from 2, the median of 4 runs of the same model, data, job and global batch"
    }
    assert "tiny with ddp reaches 2,048 tokens/s" in answer_in(tmp_path)
    assert any(
        "never named fastest: a fast wrong run does not win" in message
        for message in warnings(Digest(runs, doubts=doubts))
    )


def test_a_doubted_repeat_does_not_enter_the_median(tmp_path: Path) -> None:
    for i in (1, 2, 3):
        finished_run(tmp_path, a_run(f"r{i}", repeat=i), losses=RIGHT)
    finished_run(tmp_path, a_run("r4", repeat=4), losses=WRONG, step_time_s=0.001)
    runs = read_runs([tmp_path])
    (group,) = scaling_groups(runs, loss_doubts(runs))
    (point,) = group.points
    assert point.throughput == Spread(2048, 2048, 2048, 3)
    assert [run.name for run in point.doubted] == ["r4"]


def test_two_runs_that_disagree_are_both_doubted(tmp_path: Path) -> None:
    finished_run(tmp_path, a_run("a"), losses=RIGHT)
    finished_run(tmp_path, a_run("b", nodes=2), losses=WRONG)
    assert answer_in(tmp_path) == "CPU: no result for tiny, because all runs are doubtful; see the warnings."


def test_a_doubted_reference_gives_no_speedup(tmp_path: Path) -> None:
    finished_run(tmp_path, a_run("n1"), losses=WRONG)
    for i in (1, 2, 3):
        finished_run(tmp_path, a_run(f"n2-r{i}", nodes=2, repeat=i), losses=RIGHT)
    assert "too few rank counts of its lines have a loss that is believed, so there is no speedup" in answer_in(
        tmp_path
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda run: with_job(run, learning_rate=0.5),
        lambda run: with_job(run, seed=2),
        lambda run: replace(run, scaling=Scaling(mode=ScalingMode.strong, global_batch_size=32)),
        lambda run: replace(run, model=replace(run.model, layers=4)),
        lambda run: replace(run, data=replace(run.data, mask_prompt=True)),
    ],
)
def test_runs_that_need_not_agree_are_not_held_to_each_other(tmp_path: Path, change: Callable[[Run], Run]) -> None:
    finished_run(tmp_path, a_run("a"), losses=RIGHT)
    finished_run(tmp_path, change(a_run("b")), losses=WRONG)
    assert loss_doubts(read_runs([tmp_path])) == {}


def test_a_run_of_low_precision_is_held_to_the_loss_of_the_others(tmp_path: Path) -> None:
    for i in (1, 2):
        finished_run(tmp_path, a_run(f"r{i}", repeat=i), losses=RIGHT)
    finished_run(tmp_path, with_job(a_run("low"), precision=Precision.bfloat16), losses=WRONG)
    assert [path.name for path in loss_doubts(read_runs([tmp_path]))] == ["low"]


def test_losses_that_part_by_a_thousandth_are_put_into_words(tmp_path: Path) -> None:
    finished_run(tmp_path, a_run("a"), losses=RIGHT)
    finished_run(tmp_path, a_run("b", nodes=2), losses=SLIGHTLY_OFF)
    (message,) = warnings(Digest(read_runs([tmp_path])))
    assert message == (
        "2 runs that should compute the same losses differ by up to 0.25 %, at step 6: 2 in a, 2.005 in b. Find out "
        "which is right before comparing their speed: a fast wrong run does not win."
    )


def test_equal_losses_need_no_warning(tmp_path: Path) -> None:
    finished_run(tmp_path, a_run("a"), losses=RIGHT)
    finished_run(tmp_path, a_run("b", ranks_per_node=2), losses=RIGHT)
    assert warnings(Digest(read_runs([tmp_path]))) == []


# --- the answer ------------------------------------------------------------------------------------------------


def test_the_answer_names_line_mode_repeats_and_doubt_and_leaves_intervals_to_the_table(tmp_path: Path) -> None:
    for repeat, factor in ((1, 1.0), (2, 1.1)):
        finished_run(tmp_path, a_run(f"n1-r{repeat}", repeat=repeat), step_time_s=1 / (0.8 + 0.2 * repeat))
        finished_run(tmp_path, a_run(f"n2-r{repeat}", ranks_per_node=2, repeat=repeat), step_time_s=0.625 * factor)
        finished_run(tmp_path, a_run(f"f-r{repeat}", parallelism="fsdp_full", repeat=repeat), step_time_s=2.0)
    runs = read_runs([tmp_path])
    assert headlines(Digest(runs, scaling_groups(runs, loss_doubts(runs)))) == [
        "CPU: tiny with ddp speeds up 1.39 times from 1 to 2 ranks (69.4 % efficiency, strong scaling, n = 2 each); it "
        "reaches 1,564 tokens/s, the fastest of 3 points.",
        "On equal ranks, parallelism=ddp is 2.20 times as fast as fsdp_full on 1 rank on 1 node (n = 2).",
        "DOUBTFUL: ddp: repeats lie far apart. See the warnings.",
    ]


def test_without_a_scaling_axis_the_answer_is_throughput_only(tmp_path: Path) -> None:
    finished_run(tmp_path, a_run("a"), step_time_s=1.0)
    finished_run(tmp_path, a_run("b", parallelism="fsdp_full"), step_time_s=0.5)
    assert answer_in(tmp_path) == (
        "CPU: tiny with fsdp_full reaches 2,048 tokens/s on 1 rank on 1 node (one run), the highest of 2 points, 2.00 "
        "times the lowest (one run each, compared by their steps); no configuration ran on several numbers of ranks, "
        "so there is no speedup or efficiency. On equal ranks, parallelism=fsdp_full is 2.00 times as fast as ddp on "
        "1 rank on 1 node (n = 1)."
    )


def test_weak_scaling_is_answered_by_efficiency(tmp_path: Path) -> None:
    finished_run(tmp_path, a_run("n1", weak=True), step_time_s=1.0, tokens=1000)
    finished_run(tmp_path, a_run("n2", weak=True, nodes=2), step_time_s=1.25, tokens=2000)
    assert (
        "tiny with ddp keeps 80.0 % efficiency from 1 to 2 ranks (1.60 times the tokens/s, weak scaling"
        in answer_in(tmp_path)
    )


def test_throughputs_of_different_models_are_not_ranked(tmp_path: Path) -> None:
    finished_run(tmp_path, a_run("a", model="tiny"), step_time_s=0.1)
    finished_run(tmp_path, a_run("b", model="large"), step_time_s=1.0)
    runs = read_runs([tmp_path])
    (sentence,) = headlines(Digest(runs, scaling_groups(runs)))
    assert "The 2 workloads differ in model, data or sequence length" in sentence
    assert "no ranking" in sentence
    headings, rows = point_table(scaling_groups(runs))
    assert "Place" not in headings
    assert [row.cells[0] for row in rows] == ["large ddp", "tiny ddp"]


def test_emulated_nodes_are_the_first_words(tmp_path: Path) -> None:
    finished_run(tmp_path, a_run("n1"))
    finished_run(tmp_path, a_run("n2", nodes=2), emulated_nodes=True)
    assert answer_in(tmp_path).startswith("Emulated nodes on CPU: ")
