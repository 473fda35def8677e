"""The table of a study: its own quantity, rows, columns and units, beside what is published."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from analysis.load.discover import read
from analysis.report.content import build
from analysis.report.figures.style import Section
from analysis.report.report import report
from jobs.metrics import registered
from jobs.settings.report import StudyTable, base_units
from tests.support.documents import filled, roce_study
from tests.support.fake_runs import a_run, finished_run, with_job


def table(*paths: Path) -> Section:
    """Return the only table of a study."""
    (found,) = build(read(paths)).rankings
    return found


def test_the_roce_study_has_the_table_of_its_document_with_published_values_beside(tmp_path: Path) -> None:
    found = table(*roce_study(tmp_path))
    assert found.headings == [
        "Model", "Nodes", "RoCE", "Time of an epoch (s)", "published", "ours / published",
        "Differences, and the source",
    ]  # fmt: skip
    assert [row[:-1] for row in found.rows] == [
        ["Llama 3.1 8B", "1", "No", "1,980", "1,980", "1.00"],
        ["Llama 3.1 8B", "2", "No", "1,220", "1,220", "1.00"],
        ["Llama 3.1 8B", "2", "Yes", "1,071", "1,071", "1.00"],
        ["Llama 3.1 70B", "1", "No", "20,420", "20,420", "1.00"],
        ["Llama 3.1 70B", "2", "No", "17,160", "17,160", "1.00"],
        ["Llama 3.1 70B", "2", "Yes", "8,120", "8,120", "1.00"],
    ]
    assert "MBS: 24; published: not stated." in found.rows[0][-1]
    assert found.rows[2][-1].endswith("Published as 1071.2 s.")
    assert found.note.endswith("Source: the table under Additional Information of Supercharge Multi-Node Training "
                               "Performance with Dell PowerEdge XE9680 and RoCE.")  # fmt: skip
    assert "published: DeepSpeed ZeRO stage 3 through Accelerate" in found.note, "what differs in all rows stands once"
    assert found.figure is not None
    assert found.figure.plot is not None
    bars, texts = found.figure.plot.data
    assert list(bars.x) == pytest.approx([1980, 1220, 1071.2, 20420, 17160, 8120])
    assert list(texts.text)[2] == " 1,071"
    assert "Llama 3.1 8B, Nodes 2, RoCE Yes" in found.figure.plot.layout.yaxis.ticktext


def test_an_epoch_of_other_samples_has_no_ratio(tmp_path: Path) -> None:
    data = ("data.path=pqa_artificial", "job.init_from=weights", "job.init_from_is_remote=true")
    filled(tmp_path, "experiment=llama31_8b_deepspeed", *data, seconds_of=lambda _: 900.0, samples=80_000)
    found = table(tmp_path)
    assert "ours / published" not in found.headings
    assert "No ratio: samples of an epoch 80,000, published 169,015." in found.note


def test_500_steps_stand_over_nodes_and_adapters_in_minutes_and_in_latex(tmp_path: Path) -> None:
    filled(tmp_path, "experiment=llama2_500_steps", "nodes=1,4", "job.steps=20", seconds_of=lambda run: 600 / run.nodes,
           start_up=0.05)  # fmt: skip
    found = table(tmp_path)
    assert found.headings == [
        "Model", "Nodes", "Adapters 8: Steps (min)", "Adapters 8: Whole run (min)", "Adapters 4: Steps (min)",
        "Adapters 4: Whole run (min)", "Repeats",
    ]  # fmt: skip
    assert found.rows == [
        ["Llama 2 7B", "1", "10.00", "10.50", "10.00", "10.50", "n = 1"],
        ["Llama 2 7B", "4", "2.500", "2.625", "2.500", "2.625", "n = 1"],
    ]
    report([tmp_path], tmp_path / "page", ["latex"])
    texts = [file.read_text() for file in (tmp_path / "page/tables").glob("*.tex")]
    assert any("Llama 2 7B & 4 & 2.500 & 2.625 & 2.500 & 2.625 & n = 1" in text for text in texts)


def test_table_4_of_h20044_is_in_its_units(tmp_path: Path) -> None:
    event = {"attempt": 1, "step": 40, "checkpoint_size_bytes": 100e9, "checkpoint_write_time_s": 150.0}
    filled(tmp_path, "experiment=llama2_7b_nemo", seconds_of=lambda _: 199.2, events={"checkpoint": event})
    found = table(tmp_path)
    cells = dict(zip(found.headings, found.rows[0], strict=True))
    assert cells["Time of 40 steps (min)"] == "3.320"
    assert [text for heading, text in zip(found.headings, found.rows[0], strict=True) if heading == "published"] == [
        "3.32", "100", "2:30",
    ]  # fmt: skip
    assert found.headings[-1] == "Repeats", "so many columns leave the differences no room"
    assert "Llama 2 7B, Nodes 1: GPU (NVIDIA H100 80GB HBM3); published: 8 NVIDIA H100 SXM" in found.note
    assert cells["Checkpoint (GB)"] == "100.0"
    assert cells["Time of the checkpoint (min:s)"] == "2:30"
    assert "Peak read (MB/s)" not in cells, "no run measured it"


def test_runs_of_one_cell_that_are_no_repeats_have_rows_of_their_own(tmp_path: Path) -> None:
    asked = StudyTable(quantity=["useful_time_s"], rows=["nodes"], columns=["parallelism.name"])
    for name, rate, time_s, repeats in (("a", 1e-3, 1.0, 2), ("b", 2e-3, 2.0, 1)):
        for repeat in range(1, repeats + 1):
            run = replace(with_job(a_run(f"{name}{repeat}", repeat=repeat), learning_rate=rate), report=asked)
            finished_run(tmp_path, run, step_time_s=time_s * repeat)
    for name, rate in (("c", 1e-3), ("d", 2e-3)):
        other = with_job(a_run(name, nodes=2, parallelism="pp"), learning_rate=rate)
        finished_run(tmp_path, replace(other, report=asked))
    found = table(tmp_path)
    assert found.headings == ["Nodes", "Other settings", "Parallelism ddp", "Parallelism pp", "Repeats"]
    assert [(*row[:2], row[-1]) for row in found.rows] == [
        ("1", "learning_rate=0.001", "n = 2"), ("1", "learning_rate=0.002", "n = 1"),
        ("2", "learning_rate=0.001", "n = 1"), ("2", "learning_rate=0.002", "n = 1"),
    ]  # fmt: skip


def test_how_a_run_is_shown_is_no_part_of_what_it_is(tmp_path: Path) -> None:
    asked = StudyTable(quantity=["useful_time_s"], rows=["nodes"])
    finished_run(tmp_path, replace(a_run("a", repeat=1), report=asked))
    finished_run(tmp_path, a_run("b", repeat=2))
    (group,) = build(read([tmp_path])).digest.groups
    assert len(group.points[0].runs) == 2


def test_every_quantity_that_a_study_may_name_is_a_metric_of_this_unit() -> None:
    assert {name: registered(name).unit for name in base_units()} == base_units()


@pytest.mark.parametrize("figure", ["svg", "png"])
def test_the_bars_are_drawn_for_papers(tmp_path: Path, figure: str) -> None:
    filled(tmp_path, "experiment=llama2_500_steps", "nodes=1,4", "job.steps=20", seconds_of=lambda run: 600 / run.nodes)
    report([tmp_path], tmp_path / "page", [figure])
    assert (tmp_path / f"page/figures/study-useful_time_s.{figure}").stat().st_size > 1000


def test_a_bar_is_not_named_after_what_all_rows_have_in_common(tmp_path: Path) -> None:
    asked = StudyTable(quantity=["useful_time_s"], rows=["model.name", "nodes", "job.seed"])
    for nodes, model in ((1, "tiny"), (1, "large_one"), (2, "tiny")):
        finished_run(tmp_path, replace(a_run(f"{model}{nodes}", model=model, nodes=nodes), report=asked))
    figure = table(tmp_path).figure
    assert figure is not None
    assert figure.plot is not None
    assert list(figure.plot.layout.yaxis.ticktext) == ["large_one, Nodes 1", "tiny, Nodes 1", "tiny, Nodes 2"]
