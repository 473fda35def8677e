"""DeepSpeed-Chat's throughput and evaluations."""

from __future__ import annotations

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Line
from analysis.parsers.trainings import deepspeed_chat
from jobs import metrics as m


def test_an_evaluation_is_its_result_below_its_heading() -> None:
    lines = (
        "ppl: 3.5",
        "***** Evaluating perplexity, Epoch 1/2 *****",
        "ppl: 2.0625",
        "***** Evaluating reward, Epoch 1/2 *****",
        "chosen_last_scores (higher is better) : 2.5, acc (higher is better) : 0.625",
    )
    found = list(deepspeed_chat.parse(Line(number, text) for number, text in enumerate(lines, 1)))
    assert [(each.line, each.kind, each.values) for each in found] == [
        (3, Kind.evaluation, {m.EVALUATION_PERPLEXITY: 2.0625}),
        (5, Kind.evaluation, {a.EVALUATION_SCORE: 0.625}),
    ]
