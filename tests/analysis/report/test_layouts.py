"""Layouts in the report: the compared ones, memory and communication of a rank, and absent values that stay absent."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from analysis.compare.loss import loss_doubts
from analysis.load.discover import read_runs
from analysis.report.caveats import warnings
from analysis.report.digest import Digest
from analysis.report.figures.page import figures
from analysis.report.figures.style import Figure
from analysis.report.headline import headlines
from analysis.report.report import report
from analysis.report.runs_table import rows_of, to_csv
from analysis.report.sections.layouts import memory_and_communication
from analysis.scaling.groups import scaling_groups
from jobs import metrics as m
from jobs.parallelism import Schedule
from jobs.rundir import RunDir, append_record
from jobs.schema import Lora, Run
from jobs.settings.images import ImageDecoder, ImageTraining
from tests.support.fake_runs import (
    LAYOUT_SPEEDS,
    MIB,
    a_run,
    a_sweep_of_layouts,
    counted,
    finished_run,
    sent_by,
    with_engine,
    with_job,
    with_parallelism,
)

RIGHT, WRONG = [5.0, 4.0, 3.0, 2.5, 2.2, 2.0], [5.0] * 6


def side_by_side(path: Path) -> list[Figure]:
    """The figures of layouts."""
    runs = read_runs([path])
    shown = figures(Digest(groups=scaling_groups(runs, loss_doubts(runs))))
    return [figure for figure in shown if figure.name.startswith("layouts")]


def drawn(path: Path) -> tuple[dict[str, Any], list[str]]:
    """The plot of the one figure of layouts, and its rows' names from the top."""
    (figure,) = side_by_side(path)
    assert figure.plot is not None
    plot = figure.plot.to_plotly_json()
    return plot, list(plot["layout"]["yaxis"]["ticktext"])


def csv_rows(path: Path) -> dict[str, dict[str, str]]:
    return {row["name"]: row for row in csv.DictReader(to_csv(rows_of(Digest(read_runs([path])))).splitlines())}


# --- side by side ----------------------------------------------------------------------------------------------


def test_layouts_on_as_many_ranks_stand_side_by_side_the_fastest_first_with_engine_and_grid(tmp_path: Path) -> None:
    a_sweep_of_layouts(tmp_path)
    plot, names = drawn(tmp_path)
    assert names == [
        "nemo tp (dp_replicate 2, tp 2)",
        "native pp_fsdp (pp 2, dp_shard 2)",
        "native fsdp_full (dp_shard 4)",
        "native tp_fsdp (dp_shard 2, tp 2)",
        "native tp_pp_fsdp (pp 2, tp 2)",
        "nemo tp (dp_replicate 4, tp 2)",
        "native pp_fsdp (pp 2, dp_shard 4)",
        "native fsdp_full (dp_shard 8)",
        "native tp_fsdp (dp_shard 4, tp 2)",
        "native tp_pp_fsdp (pp 2, dp_shard 2, tp 2)",
    ]
    headings = {note["text"]: note["y"] for note in plot["layout"]["annotations"]}
    assert headings == {"4 ranks": 0, "8 ranks": 6}
    assert plot["layout"]["yaxis"]["tickvals"] == [1, 2, 3, 4, 5, 7, 8, 9, 10, 11]


def test_a_bar_is_the_median_over_repeats_and_every_repeat_is_a_dot(tmp_path: Path) -> None:
    for name, times_s in (("ddp", (0.25, 0.5, 1.0)), ("fsdp_full", (2.0, 1.0, 2.0))):
        for repeat, step_time_s in enumerate(times_s, start=1):
            finished_run(tmp_path, a_run(f"{name}-{repeat}", parallelism=name, repeat=repeat), step_time_s=step_time_s)
    bars, numbers, dots = drawn(tmp_path)[0]["data"]
    assert [text.strip() for text in numbers["text"]] == ["2,048", "512.0"]
    assert list(zip(bars["y"], bars["x"], strict=True)) == [(1, 2048), (2, 512)]
    assert sorted(zip(dots["y"], dots["x"], strict=True)) == [
        (1, 1024), (1, 2048), (1, 4096), (2, 512), (2, 512), (2, 1024),
    ]  # fmt: skip


def test_bytes_are_stacked_by_axis_and_what_is_not_recorded_states_it(tmp_path: Path) -> None:
    a_sweep_of_layouts(tmp_path, ranks=(4,))
    plot, names = drawn(tmp_path)
    y_of = dict(zip(names, plot["layout"]["yaxis"]["tickvals"], strict=True))
    segments = {
        trace["name"]: dict(zip(trace["y"], trace["x"], strict=True)) for trace in plot["data"] if "name" in trace
    }
    row = y_of["native tp_fsdp (dp_shard 2, tp 2)"]
    assert {name: values[row] for name, values in segments.items() if row in values} == {
        "over tp": 60,
        "over dp_shard": 72,
        "over world (too small to see)": 8 / MIB,
    }
    nemo = y_of["nemo tp (dp_replicate 2, tp 2)"]
    assert not any(nemo in values for values in segments.values())
    totals = plot["data"][-1]
    labels = dict(zip(totals["y"], totals["text"], strict=True))
    assert labels[row] == " 132.0"
    assert labels[nemo] == " not recorded"


def test_the_caption_starts_with_the_hardware_and_defines_both_halves(tmp_path: Path) -> None:
    a_sweep_of_layouts(tmp_path)
    (figure,) = side_by_side(tmp_path)
    assert figure.caption.startswith(f"CPU: {m.TOKENS_PER_S_PER_RANK.definition}")
    assert m.COLLECTIVE_BYTES.definition in figure.caption
    assert "n = 2." in figure.caption
    assert "Engines are different code" in figure.caption


def test_emulated_nodes_are_the_first_words_of_the_caption(tmp_path: Path) -> None:
    for name in ("ddp", "fsdp_full"):
        finished_run(tmp_path, a_run(name, parallelism=name, nodes=2), emulated_nodes=True)
    assert side_by_side(tmp_path)[0].caption.startswith("Emulated nodes on CPU: ")


def test_without_recorded_collectives_only_speed_is_shown(tmp_path: Path) -> None:
    for name in ("ddp", "fsdp_full"):
        finished_run(tmp_path, a_run(name, parallelism=name, ranks_per_node=2))
    assert "collective_bytes: recorded by no run of these bars." in side_by_side(tmp_path)[0].caption
    assert "xaxis2" not in drawn(tmp_path)[0]["layout"]


def test_layouts_that_share_no_number_of_ranks_are_not_put_side_by_side(tmp_path: Path) -> None:
    finished_run(tmp_path, a_run("a", parallelism="ddp", ranks_per_node=2))
    finished_run(tmp_path, a_run("b", parallelism="fsdp_full", ranks_per_node=4))
    assert side_by_side(tmp_path) == []


def test_runs_of_one_layout_that_differ_otherwise_are_not_layouts(tmp_path: Path) -> None:
    finished_run(tmp_path, a_run("a"))
    finished_run(tmp_path, with_job(a_run("b"), micro_batch_size=2))
    assert side_by_side(tmp_path) == []


def test_different_models_never_share_a_figure(tmp_path: Path) -> None:
    for model in ("large", "tiny"):
        for name in ("ddp", "fsdp_full"):
            finished_run(tmp_path, a_run(f"{model}-{name}", model=model, parallelism=name))
    assert [figure.heading for figure in side_by_side(tmp_path)] == [
        "Layouts side by side: large, random, sequence length 64",
        "Layouts side by side: tiny, random, sequence length 64",
    ]


def test_a_layout_whose_loss_is_not_believed_is_last_and_hatched(tmp_path: Path) -> None:
    for repeat in (1, 2):
        finished_run(tmp_path, a_run(f"a{repeat}", repeat=repeat), losses=RIGHT, step_time_s=1.0)
        finished_run(tmp_path, a_run(f"b{repeat}", parallelism="fsdp_full", repeat=repeat), losses=RIGHT)
    finished_run(tmp_path, a_run("c", parallelism="tp"), losses=WRONG, step_time_s=0.001)
    plot, names = drawn(tmp_path)
    assert names == ["native fsdp_full", "native ddp", "native tp (loss not believed)"]
    assert plot["data"][0]["marker"]["pattern"]["shape"] == ["", "", "/"]


def test_layouts_within_the_spread_of_the_fastest_have_its_colour(tmp_path: Path) -> None:
    for name, times_s in (("ddp", (0.5, 0.8)), ("fsdp_full", (0.7, 0.9)), ("tp", (0.9, 0.9))):
        for repeat, step_time_s in enumerate(times_s, start=1):
            finished_run(tmp_path, a_run(f"{name}-{repeat}", parallelism=name, repeat=repeat), step_time_s=step_time_s)
    first, second, third = drawn(tmp_path)[0]["data"][0]["marker"]["color"]
    assert first == second != third


def test_more_layouts_than_fit_leave_out_the_slowest_and_count_them(tmp_path: Path) -> None:
    for i in range(45):
        run = with_parallelism(a_run(f"r{i}"), name=f"p{i}")
        finished_run(tmp_path, run, step_time_s=1 + i)
    _, names = drawn(tmp_path)
    assert (names[0], len(names)) == ("native p0", 40)
    assert "Left out: 5 slower points." in side_by_side(tmp_path)[0].caption


# --- which runs are one line -----------------------------------------------------------------------------------

OTHER_LAYOUTS: dict[str, Callable[[Run], Run]] = {
    "tp tensor=4": lambda run: with_parallelism(run, tensor=4),
    "tp context=2": lambda run: with_parallelism(run, context=2),
    "tp pipeline=2": lambda run: with_parallelism(run, pipeline=2),
    "tp schedule=GPipe": lambda run: with_parallelism(run, schedule=Schedule["GPipe"]),
    "tp stages_per_rank=2": lambda run: with_parallelism(run, stages_per_rank=2),
    "tp sequence_parallel=False": lambda run: with_parallelism(run, sequence_parallel=False),
    "nemo tp": lambda run: with_engine(run, "nemo", distributed_optimizer=True),
}


@pytest.mark.parametrize("label", OTHER_LAYOUTS)
def test_one_parallelism_name_with_other_degrees_schedule_or_engine_is_another_line(tmp_path: Path, label: str) -> None:
    run = with_parallelism(a_run("a", parallelism="tp", ranks_per_node=4), tensor=2)
    finished_run(tmp_path, run)
    finished_run(tmp_path, replace(OTHER_LAYOUTS[label](run), name="b"))
    labels = [group.label for group in scaling_groups(read_runs([tmp_path]))]
    assert len(labels) == 2
    assert label in labels


def test_where_engines_differ_every_line_and_the_answer_name_theirs(tmp_path: Path) -> None:
    finished_run(tmp_path, a_run("a", parallelism="fsdp_full"))
    finished_run(tmp_path, with_engine(a_run("b", parallelism="tp"), "nemo"), step_time_s=0.1)
    runs = read_runs([tmp_path])
    groups = scaling_groups(runs)
    assert [group.label for group in groups] == ["native fsdp_full", "nemo tp"]
    assert headlines(Digest(runs, groups))[0].startswith("CPU: tiny with nemo tp reaches")
    assert (
        "Engines differ: native (1 run), nemo (1 run). Between them, a difference in speed is one of code, not only "
        "of layout."
    ) in warnings(Digest(runs))


def test_the_timeout_of_collectives_does_not_part_a_line(tmp_path: Path) -> None:
    finished_run(tmp_path, a_run("a"))
    finished_run(tmp_path, with_engine(a_run("b", nodes=2), "native", hang_timeout_s=60))
    assert len(scaling_groups(read_runs([tmp_path]))) == 1


def test_a_run_older_than_a_setting_is_on_the_line_of_its_default(tmp_path: Path) -> None:
    old = finished_run(tmp_path, a_run("old"))
    config = yaml.safe_load(old.config.read_text())
    del config["parallelism"]["context"], config["parallelism"]["schedule"], config["job"]["lora"]
    old.config.write_text(yaml.safe_dump(config))
    finished_run(tmp_path, a_run("new", nodes=2))
    runs = read_runs([tmp_path])
    assert [group.label for group in scaling_groups(runs)] == ["ddp"]
    assert loss_doubts(runs) == {}


# --- the same loss ---------------------------------------------------------------------------------------------


def test_engines_are_held_to_one_loss(tmp_path: Path) -> None:
    for repeat in (1, 2):
        finished_run(tmp_path, a_run(f"native{repeat}", repeat=repeat), losses=RIGHT)
    nemo = with_engine(a_run("nemo", parallelism="tp"), "nemo", distributed_optimizer=True)
    finished_run(tmp_path, nemo, losses=WRONG, step_time_s=0.001)
    assert [path.name for path in loss_doubts(read_runs([tmp_path]))] == ["nemo"]


def test_adapters_are_not_held_to_the_loss_of_full_training(tmp_path: Path) -> None:
    finished_run(tmp_path, a_run("full"), losses=RIGHT)
    finished_run(tmp_path, with_job(a_run("lora"), lora=Lora(rank=8, alpha=16.0)), losses=WRONG)
    assert loss_doubts(read_runs([tmp_path])) == {}


@pytest.mark.parametrize(("dropout", "doubted"), [(0.0, ["a", "b"]), (0.1, [])])
def test_layouts_of_adapters_are_held_to_one_loss_unless_dropout_parts_them(
    tmp_path: Path, dropout: float, doubted: list[str]
) -> None:
    lora = Lora(rank=8, alpha=16.0, dropout=dropout)
    finished_run(tmp_path, with_job(a_run("a"), lora=lora), losses=RIGHT)
    finished_run(tmp_path, with_job(a_run("b", nodes=2), lora=lora), losses=WRONG)
    assert [path.name for path in loss_doubts(read_runs([tmp_path]))] == doubted


@pytest.mark.parametrize(
    ("change", "doubted"),
    [
        (lambda run: replace(run, repeat=2), ["a", "b"]),
        (lambda run: replace(run, nodes=2), []),
        (lambda run: replace(run, images=replace(run.images, workers=1)), []),
        (lambda run: replace(run, images=replace(run.images, decoder=ImageDecoder.dali)), []),
    ],
)
def test_runs_on_images_are_held_to_one_loss_where_order_and_decoder_are_equal(
    tmp_path: Path, change: Callable[[Run], Run], doubted: list[str]
) -> None:
    finished_run(tmp_path, replace(a_run("a"), images=ImageTraining()), losses=RIGHT)
    finished_run(tmp_path, change(replace(a_run("b"), images=ImageTraining())), losses=WRONG)
    assert [path.name for path in loss_doubts(read_runs([tmp_path]))] == doubted


# --- what a rank holds and sends -------------------------------------------------------------------------------


def test_the_table_has_grid_parameters_bytes_and_calls_and_a_dash_for_what_is_not_recorded(tmp_path: Path) -> None:
    a_sweep_of_layouts(tmp_path, ranks=(4,))
    finished_run(tmp_path, a_run("silent", parallelism="ddp", ranks_per_node=4))
    headings, rows = memory_and_communication(scaling_groups(read_runs([tmp_path])))
    cells = {row[0]: dict(zip(headings[1:], row[1:], strict=True)) for row in rows}
    assert len(cells) == len(LAYOUT_SPEEDS)  # without the run that recorded nothing
    assert cells["native tp_fsdp"] == {
        "Ranks": "4",
        "DP x CP x TP x PP": "2 x 1 x 2 x 1",
        "Parameters held": "262,100",
        "Collective bytes (MiB)": "132.0",
        "over tp: MiB (calls)": "all_reduce 40.00 (64)\nall_gather 20.00 (64)",
        "over dp_shard: MiB (calls)": "all_gather 48.00 (48)\nreduce_scatter 24.00 (24)",
        "over pp: MiB (calls)": "0",
        "over world: MiB (calls)": "all_reduce < 0.001 (2)",
    }
    nemo = cells["nemo tp"]
    assert (nemo["Parameters held"], nemo["Collective bytes (MiB)"], nemo["over pp: MiB (calls)"]) == (
        "262,100",
        "—",
        "—",
    )


def test_page_and_markdown_have_the_table_only_where_something_was_recorded(tmp_path: Path) -> None:
    a_sweep_of_layouts(tmp_path / "with", ranks=(4,))
    finished_run(tmp_path / "without", a_run())
    for name, expected in (("with", True), ("without", False)):
        page = report([tmp_path / name], None)
        for text in (page.read_text(), (page.parent / "report.md").read_text()):
            assert ("Memory and communication per rank" in text) is expected
    markdown = (tmp_path / "with" / "report.md").read_text()
    assert "| all_gather 48.00 (48); reduce_scatter 24.00 (24) |" in markdown


def test_the_csv_has_engine_grid_and_bytes_in_all_and_by_axis(tmp_path: Path) -> None:
    a_sweep_of_layouts(tmp_path, ranks=(4,), repeats=1)
    rows = csv_rows(tmp_path)
    native, nemo = rows["native-tp_pp_fsdp-4-1"], rows["nemo-tp-4-1"]
    assert (native["engine"], native["cp"], native["tp"], native["pp"]) == ("native", "1", "2", "2")
    assert float(native["parameters_held"]) == 2**18
    assert float(native["collective_bytes"]) == 66 * MIB + 8 == sum(size for *_, size in sent_by(2, 2, 4))
    assert float(native["collective_calls"]) == 64 + 64 + 32 + 2
    assert float(native["collective_bytes_tp"]) == 60 * MIB
    assert float(native["collective_bytes_dp_shard"]) == 0
    assert (nemo["engine"], nemo["parameters_held"]) == ("nemo", str(2.0**18))
    assert nemo["collective_bytes"] == nemo["collective_bytes_tp"] == nemo["collective_calls"] == ""


def test_the_latest_attempt_that_counted_is_the_one_that_is_read(tmp_path: Path) -> None:
    directory = finished_run(tmp_path, a_run())
    counted(directory, 10, [("tp", "all_reduce", 1, 5)])
    counted(directory, 20, [("tp", "all_reduce", 2, 7)], attempt=2)
    row = csv_rows(tmp_path)["run"]
    assert (row["parameters_held"], row["collective_bytes"], row["collective_calls"]) == ("20", "7", "2")


def test_a_rank_that_sends_nothing_is_distinguished_from_one_that_was_not_counted(tmp_path: Path) -> None:
    counted(finished_run(tmp_path, a_run("alone")), 10, [])
    counted(finished_run(tmp_path, a_run("uncounted")), 10)
    rows = csv_rows(tmp_path)
    assert (rows["alone"]["collective_bytes"], rows["uncounted"]["collective_bytes"]) == ("0", "")


def malformed(**entry: Any) -> Callable[[RunDir], None]:
    """A `layout` event with one sound collective and one with these fields."""
    sound = {"axis": "tp", "collective": "all_reduce", "collective_calls": 1, "collective_bytes": 8}

    def write(directory: RunDir) -> None:
        record = {"event": "layout", "parameters_held": "many", "collectives": [sound, sound | entry]}
        append_record(directory.status, record)

    return write


@pytest.mark.parametrize(
    "write",
    [
        malformed(axis=None),
        malformed(collective=["send"]),
        malformed(collective_calls="7"),
        malformed(collective_bytes=-1),
        malformed(collective_bytes=True),
        lambda directory: append_record(directory.status, {"event": "layout", "collectives": {"tp": 1}}),
        lambda directory: append_record(directory.status, {"event": "layout", "collectives": [7]}),
    ],
)
def test_an_event_that_is_not_whole_gives_no_number_and_costs_nothing_else(
    tmp_path: Path, write: Callable[[RunDir], None]
) -> None:
    write(finished_run(tmp_path, a_run()))
    row = csv_rows(tmp_path)["run"]
    assert row["tokens_per_s"] != ""
    assert row["parameters_held"] == row["collective_bytes"] == row["collective_calls"] == ""


def test_a_plan_older_than_context_parallelism_has_one_context_rank(tmp_path: Path) -> None:
    directory = finished_run(tmp_path, a_run())
    plan = json.loads(directory.plan.read_text())
    del plan["layout"]["cp"]
    directory.plan.write_text(json.dumps(plan))
    counted(directory, 123456)
    assert csv_rows(tmp_path)["run"]["cp"] == "1"
    _, rows = memory_and_communication(scaling_groups(read_runs([tmp_path])))
    assert rows == [["native ddp", "1", "1 x 1 x 1 x 1", "123,500"]]


def test_ranks_that_divide_experts_are_data_parallel_in_the_table(tmp_path: Path) -> None:
    directory = finished_run(tmp_path, a_run(ranks_per_node=4))
    plan = json.loads(directory.plan.read_text())
    plan["layout"] |= {"dp_replicate": 1, "dp_shard": 2, "ep": 2}
    directory.plan.write_text(json.dumps(plan))
    counted(directory, 123456)
    headings, ((*_, product, _parameters),) = memory_and_communication(scaling_groups(read_runs([tmp_path])))
    assert (headings[2], product) == ("DP x CP x TP x PP", "4 x 1 x 1 x 1")
