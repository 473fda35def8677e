"""Bottlenecks: sentences from recorded values, and none without them."""

from __future__ import annotations

from pathlib import Path

from analysis.compare.loss import loss_doubts
from analysis.load.discover import read_runs
from analysis.report.bottlenecks import Bottlenecks, bottlenecks
from analysis.report.report import report
from analysis.scaling.groups import scaling_groups
from jobs.rundir import RunDir
from tests.support.fake_events import killed_once
from tests.support.fake_runs import MIB, a_run, counted, ended, finished_run, prepared, started, step, with_parallelism


def found(path: Path) -> list[Bottlenecks]:
    runs = read_runs([path])
    doubts = loss_doubts(runs)
    return bottlenecks(scaling_groups(runs, doubts.keys()))


def only(path: Path) -> list[str]:
    (task,) = found(path)
    return list(task.sentences)


def two_points(path: Path, *, weak: bool = False, step_times_s: tuple[float, float] = (1.0, 0.75)) -> list[RunDir]:
    """One and two nodes of two ranks."""
    return [
        finished_run(path, a_run(f"n{nodes}", nodes=nodes, ranks_per_node=2, weak=weak), step_time_s=step_time_s)
        for nodes, step_time_s in zip((1, 2), step_times_s, strict=True)
    ]


def test_a_step_is_compared_with_ideal_strong_scaling(tmp_path: Path) -> None:
    two_points(tmp_path)
    assert only(tmp_path)[0] == (
        "A step takes 0.7500 s, 1.50 times the 0.5000 s of ideal strong scaling from 2 ranks on 1 node."
    )


def test_the_ideal_step_of_weak_scaling_is_as_long_as_the_reference_s(tmp_path: Path) -> None:
    two_points(tmp_path, weak=True, step_times_s=(1.0, 1.25))
    assert only(tmp_path)[0] == (
        "A step takes 1.250 s, 1.25 times the 1.000 s of ideal weak scaling from 2 ranks on 1 node."
    )


def test_the_heading_names_the_hardware_and_the_point(tmp_path: Path) -> None:
    two_points(tmp_path)
    (task,) = found(tmp_path)
    assert task.heading == "CPU: bottlenecks of ddp on 4 ranks on 2 nodes"


def test_traffic_over_axes_that_cross_nodes_is_reported_separately(tmp_path: Path) -> None:
    sent = [("tp", "all_reduce", 4, 6 * MIB), ("dp_replicate", "all_reduce", 2, 2 * MIB)]
    for nodes in (1, 2):
        run = with_parallelism(a_run(f"n{nodes}", nodes=nodes, ranks_per_node=2), tensor=2)
        counted(finished_run(tmp_path, run, step_time_s=1.0 / nodes), 7, sent)
    (sentence,) = [each for each in only(tmp_path) if "sends" in each]
    assert sentence.startswith(
        "A rank sends 8.000 MiB a step, 2.000 MiB of it over axes that cross nodes (dp_replicate)."
    )


def test_traffic_inside_one_node_is_reported_as_such(tmp_path: Path) -> None:
    counted(finished_run(tmp_path, a_run(ranks_per_node=2)), 7, [("dp_replicate", "all_reduce", 2, MIB)])
    (sentence,) = [each for each in only(tmp_path) if "sends" in each]
    assert sentence.startswith("A rank sends 1.000 MiB a step, all inside a node. The time of it is not recorded")


def test_a_plan_whose_grid_is_not_its_ranks_reports_nothing_of_nodes(tmp_path: Path) -> None:
    directory = finished_run(tmp_path, a_run(nodes=2))
    directory.plan.write_text(directory.plan.read_text().replace('"dp_replicate": 2', '"dp_replicate": 3'))
    counted(directory, 7, [("dp_replicate", "all_reduce", 2, MIB)])
    (sentence,) = [each for each in only(tmp_path) if "sends" in each]
    assert sentence.startswith("A rank sends 1.000 MiB a step. The time")


def test_the_wall_time_is_split_into_steps_and_the_rest(tmp_path: Path) -> None:
    two_points(tmp_path)
    assert only(tmp_path)[-1] == (
        "Steps after the first take 45.0 % of the wall time (10.0 s a run); start-up 20.0 %, first step 15.0 %, "
        "waiting for checkpoints 10.0 %, logging, export and closing 10.0 %."
    )


def test_uneven_steps_are_reported_and_even_ones_are_not(tmp_path: Path) -> None:
    for name, slow_s in (("even", 0.5), ("uneven", 1.0)):
        run = a_run(name, steps=12)
        directory = prepared(tmp_path / name, run)
        started(directory, run)
        for number in range(1, 13):
            step(directory, number, step_time_s=slow_s if number % 3 == 0 else 0.5)
        ended(directory)
    assert not [each for each in only(tmp_path / "even") if "uneven" in each]
    (sentence,) = [each for each in only(tmp_path / "uneven") if "uneven" in each]
    assert sentence == "Steps are uneven: the slowest tenth takes at least 2.00 times the median step."


def test_restarted_runs_are_reported_with_the_lowest_goodput(tmp_path: Path) -> None:
    killed_once(prepared(tmp_path, a_run("disturbed", steps=10)))
    (sentence,) = [each for each in only(tmp_path) if "started more than once" in each]
    assert sentence.startswith("1 run of 1 was started more than once; the lowest goodput is ")
    assert sentence.endswith(" s).")
    assert "(disturbed, lost to killed: 1 start, " in sentence


def test_what_was_not_recorded_has_no_sentence(tmp_path: Path) -> None:
    run = a_run()
    directory = prepared(tmp_path, run)
    started(directory, run)
    for number in range(1, 7):
        step(directory, number)
    ended(directory, total_time_s=None)
    assert found(tmp_path) == []


def test_points_whose_losses_all_disagree_have_no_bottlenecks(tmp_path: Path) -> None:
    two_points(tmp_path)
    finished_run(tmp_path, a_run("other", parallelism="fsdp_full"), losses=[9.0] * 6)
    finished_run(tmp_path, a_run("another", parallelism="tp_fsdp"), losses=[20.0] * 6)
    assert found(tmp_path) == [], "no loss is believed, that of ddp neither"


def test_page_and_markdown_list_bottlenecks_below_the_headline(tmp_path: Path) -> None:
    two_points(tmp_path)
    page = report([tmp_path], None).read_text()
    for text in (page, (tmp_path / "report.md").read_text()):
        headline, heading, results = (
            text.index(words)
            for words in ("speeds up 1.33 times", "CPU: bottlenecks of ddp on 4 ranks on 2 nodes", "A step takes 0.75")
        )
        assert headline < heading < results
