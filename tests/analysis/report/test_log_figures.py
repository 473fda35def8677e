"""One table has every figure of a log that no other section shows."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from analysis.load.discover import read
from analysis.report.content import build
from analysis.report.sections.log_figures import HEADING
from tests.analysis.parsers.reading import SAMPLES


def rows(*files: Path) -> dict[str, list[str]]:
    """The rows of the table in the report of some logs, by their first cell."""
    (section,) = [each for each in build(read(list(files))).sections if each.heading == HEADING]
    return {row[0]: list(row[1:-1]) for row in section.rows}


@pytest.mark.parametrize(
    ("sample", "figure", "median"),
    [
        ("megatron.txt", "Loss scale", "1.00000"),
        ("deepspeed.txt", "Backward time (s)", "0.7762"),
        ("deepspeed.txt", "Memory allocated (GiB)", "1.625"),
        ("hf_trainer.txt", "Training samples", "64"),
        ("torchtitan.txt", "Peak flops/s (TFLOP/s)", "989.0"),
        ("nvidia_smi.txt", "GPU memory used (GiB)", None),
    ],
)
def test_each_kind_of_figure_has_a_row(tmp_path: Path, sample: str, figure: str, median: str | None) -> None:
    shutil.copy(SAMPLES / sample, tmp_path)
    found = rows(tmp_path / sample)
    assert f"{sample}: {figure}" in found, found.keys()
    assert median in {None, found[f"{sample}: {figure}"][0]}


def test_a_table_of_sacct_has_its_own_and_is_not_repeated() -> None:
    report = build(read([SAMPLES / "sacct.txt"]))
    assert HEADING not in {section.heading for section in report.sections}
    assert any("Host memory peak (GiB)" in section.headings for section in report.sections)
