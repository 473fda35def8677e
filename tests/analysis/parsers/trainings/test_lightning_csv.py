"""Sparse tables of Lightning's CSVLogger."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind
from analysis.parsers.trainings.lightning_csv import is_header
from jobs import metrics as m
from tests.analysis.parsers.reading import SAMPLES, column, records

NAME = "Lightning CSV"


def test_a_row_is_a_record_of_the_kind_that_its_columns_are_of() -> None:
    found = records(SAMPLES / "lightning.csv", NAME)
    assert [each.kind for each in found] == [
        *[Kind.step] * 6, Kind.evaluation, Kind.summary, *[Kind.step] * 6, Kind.evaluation, Kind.summary
    ]  # fmt: skip
    assert [each.line for each in found] == list(range(2, 18))
    assert found[0].values == {m.STEP: 2, m.LEARNING_RATE: 0.25}, "that row has no epoch"
    assert found[1].values == {m.STEP: 2, a.EPOCH: 0, m.LOSS: 3.9037225246429443}
    assert found[6].values == {
        m.STEP: 6, a.EPOCH: 0, m.EVALUATION_LOSS: 1.5157331228256226, a.EVALUATION_SCORE: 0.5
    }  # fmt: skip
    assert found[7].values == {m.STEP: 6, a.EPOCH: 0, a.MEAN_LOSS: 1.9133715629577637}
    assert column(found, Kind.step, m.STEP)[-1] == 12


def test_litgpt_counts_micro_batches_there() -> None:
    found = records(SAMPLES / "lightning_litgpt.csv", NAME)
    assert column(found, Kind.step, a.MICRO_BATCHES_DONE) == list(range(1, 9))
    assert found[0].values == {
        a.MICRO_BATCHES_DONE: 1, a.EPOCH: 0, m.LOSS: 6.027943134307861, m.LEARNING_RATE: 0,
        a.MICRO_BATCH_TIME: 0.01822620000166353,
    }  # fmt: skip
    (_, _, last) = (each for each in found if each.kind is Kind.evaluation)
    assert last.values == {
        a.MICRO_BATCHES_DONE: 8, m.EVALUATION_LOSS: 5.962143421173096, m.EVALUATION_PERPLEXITY: 388.4418270112269
    }  # fmt: skip


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
