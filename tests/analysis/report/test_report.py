"""The report: the text of the page, its independence of other files, and text from files that stays text."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import analysis.report
from analysis.formatting import plot_text
from analysis.load.discover import read_runs
from analysis.report.digest import Digest
from analysis.report.figures.curves import MOST_CURVE_POINTS, thinned
from analysis.report.figures.page import figures
from analysis.report.figures.scaling import over_ranks
from analysis.report.figures.style import styles_of
from analysis.report.report import report
from analysis.scaling.groups import Group, scaling_groups
from jobs import metrics as m
from jobs.errors import ReportError
from tests.analysis.parsers.reading import SAMPLES
from tests.support.fake_runs import (
    a_run,
    a_sweep_of_layouts,
    ended,
    event,
    finished_run,
    prepared,
    started,
    step,
    with_job,
)
from tests.support.report_pages import HOSTILE, Page, a_disturbed_sweep, a_hostile_sweep, a_scaling_sweep

ALL_FIGURES = [
    "Throughput",
    "Speedup",
    "Efficiency",
    "Step time",
    "Distribution of step times",
    "Cost of a token",
    "Layouts side by side",
    "Breakdown of wall time",
    "Loss",
    "Memory per rank",
]


def page_of(path: Path) -> Page:
    return Page(report([path], None).read_text(encoding="utf-8"))


def test_the_contents_stay_in_sight_and_link_every_section(tmp_path: Path) -> None:
    a_scaling_sweep(tmp_path)
    text = report([tmp_path], None).read_text(encoding="utf-8")
    sections = re.findall(r'<h2 id="(section-\d+)">([^<]+)</h2>', text)
    assert len(sections) == text.count("<h2") > 5
    assert re.findall(r'<a href="#(section-\d+)">([^<]+)</a>', text) == sections
    assert re.search(r"nav \{ position: sticky", text)
    assert "prefers-color-scheme: dark" in text


def test_the_page_embeds_the_basic_bundle_as_published_which_draws_all_traces(tmp_path: Path) -> None:
    folder = Path(analysis.report.__file__).parent / "plotly.js"
    bundle = (folder / "plotly-basic.min.js").read_bytes()
    assert hashlib.sha256(bundle).hexdigest() in (folder / "README.md").read_text()
    for sweep in (a_scaling_sweep, a_sweep_of_layouts, a_disturbed_sweep):
        sweep(tmp_path / sweep.__name__)
    page = page_of(tmp_path)
    traces = {trace.get("type", "scatter") for plot in page.plots().values() for trace in plot["data"]}
    assert traces <= {"scatter", "bar", "pie"}
    assert (tmp_path / "report.html").stat().st_size < len(bundle) + 500_000 < 2_000_000


# --- what is written -------------------------------------------------------------------------------------------


def test_a_report_is_a_page_and_two_tables_in_the_directory_given(tmp_path: Path) -> None:
    a_scaling_sweep(tmp_path)
    assert report([tmp_path], None) == tmp_path / "report.html"
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == {"report.html", "runs.csv", "report.md"}


def test_a_report_on_several_directories_goes_to_the_current_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for sweep in ("one", "two"):
        finished_run(tmp_path / sweep, a_run(sweep, sweep=sweep))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert report([tmp_path / "one", tmp_path / "two"], None).resolve() == tmp_path / "here" / "report.html"


def test_an_output_directory_is_made(tmp_path: Path) -> None:
    finished_run(tmp_path / "demo", a_run())
    assert report([tmp_path / "demo"], tmp_path / "a" / "b") == tmp_path / "a" / "b" / "report.html"
    assert (tmp_path / "a" / "b" / "runs.csv").read_text().startswith("name,sweep,model,")


def test_an_output_that_cannot_be_written_is_refused_in_words(tmp_path: Path) -> None:
    finished_run(tmp_path / "demo", a_run())
    (tmp_path / "file").write_text("")
    with pytest.raises(ReportError) as caught:
        report([tmp_path / "demo"], tmp_path / "file")
    assert str(caught.value) == (
        f"{tmp_path / 'file'} cannot be written: File exists. Choose another place with --output DIR."
    )


def test_a_directory_without_runs_leaves_no_report(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="no run in it"):
        report([tmp_path], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_same_runs_give_the_same_bytes(tmp_path: Path) -> None:
    a_scaling_sweep(tmp_path / "demo")
    finished_run(tmp_path / "more", a_run("more", sweep="more"))
    texts = []
    for output, order in (("a", ("demo", "more")), ("b", ("more", "demo", "demo"))):
        report([tmp_path / name for name in order], tmp_path / "out" / output)
        texts.append({path.name: path.read_bytes() for path in (tmp_path / "out" / output).iterdir()})
    assert texts[0] == texts[1]


def test_a_second_report_on_the_same_directory_is_the_first(tmp_path: Path) -> None:
    a_scaling_sweep(tmp_path)
    first = report([tmp_path], None).read_bytes()
    assert report([tmp_path], None).read_bytes() == first


def test_reporting_imports_no_torch(tmp_path: Path) -> None:
    finished_run(tmp_path, a_run())
    code = (
        "import sys; from pathlib import Path; from analysis.report.report import report;"
        "report([Path(sys.argv[1])], None); print('torch' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"


# --- text of the page ------------------------------------------------------------------------------------------


def test_the_page_has_its_parts_in_order(tmp_path: Path) -> None:
    a_scaling_sweep(tmp_path)
    text = page_of(tmp_path).text
    parts = [
        "Scaling report: demo",
        "CPU runs on Test CPU, 1 to 2 ranks on 1 node, 2026-01-02 03:04 UTC; 8 of 8 runs used.",
        "CPU: tiny with ddp speeds up 1.87 times from 1 to 2 ranks",
        "Throughput",
        "Results One row per point",
        "Further figures",
        *ALL_FIGURES[1:],
        "All measured runs",
        "Definitions of the metrics",
        "Provenance",
    ]
    places = [text.find(part, text.find("Further figures") if part in ALL_FIGURES[1:] else 0) for part in parts]
    assert -1 not in places
    assert places == sorted(places)


def test_every_caption_starts_with_the_hardware_and_defines_what_is_shown(tmp_path: Path) -> None:
    a_scaling_sweep(tmp_path)
    shown = {figure.heading: figure.caption for figure in figures(Digest(groups=scaling_groups(read_runs([tmp_path]))))}
    assert list(shown) == ALL_FIGURES
    assert all(caption.startswith("CPU: ") for caption in shown.values())
    assert m.TOKENS_PER_S.definition in shown["Throughput"]
    assert "n = 2 each" in shown["Throughput"]
    assert "Reference: 1 rank on 1 node" in shown["Efficiency"]


def test_gpu_runs_state_gpu_and_emulated_nodes_state_emulated(tmp_path: Path) -> None:
    a_scaling_sweep(tmp_path / "gpu", device="cuda")
    a_scaling_sweep(tmp_path / "emulated", emulated_nodes=True)
    for name, words in (("gpu", "GPU: "), ("emulated", "Emulated nodes on CPU: ")):
        shown = figures(Digest(groups=scaling_groups(read_runs([tmp_path / name]))))
        assert shown
        assert all(figure.caption.startswith(words) for figure in shown)


def test_a_run_that_failed_is_listed_with_its_error(tmp_path: Path) -> None:
    a_scaling_sweep(tmp_path)
    directory = prepared(tmp_path, a_run("broken"))
    started(directory, a_run())
    event(directory, "failed", rank=3, node="node9", error="ValueError: no such luck")
    text = page_of(tmp_path).text
    listed = text[text.index("Runs not used, with reasons") :]
    assert "broken" in listed
    assert "failed at step 0 of 6: rank 3 on node9: ValueError: no such luck" in listed
    assert "ValueError: no such luck" in (tmp_path / "report.md").read_text()


def test_a_report_of_unusable_runs_is_written_and_states_it_first(tmp_path: Path) -> None:
    prepared(tmp_path, a_run("a"))
    prepared(tmp_path, a_run("b"))
    page = page_of(tmp_path)
    assert "Nothing measured: 0 of 2 runs can be used." in page.text
    assert "No result: none of 2 runs can be used; each is listed below with the reason." in page.text
    assert page.scripts == []


def test_a_figure_that_would_be_empty_is_a_sentence(tmp_path: Path) -> None:
    for layout in ("ddp", "fsdp_full"):
        finished_run(tmp_path, a_run(layout, parallelism=layout))
    page = page_of(tmp_path)
    assert "no speedup, because no line has points of different rank counts." in page.text
    assert "speedup" not in page.plots()


def test_only_weak_scaling_has_no_speedup_for_being_weak(tmp_path: Path) -> None:
    for layout in ("ddp", "fsdp_full"):
        finished_run(tmp_path / "weak", a_run(layout, parallelism=layout, weak=True))
    assert "no speedup is given for weak scaling" in page_of(tmp_path / "weak").text
    # Its batch is unknown, and so is its kind of scaling.
    groups = scaling_groups(read_runs([SAMPLES / "paddleclas_2_4.txt"]))
    caption = over_ranks("Speedup", m.SPEEDUP, groups, styles_of(groups), Group.speedup).caption
    assert "no speedup, because no line has points of different rank counts." in caption


def test_a_run_whose_loss_is_not_believed_is_marked_in_the_table(tmp_path: Path) -> None:
    for i in (1, 2, 3):
        finished_run(tmp_path, a_run(f"r{i}", repeat=i))
    finished_run(tmp_path, a_run("r4", repeat=4), losses=[9.0] * 6, step_time_s=0.001)
    text = page_of(tmp_path).text
    assert text.count("loss not believed") == 1
    assert "Left out of the medians: 1 run with a loss that is not believed." in text


def test_what_a_reader_must_know_is_reported(tmp_path: Path) -> None:
    for name, seed, facts in (
        ("a", 1, {"code_digest": "aaaa"}),
        ("b", 2, {"git": {"commit": "c0ffee", "dirty": True}}),
    ):
        run = with_job(a_run(name), seed=seed)
        directory = prepared(tmp_path, run, **facts)
        started(directory, run, nodes=[f"host-{name}"])
        for number in range(1, 7):
            step(directory, number)
        ended(directory)
    plan = json.loads((tmp_path / "a" / "plan.json").read_text()) | {
        "global_batch_size": 99,
        "warnings": ["TP is slow."],
    }
    (tmp_path / "a" / "plan.json").write_text(json.dumps(plan))
    text = page_of(tmp_path).text
    for message in (
        "The runs executed different code, by digest: aaaa (1 run), feedc0de (1 run).",
        "1 of 2 runs came from a git tree with uncommitted changes: no commit is that code.",
        "Not every point ran on the same hosts (host-a, host-b)",
        "Global batches differ (16, 99 sequences)",
        "Warned before submission, for 1 run: TP is slow.",
        "c0ffee with uncommitted changes",
    ):
        assert message in text


def test_the_page_defines_what_it_shows_and_links_it_from_the_heads_of_columns(tmp_path: Path) -> None:
    finished_run(tmp_path, a_run())
    page = page_of(tmp_path)
    known = {str(attributes["id"]) for _, attributes in page.elements if "id" in attributes}
    links = {str(attributes["href"])[1:] for tag, attributes in page.elements if tag == "a"}
    assert links <= known
    shown = (m.TOKENS_PER_S, m.STEP_TIME_MEDIAN, m.MEMORY_PEAK, m.STARTUP_TIME)
    assert {f"metric-{metric.name}" for metric in shown} <= known
    assert all(metric.definition in page.text for metric in shown)
    defined = {each for each in known if each.startswith("metric-")}
    assert {each for each in links if each.startswith("metric-")} <= defined
    assert len(defined) < len(m.REGISTRY) / 4
    assert "the first 2 steps of every attempt are not measured" in page.text


def test_a_page_has_a_main_part_a_link_to_it_and_tables_with_captions(tmp_path: Path) -> None:
    a_sweep_of_layouts(tmp_path)
    page = page_of(tmp_path)
    tags = [tag for tag, _ in page.elements]
    assert tags.count("main") == 1
    assert tags.count("caption") == tags.count("table") > 5
    assert page.elements[tags.index("body") + 1] == ("a", {"class": "skip", "href": "#main"})


def test_plots_hold_the_measured_numbers(tmp_path: Path) -> None:
    finished_run(tmp_path, a_run("n1"), step_time_s=1.0)
    finished_run(tmp_path, a_run("n4", nodes=4), step_time_s=0.5)
    plots = page_of(tmp_path).plots()
    (throughput,) = plots["tokens_per_s"]["data"]
    assert (throughput["x"], throughput["y"]) == ([1, 4], [1024, 2048])
    assert plots["tokens_per_s"]["layout"]["xaxis"]["tickvals"] == [1, 4]
    speedup, ideal = plots["speedup"]["data"]
    assert (speedup["y"], ideal["y"]) == ([1, 2], [1, 4])
    assert [each["y"] for each in plots["efficiency"]["data"]] == [[100, 50], [100, 100]]
    assert [part["x"] for part in plots["time-split"]["data"]] == [
        [value] * 2 for value in (2.0, 1.5, 0.5, 4.0, 1.0, 1.0)
    ]


@given(st.integers(1, 3000), st.integers(2, 500))
def test_a_thinned_curve_keeps_its_ends_its_order_and_its_limit(length: int, most: int) -> None:
    kept = list(thinned(range(length), most))
    assert len(kept) == min(length, most) <= MOST_CURVE_POINTS
    assert (kept[0], kept[-1]) == (0, length - 1)
    assert kept == sorted(set(kept))


# --- text stays text -------------------------------------------------------------------------------------------


def test_names_from_files_add_no_element_to_the_page(tmp_path: Path) -> None:
    a_sweep_of_layouts(tmp_path / "plain")
    a_hostile_sweep(tmp_path / "hostile")
    plain, hostile = page_of(tmp_path / "plain"), page_of(tmp_path / "hostile")
    assert hostile.tags() <= plain.tags() | {"strong"}  # ours, around the heading of a figure that is not drawn
    assert hostile.scripts == plain.scripts
    assert len(plain.scripts) == 2
    assert not any(name.startswith("on") for _, attributes in hostile.elements for name in attributes)
    for text in HOSTILE:
        assert " ".join(text.split()) in hostile.text


def test_names_from_files_are_no_markup_for_plotly(tmp_path: Path) -> None:
    a_hostile_sweep(tmp_path)
    texts: list[str] = []

    def collect(value: Any) -> None:
        if isinstance(value, dict | list):
            for each in value.values() if isinstance(value, dict) else value:
                collect(each)
        elif isinstance(value, str):
            texts.append(value.replace("<br>", ""))

    collect([plot["layout"] for plot in page_of(tmp_path).plots().values()])
    collect(
        [
            {k: v for k, v in t.items() if k != "legendgroup"}
            for p in page_of(tmp_path).plots().values()
            for t in p["data"]
        ]
    )
    assert any("&lt;script&gt;" in text for text in texts)
    assert not [text for text in texts if "<" in text]


@given(st.text())
def test_plot_text_has_no_tag_no_line_break_and_a_bounded_length(text: str) -> None:
    written = plot_text(text)
    assert "<" not in written
    assert "\n" not in written
    assert len(written) <= 5 * 60


def test_a_file_name_that_is_no_utf8_is_reported(tmp_path: Path) -> None:
    os.mkdir(os.fsencode(tmp_path) + b"/caf\xe9")  # noqa: PTH102 (pathlib takes no bytes)
    (directory,) = tmp_path.iterdir()
    finished_run(directory, a_run())
    assert "1 of 1 run used" in page_of(directory).text


# --- the page stands alone -------------------------------------------------------------------------------------


def test_the_page_fetches_nothing(tmp_path: Path) -> None:
    a_scaling_sweep(tmp_path)
    page = page_of(tmp_path)
    addresses = [
        value for _, attributes in page.elements for name, value in attributes.items() if name in {"src", "href"}
    ]
    # The others are places on the page.
    assert [address for address in addresses if not str(address).startswith("#")] == ["data:,"]
    policy = next(attributes["content"] for tag, attributes in page.elements if "http-equiv" in attributes)
    assert policy is not None
    assert policy.startswith("default-src 'none';")
    assert "unsafe-inline" not in re.findall(r"script-src ([^;]*)", policy)[0]
    assert "http" not in page.scripts[-1] + page.data


def test_tables_of_very_many_rows_are_cut_and_state_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for repeat in range(1, 8):
        finished_run(tmp_path, a_run(f"good-{repeat}", repeat=repeat))
        prepared(tmp_path, a_run(f"waiting-{repeat}", repeat=repeat))
    message = "The first 3 of 7 rows; the CSV files next to this page have all."
    assert message not in page_of(tmp_path).text
    for module in ("page", "markdown"):
        monkeypatch.setattr(f"analysis.report.{module}.MOST_ROWS", 3)
    page, markdown = page_of(tmp_path).text, (tmp_path / "report.md").read_text()
    for text in (page, markdown):
        assert text.count(message) == 2, "of the runs that were used, and of those that were not"
        assert ("good-3" in text, "good-4" in text, "waiting-3" in text, "waiting-4" in text) == (
            True,
            False,
            True,
            False,
        )
    assert (tmp_path / "runs.csv").read_text().count("\n") == 15


def test_of_very_many_runs_a_loss_curve_a_point_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_scaling_sweep(tmp_path)
    monkeypatch.setattr("analysis.report.figures.curves.MOST_CURVES", 7)
    (loss,) = [
        figure for figure in figures(Digest(groups=scaling_groups(read_runs([tmp_path])))) if figure.name == "loss"
    ]
    assert loss.plot is not None
    assert len(loss.plot.data) == 4
    assert "One line per point, of the run with the median throughput of its repeats (4 of 8 runs)" in loss.caption
