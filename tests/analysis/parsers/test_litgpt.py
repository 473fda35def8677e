"""LitGPT's lines of three generations: what is a step's time, what a micro-batch's, and the figures of real runs."""

from __future__ import annotations

import json

import pytest

from analysis.parsers import litgpt
from analysis.parsers import metrics as a
from analysis.parsers.base import Kind, Line, Text
from jobs import metrics as m
from tests.analysis.parsers.reading import CORPUS, SAMPLES, column, needs_corpus, records, texts

NAME = "LitGPT"
ASPIRE = CORPUS / "litgpt" / "apac2024_jiraphatl_aspire2"
REFERENCE = CORPUS / "litgpt" / "apac2024_reference_aspire2"


def test_a_run_gives_its_settings_micro_batches_evaluations_and_end() -> None:
    found = records(SAMPLES / "litgpt.txt", NAME)
    setting, first, *_, last_step, _, time, speed, final = found
    assert (setting.kind, setting.texts) == (Kind.setting, {Text.precision: "32-true"})
    assert setting.values == {
        a.RANKS_PER_NODE: 1, a.NODES: 1, a.GLOBAL_BATCH_SIZE: 4, a.MICRO_BATCH_SIZE: 2, a.PLANNED_STEPS: 4,
        a.SEQUENCE_LENGTH: 48, a.TIED_EMBEDDINGS: 0,
    }  # fmt: skip
    assert first.values == pytest.approx({
        a.EPOCH: 1, a.MICRO_BATCHES_DONE: 1, m.STEP: 0, m.LOSS: 6.028, a.MICRO_BATCH_TIME: 0.01823
    })  # fmt: skip
    assert last_step.values == pytest.approx({
        a.EPOCH: 1, a.MICRO_BATCHES_DONE: 8, m.STEP: 4, m.LOSS: 5.97, m.EVALUATION_LOSS: 5.995,
        a.MICRO_BATCH_TIME: 0.00369,
    })  # fmt: skip
    assert column(found, Kind.evaluation, m.EVALUATION_LOSS) == [5.995, 5.9621, 5.962]
    assert (time.values, speed.values) == ({a.TRAINING_TIME: 0.16}, {m.TOKENS_PER_S: 4796.89})
    assert final.values == {m.EVALUATION_LOSS: 5.962, m.EVALUATION_PERPLEXITY: 388.442}
    assert column(found, Kind.step, m.STEP_TIME) == [], "two micro-batches make a step"


def test_lines_of_2023_and_of_march_2024_are_read() -> None:
    found = records(SAMPLES / "litgpt_older.txt", NAME)
    steps = [each.values for each in found if each.kind is Kind.step]
    assert [values[a.MICRO_BATCHES_DONE] for values in steps] == [0, 1, 2, 3, 4]
    assert steps[0] == pytest.approx({
        m.STEP: 1, a.MICRO_BATCHES_DONE: 0, m.LOSS: 4.125, a.MICRO_BATCH_TIME: 0.3105
    })  # fmt: skip
    assert m.LOSS not in steps[2]
    assert m.EVALUATION_LOSS not in steps[3]
    assert steps[4] == pytest.approx({
        a.EPOCH: 2, a.MICRO_BATCHES_DONE: 4, m.STEP: 4, m.LOSS: 1.585, m.EVALUATION_LOSS: 1.5, m.STEP_TIME: 0.099
    })  # fmt: skip
    (evaluation,) = (each.values for each in found if each.kind is Kind.evaluation)
    assert evaluation == pytest.approx({
        a.MICRO_BATCHES_DONE: 2, m.EVALUATION_LOSS: 3.9375, a.EVALUATION_TIME: 0.8405
    })  # fmt: skip
    assert column(found, Kind.summary, a.TRAINING_TIME) == [2.51]
    assert column(found, Kind.summary, m.MEMORY_PEAK) == [1.5e9]


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


@needs_corpus
@pytest.mark.parametrize(
    ("file", "batches", "seconds", "gigabytes"),
    [
        ("full__full-1-gb.nodes2.GBS256.MBS32.o8560268", (256, 32), [28.66, 29.42], [31.21, 31.21]),
        ("full__full-1.nodes2.GBS128.MBS32.o8559329", (128, 32), [33.62, 35.00], [17.73, 17.73]),
        ("full__full-1.nodes2.GBS256.MBS64.o8559333", (256, 64), [35.86, 40.89], [28.71, 28.81]),
        ("full__full-1.nodes2.GBS64.MBS16.o8559338", (64, 16), [42.88, 42.48], [12.24, 12.24]),
        ("full__full-3.nodes2.GBS128.MBS32.o8563945", (128, 32), [35.93, 35.93], [17.73, 17.73]),
        ("full__full-3.nodes2.GBS256.MBS64.o8563955", (256, 64), [39.25, 39.26], [28.71, 28.81]),
        ("full__full-3.nodes2.GBS64.MBS16.o8564004", (64, 16), [34.65, 34.59], [12.24, 12.24]),
        ("lora__lora-1.nodes2.GBS128.MBS32.o8559702", (128, 32), [42.55, 47.21], [14.58, 14.59]),
        ("lora__lora-1.nodes2.GBS256.MBS64.o8559611", (256, 64), [40.53, 40.55], [26.02, 26.04]),
        ("lora__lora-1.nodes2.GBS64.MBS16.o8559704", (64, 16), [49.73, 49.63], [8.85, 8.87]),
    ],
)
def test_real_runs_on_two_nodes_give_both_nodes_ends(
    file: str, batches: tuple[float, float], seconds: list[float], gigabytes: list[float]
) -> None:
    true = json.loads((ASPIRE / "meta.json").read_text())
    path = ASPIRE / f"ASPIRE-2__result__{file}"
    found = records(path, NAME)
    assert len(column(found, Kind.step, m.LOSS)) == path.read_bytes().count(b"iter time: ")
    assert column(found, Kind.summary, a.TRAINING_TIME) == seconds
    assert column(found, Kind.summary, m.MEMORY_PEAK) == pytest.approx([size * 1e9 for size in gigabytes])
    (setting,) = (each for each in found if each.kind is Kind.setting)
    assert (setting.values[a.GLOBAL_BATCH_SIZE], setting.values[a.MICRO_BATCH_SIZE]) == batches
    assert setting.values[a.NODES] == true["nodes"]
    assert setting.values[a.NODES] * setting.values[a.RANKS_PER_NODE] == true["gpus"]
    assert setting.texts == {Text.precision: "bf16-true"}


@needs_corpus
def test_of_a_real_job_each_node_s_own_file_holds_its_half() -> None:
    both = records(REFERENCE / "llama.nodes2.GBS128.MBS32.o8335473", NAME)
    files = sorted(REFERENCE.glob("*/1/rank.*/stdout"))
    assert len(files) == 8
    each = [records(file, NAME) for file in files]
    times_s = [column(found, Kind.step, m.STEP_TIME) for found in each]
    assert [len(times) for times in times_s] == [5, 0, 0, 0, 5, 0, 0, 0]
    assert sorted(column(both, Kind.step, m.STEP_TIME)) == sorted(times_s[0] + times_s[4])
    assert column(each[0] + each[4], Kind.summary, a.TRAINING_TIME) == [41.42, 41.51]
    assert len(texts(both, Text.precision)) == 1


@needs_corpus
@pytest.mark.parametrize(
    ("file", "micro_batch_s", "step_s"),
    [
        ("2023_iter_step_colon", [0.18797, 0.10878, 0.19697, 0.10874], []),
        ("2024_03_proposed_ep", [0.29827, 0.18134], []),
        ("2024_epoch_val", [], [0.52946, 0.50353, 0.5221, 0.11527, 0.74331]),
    ],
)
def test_quoted_pieces_give_step_times_only_without_accumulation(
    file: str, micro_batch_s: list[float], step_s: list[float]
) -> None:
    found = records(CORPUS / "litgpt" / "excerpts" / f"litgpt_{file}.txt", NAME)
    assert column(found, Kind.step, a.MICRO_BATCH_TIME) == pytest.approx(micro_batch_s)
    assert column(found, Kind.step, m.STEP_TIME) == pytest.approx(step_s)
