"""Every table and figure of a report as LaTeX, as a document and as a workbook."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from analysis.report.export import formats as exports
from analysis.report.report import report
from jobs.errors import ReportError
from tests.support.fake_runs import a_run, finished_run
from tests.support.report_pages import a_hostile_sweep, a_scaling_sweep

NEEDS_OFFICE = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("docx", "openpyxl")), reason="needs the extra office"
)


def page_tables(folder: Path) -> list[str]:
    """The headings of the page that have a table."""
    parts = re.split(r"^## ", (folder / "report.md").read_text(), flags=re.MULTILINE)[1:]
    return [part.partition("\n")[0] for part in parts if "\n| " in part]


def test_every_table_of_the_page_is_a_latex_file_and_one_document_has_all(tmp_path: Path) -> None:
    a_scaling_sweep(tmp_path / "demo")
    report([tmp_path / "demo"], tmp_path / "out", ["latex"])
    files = {path.name: path.read_text() for path in (tmp_path / "out/tables").iterdir()}
    assert len(files) == len(page_tables(tmp_path / "out")) + 2, "and provenance, and all.tex"
    together = files.pop("all.tex")
    assert sorted(f"{name}.tex" for name in re.findall(r"\\input\{(.*)\}", together)) == sorted(files)
    for text in files.values():
        columns = re.search(r"\\begin\{(?:tabular|longtable)\}\{@\{\}(.*)@\{\}\}", text)
        assert columns
        kinds = re.sub(r">\{[^}]*\}p\{[^}]*\}", "p", columns[1])
        body = text[text.index(r"\midrule") : text.index(r"\bottomrule")].splitlines()[1:]
        assert body
        assert all(line.count(" & ") == len(kinds) - 1 and line.endswith(r" \\") for line in body)
    # A later report without them names them, and does not read them.
    assert "tables/cost.tex" in exports.exports_in(tmp_path / "out")
    report([tmp_path / "out", tmp_path / "demo"], tmp_path / "again")
    assert "unknown format" not in (tmp_path / "again/report.md").read_text()


def test_a_long_table_is_no_float(tmp_path: Path) -> None:
    for number in range(45):
        finished_run(tmp_path / "demo", a_run(f"r{number}", repeat=number))
    report([tmp_path / "demo"], tmp_path / "out", ["latex"])
    text = (tmp_path / "out/tables/runs.tex").read_text()
    assert r"\begin{longtable}" in text
    assert "table*" not in text


@NEEDS_OFFICE
@pytest.mark.parametrize("sweep", [a_scaling_sweep, a_hostile_sweep])
def test_document_and_workbook_have_every_table_and_figure_and_the_same_bytes_each_time(
    tmp_path: Path, sweep: Any
) -> None:
    import docx
    import openpyxl

    sweep(tmp_path / "demo")
    for name in ("one", "two"):
        report([tmp_path / "demo"], tmp_path / name, ["docx,xlsx,png"])
    one, two = tmp_path / "one", tmp_path / "two"
    for name in ("report.docx", "report.xlsx"):
        assert (one / name).read_bytes() == (two / name).read_bytes(), name
    document, book = docx.Document(str(one / "report.docx")), openpyxl.load_workbook(one / "report.xlsx")
    tables = len(page_tables(one)) + 1  # Markdown has no table of provenance
    unused = "Runs not used, with reasons" in page_tables(one)
    assert len(document.tables) == tables - unused
    figures = len(list((one / "figures").glob("*.png")))
    assert len(document.inline_shapes) == figures
    assert len(book["Figures"]._images) == figures
    assert len(book.sheetnames) == tables - unused + 2
    assert not [cell for sheet in book for row in sheet.iter_rows() for cell in row if cell.data_type == "f"]
    if sweep is a_scaling_sweep:
        row = {cell.value: book["Cost"].cell(3, cell.column).value for cell in book["Cost"][2]}
        assert row["CPU rank-hours"] == 0.001111, "a number is a number"
        assert book["Cost"].cell(3, 1).value == "ddp-2-1"


def test_without_the_packages_the_formats_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exports, "find_spec", lambda name: None)
    with pytest.raises(ReportError, match=re.escape("--format docx needs docx and matplotlib, not installed here. Run "
                                                    "`pip install 'slurmscale[office]'`")):  # fmt: skip
        exports.chosen_formats(["docx"])
