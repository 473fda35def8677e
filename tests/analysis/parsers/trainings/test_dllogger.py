"""DLLogger's lines on the terminal and in its file."""

from __future__ import annotations

import pytest

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Line, Text
from analysis.parsers.trainings import dllogger
from jobs import metrics as m
from tests.analysis.parsers.reading import SAMPLES, column, records, texts

NAME = "DLLogger"
SAMPLE = SAMPLES / "dllogger.txt"


def test_the_step_is_written_in_three_ways() -> None:
    steps = [each for each in records(SAMPLE, NAME) if each.kind is Kind.step]
    assert [each.values[a.ITERATION] for each in steps] == [19, 39, 200, 30, 59, 79]
    assert steps[0].rank == 0
    assert steps[0].texts == {Text.timestamp: "2026-03-04 05:06:08.202303"}
    assert steps[0].values == {
        a.EPOCH: 0, a.ITERATION: 19, m.LOSS: 6.875, a.SAMPLES_PER_S: 1040.5, m.LEARNING_RATE: 0.4864,
    }  # fmt: skip
    assert steps[3].values == {a.EPOCH: 0, a.ITERATION: 30, m.LOSS: 11.25, m.LEARNING_RATE: 0.00061}


def test_a_line_behind_a_bar_is_found_and_its_nan_is_marked_and_its_0_absent() -> None:
    second = [each.values for each in records(SAMPLE, NAME) if each.kind is Kind.step][1]
    assert second == {a.EPOCH: 0, a.ITERATION: 39, m.LEARNING_RATE: 0.512, a.LOSS_NOT_FINITE: 1}


def test_a_torn_field_is_not_believed() -> None:
    torn = records(SAMPLE, NAME)[-1].values
    assert torn == {a.EPOCH: 1, a.ITERATION: 79, m.LOSS: 6.0}


def test_an_epoch_and_the_run_have_summaries_and_the_held_out_samples_an_evaluation() -> None:
    found = records(SAMPLE, NAME)
    assert column(found, Kind.summary, a.SAMPLES_PER_S) == [2100.25, 9421.5, 2050.5]
    assert column(found, Kind.summary, a.DATA_TIME) == [0.125]
    (evaluation,) = (each.values for each in found if each.kind is Kind.evaluation)
    assert evaluation == {a.EPOCH: 0, a.EVALUATION_SCORE: 71.5, m.EVALUATION_LOSS: 1.5}


def test_parameters_name_the_model_and_the_precision() -> None:
    found = records(SAMPLE, NAME)
    assert texts(found, Text.model) == ["resnet50", "resnet50"]
    assert texts(found, Text.precision) == ["float16"]


def test_the_json_stream_contains_the_same() -> None:
    (written,) = (each for each in records(SAMPLE, NAME) if each.values.get(a.ITERATION) == 59)
    assert written.values == {a.EPOCH: 1, a.ITERATION: 59, a.LOSS_NOT_FINITE: 1, a.SAMPLES_PER_S: 2075.5}
    assert written.texts == {Text.timestamp: "2026-03-04 05:06:15.011212"}


@pytest.mark.parametrize("file", ["dllogger_1_0.txt", "dllogger_1_0.jsonl"])
def test_a_training_has_steps_and_epochs_and_no_batch_of_a_validation_is_a_result(file: str) -> None:
    # On the terminal there are two, by the step format of an example and by DLLogger's own.
    trainings = 2 if file.endswith(".txt") else 1
    found = records(SAMPLES / file, NAME)
    assert texts(found, Text.model) == ["toy"] * trainings
    steps = [(each.values[a.EPOCH], each.values[a.ITERATION]) for each in found if each.kind is Kind.step]
    assert steps == [(0, 9), (0, 19), (1, 9), (1, 19)] * trainings
    assert column(found, Kind.step, m.LOSS) == pytest.approx([1.29403, 1.28003, 1.28459, 1.19878] * trainings, abs=1e-5)
    assert column(found, Kind.evaluation, a.EVALUATION_SCORE) == pytest.approx(
        [43.75, 59.38, 59.38] * trainings, abs=0.01
    )
    assert len(column(found, Kind.summary, a.SAMPLES_PER_S)) == 3 * trainings


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
