"""Sparse tables of Lightning's CSVLogger."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.parsers import log_metrics as a
from analysis.parsers.trainings.lightning_csv import is_header
from jobs import metrics as m
from tests.analysis.parsers.reading import records

NAME = "Lightning CSV"


def test_a_loss_of_nan_is_marked_other_words_and_a_torn_row_are_absent(tmp_path: Path) -> None:
    table = tmp_path / "metrics.csv"
    table.write_text("\ufeffepoch,step,train/loss,val/loss\r\n0,0,nan,\r\n0,1,2.5,inf\r\n0,2,2.2")
    assert [each.values for each in records(table, NAME)] == [
        {a.EPOCH: 0, m.STEP: 1, a.LOSS_NOT_FINITE: 1},
        {a.EPOCH: 0, m.STEP: 2, m.LOSS: 2.5},
        {a.EPOCH: 0, m.STEP: 2, a.LOSS_NOT_FINITE: 1},
    ]


@pytest.mark.parametrize(
    "header", ["", "epoch,step", "Epoch,Step,Loss", "step,loss", "the epoch, step,x", "epoch|step|a"]
)
def test_other_first_lines_are_no_header(header: str) -> None:
    assert not is_header(header)
