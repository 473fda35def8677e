"""LitGPT's lines of three generations: which time is that of a step and which that of a micro-batch."""

from __future__ import annotations

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Line
from analysis.parsers.trainings import litgpt
from jobs import metrics as m


def test_pretraining_prints_the_time_that_remains_and_a_table() -> None:
    printed = (
        "Epoch 1 | iter 2 step 2 | loss train: 9.500, val: n/a | iter time: 250.00 ms (step) remaining time: 0:01:00",
        "| - Training Time : 62.50 s",
        "| - Tok/sec       : 4096.00 tok/s",
        "| - Memory Used   : 1.50 GB",
    )
    found = list(litgpt.parse(Line(number, text) for number, text in enumerate(printed, 1)))
    assert [each.values for each in found] == [
        {a.EPOCH: 1, a.MICRO_BATCHES_DONE: 2, m.STEP: 2, m.LOSS: 9.5, m.STEP_TIME: 0.25},
        {a.TRAINING_TIME: 62.5},
        {m.TOKENS_PER_S: 4096},
        {m.MEMORY_PEAK: 1.5e9},
    ]


def test_the_end_of_a_stranger_s_log_is_not_litgpt_s() -> None:
    lines = [Line(1, "Training time: 3.00s"), Line(2, " 'num_nodes': 2,"), Line(3, "Memory used: 1.00 GB")]
    assert list(litgpt.parse(lines)) == []
