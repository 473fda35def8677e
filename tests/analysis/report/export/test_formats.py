"""The files of `report --format`: the same numbers as the page, text that stays text, the same bytes each time."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from analysis.formatting import csv_cell
from analysis.load.discover import read_runs
from analysis.report.digest import Digest
from analysis.report.export import formats as exports
from analysis.report.export.data_frames import typed_runs
from analysis.report.export.latex import escaped, latex_table
from analysis.report.export.paper import ON_THE_PAGE_ONLY, drawn
from analysis.report.export.parquet import runs_parquet
from analysis.report.figures.page import figures
from analysis.report.report import report
from analysis.report.runs_table import rows_of, to_csv
from analysis.run import RunResult
from analysis.scaling.groups import scaling_groups
from jobs import metrics as m
from jobs.cli import main
from jobs.errors import ReportError
from tests.support.fake_runs import a_run, a_sweep_of_layouts, finished_run, prepared
from tests.support.report_pages import a_disturbed_sweep, a_hostile_sweep, a_scaling_sweep

SVG = "{http://www.w3.org/2000/svg}"
ALL = ["parquet,svg", "png, latex"]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every output of a sweep."""
    path = tmp_path_factory.mktemp("written")
    a_scaling_sweep(path / "demo")
    report([path / "demo"], path / "out", ALL)
    return path / "out"


# --- which files -----------------------------------------------------------------------------------------------


def test_formats_add_files_beside_the_three_that_are_always_written(written: Path) -> None:
    names = {path.name for path in written.iterdir()}
    assert names == {"report.html", "report.md", "runs.csv", "runs.parquet", "points.tex", "figures", "tables"}
    figure_names = {path.name for path in (written / "figures").iterdir()}
    assert {"tokens_per_s.svg", "tokens_per_s.png", "time-split.svg", "loss.png", "captions.txt"} <= figure_names


def test_exports_of_an_earlier_report_are_named_and_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    finished_run(tmp_path / "demo", a_run())
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures/mine.svg").write_text("<svg/>")
    report([tmp_path / "demo"], tmp_path, ["latex,parquet"])
    assert capsys.readouterr().err == ""
    report([tmp_path / "demo"], tmp_path, ["latex"])
    assert capsys.readouterr().err == (
        f"{tmp_path} still holds files of an earlier report, which this one did not write: runs.parquet\n"
    )
    (tmp_path / "figures/captions.txt").write_text("")
    report([tmp_path / "demo"], tmp_path)
    named = capsys.readouterr().err
    assert ": runs.parquet, points.tex, figures/captions.txt, figures/mine.svg, tables/all.tex, tables/" in named


def test_the_command_line_takes_lists_more_than_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    finished_run(tmp_path / "demo", a_run())
    arguments = ["report", str(tmp_path / "demo"), "-o", str(tmp_path), "--format", "latex,parquet", "--format=latex"]
    assert main(arguments) == 0
    assert {"points.tex", "runs.parquet"} <= {path.name for path in tmp_path.iterdir()}


def test_an_unknown_format_is_refused_with_those_that_there_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finished_run(tmp_path / "demo", a_run())
    assert main(["report", str(tmp_path / "demo"), "-o", str(tmp_path / "out"), "--format", "png,pdf"]) == 2
    assert capsys.readouterr().err == (
        "slurmscale report: --format pdf: there is no such format. Pass one or several of parquet, svg, png, latex, "
        "docx, xlsx, mlflow, wandb, tensorboard, prometheus, github, with commas between; report.html, report.md and "
        "runs.csv are always written.\n"
    )
    assert not (tmp_path / "out").exists()


def test_a_format_without_its_package_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished_run(tmp_path / "demo", a_run())
    monkeypatch.setattr(exports, "find_spec", lambda name: None)
    with pytest.raises(ReportError) as caught:
        report([tmp_path / "demo"], tmp_path / "out", ["latex,parquet"])
    assert str(caught.value) == (
        "--format parquet needs pyarrow, not installed here. Run `pip install pyarrow`, or leave "
        "parquet out of --format."
    )
    assert not (tmp_path / "out").exists()


def test_the_report_alone_imports_no_optional_package(tmp_path: Path) -> None:
    finished_run(tmp_path, a_run())
    code = "import sys; from jobs.cli import main; main(['report', sys.argv[1]]); sys.exit('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_same_runs_give_the_same_bytes_in_another_process(tmp_path: Path) -> None:
    a_scaling_sweep(tmp_path / "demo")
    code = (
        "import sys; from pathlib import Path; from analysis.report.report import report;"
        "report([Path(sys.argv[1])], Path(sys.argv[2]), ['parquet,svg,png,latex'])"
    )
    texts = []
    for seed in ("1", "2"):
        out = tmp_path / seed
        subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "demo"), str(out)],
            check=True,
            env=os.environ | {"PYTHONHASHSEED": seed},
        )
        texts.append({str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()})
    assert len(texts[0]) > 15
    assert texts[0] == texts[1]


def test_runs_that_cannot_be_used_still_give_every_file(tmp_path: Path) -> None:
    prepared(tmp_path / "demo", a_run())
    report([tmp_path / "demo"], tmp_path, ALL)
    assert (tmp_path / "points.tex").read_text() == "% No run can be used: there is no point to show.\n"
    assert list(pd.read_parquet(tmp_path / "runs.parquet")["state"]) == ["not started"]
    assert [path.name for path in (tmp_path / "figures").iterdir()] == ["captions.txt"]


# --- Parquet and CSV -------------------------------------------------------------------------------------------


def assert_agree(csv_text: str, parquet: bytes) -> None:
    """Both tables hold the same values; what a spreadsheet would compute has an apostrophe in the CSV only."""
    typed = pd.read_parquet(io.BytesIO(parquet))
    texts = pd.read_csv(io.StringIO(csv_text, newline=""), dtype=str, keep_default_na=False, engine="python")
    assert list(texts.columns) == list(typed.columns)
    assert len(texts) == len(typed)
    for name in typed.columns:
        for text, value in zip(texts[name], typed[name], strict=True):
            if value is pd.NA:
                assert text == ""
            elif isinstance(value, str):
                assert text == csv_cell(value)
            elif isinstance(value, bool | np.bool_):
                assert text == str(value)
            else:
                assert float(text) == value


def test_csv_and_parquet_hold_the_same_runs(written: Path) -> None:
    assert_agree((written / "runs.csv").read_text(), (written / "runs.parquet").read_bytes())


TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1)
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), TEXTS, st.sampled_from(["=1+1", "-1", "", "<NA>"])
)


@given(st.lists(st.tuples(VALUES, VALUES, st.floats(allow_nan=False, allow_infinity=False)), min_size=1, max_size=4))
@example([(None, -float("inf"), 0.0)])
@settings(max_examples=30)
def test_csv_and_parquet_agree_whatever_the_files_held(found: list[tuple[Any, Any, float]]) -> None:
    runs = [
        RunResult(
            Path(f"run{i}"),
            {"name": f"run{i}", "sweep": "s", "nodes": 1, "ranks_per_node": 1, "model": {"name": name}},
            {"parameters": parameters},
            values={m.TOKENS_PER_S: rate},
            reason="made up",
        )
        for i, (name, parameters, rate) in enumerate(found)
    ]
    rows = rows_of(Digest(runs))
    assert_agree(to_csv(rows), runs_parquet(rows))


def test_a_formula_stays_a_formula_in_parquet(tmp_path: Path) -> None:
    run = replace(a_run(), sweep="=1+1")
    finished_run(tmp_path / "demo", run)
    report([tmp_path / "demo"], tmp_path, ["parquet"])
    assert list(pd.read_parquet(tmp_path / "runs.parquet")["sweep"]) == ["=1+1"]
    assert list(pd.read_csv(tmp_path / "runs.csv")["sweep"]) == ["'=1+1"]


def test_parquet_knows_types_units_and_definitions(written: Path) -> None:
    schema = pq.read_schema(written / "runs.parquet")
    kinds = {name: str(schema.field(name).type) for name in ("nodes", "tokens_per_s", "emulated_nodes", "cp")}
    assert kinds == {"nodes": "int64", "tokens_per_s": "double", "emulated_nodes": "bool", "cp": "int64"}
    assert schema.field("memory_peak_bytes").metadata == {
        b"unit": b"B",
        b"definition": m.MEMORY_PEAK.definition.encode(),
    }
    assert not schema.field("name").metadata


def test_values_of_mixed_kinds_are_text(tmp_path: Path) -> None:
    for name, parameters in (("a", 12), ("b", "many")):
        directory = finished_run(tmp_path, a_run(name))
        plan = json.loads(directory.plan.read_text()) | {"parameters": parameters}
        directory.plan.write_text(json.dumps(plan))
    frame = typed_runs(rows_of(Digest(read_runs([tmp_path]))))
    assert list(frame["parameters"]) == ["12", "many"]


# --- figures ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sweep", [a_scaling_sweep, a_sweep_of_layouts, a_hostile_sweep, a_disturbed_sweep])
def test_every_figure_of_the_page_is_drawn_for_a_paper(tmp_path: Path, sweep: Any) -> None:
    sweep(tmp_path)
    on_page = figures(Digest(groups=scaling_groups(read_runs([tmp_path]))))
    files = drawn(on_page, ["svg"])
    assert {name for name in files if name.endswith(".svg")} == {
        f"figures/{figure.name}.svg" for figure in on_page if figure.plot
    }
    assert ON_THE_PAGE_ONLY.encode() not in files["figures/captions.txt"]
    for name, data in files.items():
        if name.endswith(".svg"):
            assert {element.tag for element in ET.fromstring(data).iter()} & {f"{SVG}script", f"{SVG}image"} == set()


def test_a_figure_is_a_column_wide_with_text_as_text(written: Path) -> None:
    svg = ET.fromstring((written / "figures/tokens_per_s.svg").read_bytes())
    assert svg.attrib["width"] == "244.8pt"  # 3.4 in
    texts = {"".join(element.itertext()) for element in svg.iter(f"{SVG}text")}
    assert {"CPU", "ddp", "fsdp_full", "Ranks", "Tokens/s", "1", "2"} <= texts
    styles = " ".join(element.attrib.get("style", "") for element in svg.iter(f"{SVG}text"))
    assert set(re.findall(r"font: (\d+)px", styles)) <= {"7", "8"}
    with Image.open(written / "figures/tokens_per_s.png") as image:
        assert image.width == 3.4 * 300
        assert image.text["Description"].startswith("CPU: ")  # type: ignore[attr-defined]


def test_a_figure_for_a_paper_holds_the_numbers_of_the_page(tmp_path: Path) -> None:
    finished_run(tmp_path, a_run("n1"), step_time_s=1.0)
    finished_run(tmp_path, a_run("n2", nodes=2), step_time_s=0.5)
    (figure,) = [
        each for each in figures(Digest(groups=scaling_groups(read_runs([tmp_path])))) if each.name == "tokens_per_s"
    ]
    svg = drawn([figure], ["svg"])["figures/tokens_per_s.svg"].decode()
    # y is linear from 0: 1024 and 2048 tokens/s are as far apart as 1024 is from 0.
    xs_ys = [tuple(map(float, pair)) for pair in re.findall(r'<use [^>]*x="([\d.]+)" y="([\d.]+)"', svg)]
    markers = {pair for pair in xs_ys if xs_ys.count(pair) == 1}
    bottom = max(y for _, y in xs_ys)
    heights = sorted({round(bottom - y, 2) for _, y in markers if y != bottom})
    assert any(abs(high - 2 * low) < 0.02 for low in heights for high in heights)


def test_captions_state_the_hardware_first(written: Path) -> None:
    captions = [line for line in (written / "figures/captions.txt").read_text().splitlines() if line]
    assert len(captions) == 10
    assert all(re.match(r"[\w-]+: CPU: ", line) for line in captions)


def test_names_are_drawn_as_they_are(tmp_path: Path) -> None:
    for name in ("$x_1$", "<b>bold</b>&amp;", "日本語"):
        finished_run(tmp_path, a_run(name.replace("/", "_"), parallelism=name))
    files = drawn(figures(Digest(groups=scaling_groups(read_runs([tmp_path])))), ["svg"])
    svg = ET.fromstring(files["figures/loss.svg"])
    texts = {"".join(element.itertext()) for element in svg.iter(f"{SVG}text")}
    assert {"$x_1$", "<b>bold</b>&amp;", "日本語"} <= texts


# --- LaTeX -----------------------------------------------------------------------------------------------------


def test_the_latex_table_has_a_row_a_point_and_states_the_hardware_first(written: Path) -> None:
    text = (written / "points.tex").read_text()
    assert r"\caption{CPU: medians over n repeats" in text
    assert "Scaling: strong. Nodes: 1. GBS: 16. n: 2.}" in text
    body = text[text.index(r"\midrule") : text.index(r"\bottomrule")].splitlines()[1:]
    assert len(body) == 4
    columns = re.findall(r"\\begin\{tabular\}\{@\{\}(l[lr]+)@\{\}\}", text)[0]
    assert all(line.count(" & ") == len(columns) - 1 for line in body)
    assert r"fsdp\_\allowbreak{}full" in body[-1]
    assert r"\medianrange{" in body[0]


@given(st.text())
def test_escaped_text_has_no_command_of_its_own(text: str) -> None:
    written_text = escaped(text)
    plain = re.sub(r"\\(text[a-z]+|allowbreak|char34)\{\}|\\[{}$&#%_]|\{[-']\}", "", written_text)
    assert not re.search(r"[\\{}$&#%_^~<>|\"`'\n]", plain)


@pytest.mark.slow
def test_latex_sets_hostile_names(tmp_path: Path) -> None:
    if shutil.which("pdflatex") is None:
        pytest.skip("no pdflatex on PATH")
    a_hostile_sweep(tmp_path / "demo")
    table = latex_table(scaling_groups(read_runs([tmp_path / "demo"])))
    document = "\\documentclass[twocolumn]{article}\n\\usepackage{booktabs}\n"
    (tmp_path / "a.tex").write_text(f"{document}\\begin{{document}}\n{table}\\end{{document}}\n")
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "a.tex"],
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout.decode(errors="replace")[-2000:]
    assert (tmp_path / "a.pdf").stat().st_size > 1000
