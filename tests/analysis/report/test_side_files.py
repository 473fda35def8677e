"""Counters of a filer that were recorded next to the runs: read by time, shown in tables and a figure, compared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from analysis.load.discover import read
from analysis.report.content import Report, build
from analysis.report.figures.style import Section
from tests.support.documents import filer_rows, filled

STUDY = ("experiment=resnet50_powerscale", "job.steps=100")


def two_filers(folder: Path, text: Callable[[str, int], str]) -> Report:
    """Return the report of two sweeps of a run of 105 s, an hour apart, each with the rows of its filer."""
    for i, (nodes, cpu, operations) in enumerate(((4, 13.6, 2.5e9), (8, 8.1, 1.2e9))):
        sweep, begin_s = folder / str(nodes), 3600.0 * i
        filled(
            sweep,
            *STUDY,
            f"images.path=/mnt/{nodes}",
            f"images.storage={nodes} storage nodes",
            seconds_of=lambda _: 100.0,
            begin_s=begin_s,
        )
        lines = ["time,node,CPU %,NFS Ops/node", *filer_rows(begin_s, 105, cpu, operations)]
        (sweep / "filer.csv").write_text("\n".join(text(line, i) for i, line in enumerate(lines)) + "\n")
    return build(read([folder / "4", folder / "8"]))


def section(content: Report, heading: str) -> Section:
    return next(each for each in (*content.rankings, *content.sections) if each.heading == heading)


def test_table_6_and_its_conclusions_are_made_from_the_file_of_the_filer(tmp_path: Path) -> None:
    content = two_filers(tmp_path, lambda line, _: line)
    study = section(content, "Images from storage, as table 6 of H20044")
    cells = [dict(zip(study.headings, row, strict=True)) for row in study.rows]
    assert [row["CPU (%)"] for row in cells] == ["13.6", "8.10"]
    assert [row["NFS Ops/node (billion)"] for row in cells] == ["2.50", "1.20"]
    (headline,) = [line for line in content.headlines if line.startswith("By the side files")]
    assert "images.storage=8 storage nodes takes 52.0 % less storage operations/node than" in headline
    assert (
        "8 storage nodes takes 40.4 % less CPU of storage than 4 storage nodes on 16 ranks on 2 nodes (n = 1"
        in headline
    )
    found = section(content, "Side files")
    assert list(found.headings) == [
        "Run",
        "File",
        "CPU of storage (%)",
        "Storage operations/node (billion)",
        "Time covered",
        "Remark",
    ]
    assert found.figure is not None
    assert found.figure.plot is not None
    assert len(found.figure.plot.data) == 4


@pytest.mark.parametrize(
    ("cpu", "operations", "size"),
    [("CPU (%)", "NFS Ops/node (million)", 1e6), ("CPU%", "storage_operations_per_node (billion)", 1e9)],
)
def test_a_column_may_name_its_unit(tmp_path: Path, cpu: str, operations: str, size: float) -> None:
    def text(line: str, _: int) -> str:
        if line.startswith("time"):
            return f"time,node,{cpu},{operations}"
        *others, count = line.split(",")
        return ",".join([*others, f"{float(count) / size}"])

    (*_, first), (*_, second) = [row[2:4] for row in section(two_filers(tmp_path, text), "Side files").rows]
    assert (first, second) == ("2.500", "1.200")


@pytest.mark.parametrize(
    ("text", "remark"),
    [
        (
            lambda line, _: line.replace("time,", "Date,"),
            "filer.csv has no column time; its columns are Date, node, CPU",
        ),
        (
            lambda line, _: line.replace("+00:00", ""),
            "has no time zone or is no moment. Write 2026-01-31T12:34:56+01:00",
        ),
        (lambda line, _: line.replace("+00:00", "-08:00"), "no row in the time of the run. 8 h earlier it would cover"),
        (lambda line, _: line.replace("2026-", "2024-"), "filer.csv has no row in the time of the run."),
        (lambda line, i: line if i % 150 < 60 or i == 0 else "", "filer.csv has no row for"),
        (lambda line, i: line if i == 0 else "", "filer.csv has no rows with numbers."),
        (lambda _, i: '\x00,"' * i, "filer.csv"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_the_reason(
    text: Callable[[str, int], str], remark: str, tmp_path: Path
) -> None:
    found = section(two_filers(tmp_path, text), "Side files")
    assert remark in " ".join(row[-1] for row in found.rows)


def test_no_file_outside_the_sweep_is_read(tmp_path: Path) -> None:
    (tmp_path / "secret.csv").write_text("time,CPU %\n0,1\n")
    filled(tmp_path / "sweep", *STUDY, "images.path=/mnt", "report.side_files=[filer.csv]", seconds_of=lambda _: 100.0)
    config = next((tmp_path / "sweep").glob("*/config.yaml"))
    config.write_text(config.read_text().replace("filer.csv", "../../secret.csv"))
    assert not [each for each in build(read([tmp_path / "sweep"])).sections if each.heading == "Side files"]


def test_a_missing_file_is_asked_for(tmp_path: Path) -> None:
    filled(tmp_path, *STUDY, "images.path=/mnt", seconds_of=lambda _: 100.0)
    (row,) = section(build(read([tmp_path])), "Side files").rows
    assert row[-1] == f"There is no filer.csv in {tmp_path.name}: export it into the directory of the sweep."
