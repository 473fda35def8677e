"""DLLogger's lines on the terminal and in its file."""

from __future__ import annotations

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Line
from analysis.parsers.trainings import dllogger
from jobs import metrics as m


def test_bert_in_tensorflow_counts_iterations_without_epochs_and_its_summary_has_no_step() -> None:
    when = "2026-03-04 05:06:0"
    found = list(
        dllogger.parse(
            Line(number, text)
            for number, text in enumerate(
                (
                    f"DLL {when}1.5 - Iteration: 100  Rank : 0 throughput_train : 812.5 total_loss : 8.25 ",
                    f"DLL {when}2.5 - 200 throughput_train : 825.0 learning_rate : 0.001 ",
                    f'DLLL {{"datetime": "{when}3.5", "step": 300, "data": {{"throughput_train": 850.0}}}}',
                    f"DLL {when}4.5 -  throughput_train : 840.25 ",
                    f"DLL {when}5.5 - saved the model : no step ",
                )
            )
        )
    )
    assert [(each.kind, each.values) for each in found] == [
        (Kind.step, {m.STEP: 100, a.SAMPLES_PER_S: 812.5, m.LOSS: 8.25}),
        (Kind.step, {m.STEP: 200, a.SAMPLES_PER_S: 825.0, m.LEARNING_RATE: 0.001}),
        (Kind.step, {m.STEP: 300, a.SAMPLES_PER_S: 850.0}),
        (Kind.summary, {a.SAMPLES_PER_S: 840.25}),
    ]
