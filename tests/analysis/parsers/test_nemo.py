"""NeMo's lines and bars: steps counted from 1 and never rounded, no means that say nothing."""

from __future__ import annotations

import pytest

from analysis.parsers import metrics as a
from analysis.parsers.base import Kind
from jobs import metrics as m
from tests.analysis.parsers.reading import CORPUS, SAMPLES, column, needs_corpus, records

NAME = "NeMo"
EXCERPTS = CORPUS / "nemo" / "excerpts"


def test_a_bar_gives_each_step_once_and_no_rounded_step() -> None:
    found = records(SAMPLES / "nemo.txt", NAME)
    assert [each.values for each in found if each.line in range(3, 7)] == [
        {a.EPOCH: 0, m.STEP: 5, m.STEP_TIME: 41.5, m.LOSS: 3.09, a.SAMPLES_DONE: 640},
        # Its loss is nan.0, and its rate 1.6 steps a second.
        {a.EPOCH: 0, m.STEP: 6, m.STEP_TIME: 0.625, a.SAMPLES_DONE: 768},
        {a.EPOCH: 0, m.STEP: 2001, m.STEP_TIME: 1.9, m.LOSS: 2.6, a.SAMPLES_DONE: 256000, m.EVALUATION_LOSS: 2.8},
        # In a later epoch only an exact global_step says which step it is.
        {a.EPOCH: 1, m.STEP: 52, m.STEP_TIME: 3.5, m.LOSS: 0.75, a.SAMPLES_DONE: 6656, a.SAMPLES_PER_S: 14.5},
    ]


def test_another_program_s_lightning_bar_is_left_alone() -> None:
    assert not [each for each in records(SAMPLES / "nemo.txt", NAME) if each.line == 7]


def test_iterations_of_nemo_2_are_read_whatever_the_order_of_fields() -> None:
    first, second = (each for each in records(SAMPLES / "nemo.txt", NAME) if each.line in (8, 9))
    assert (first.rank, second.rank) == (0, 0)
    assert first.values == {
        a.EPOCH: 0, m.STEP: 1, m.LEARNING_RATE: 9.804e-8, a.GLOBAL_BATCH_SIZE: 4, m.LOSS: 14.66, m.STEP_TIME: 5.276,
    }  # fmt: skip
    assert second.values == {
        a.EPOCH: 0, m.STEP: 2, a.FLOPS_PER_S_PER_RANK: 412.5e12, a.SAMPLES_DONE: 8, a.GLOBAL_BATCH_SIZE: 4,
        m.GRADIENT_NORM: 1.25, m.LEARNING_RATE: 1.961e-7, m.MEMORY_PEAK: 44271689728,
        a.MEMORY_RESERVED_PEAK: 70833405952, m.TOKENS_PER_S_PER_RANK: 10740, m.STEP_TIME: 2.008,
        m.EVALUATION_LOSS: 4.106,
    }  # fmt: skip


def test_means_of_counts_over_several_steps_are_not_taken_for_counts() -> None:
    tenth, later = (each.values for each in records(SAMPLES / "nemo.txt", NAME) if each.line in (10, 11))
    assert tenth == {
        a.EPOCH: 0, m.STEP: 10, m.LEARNING_RATE: 1e-6, a.GLOBAL_BATCH_SIZE: 4, m.LOSS: 3.5, m.STEP_TIME: 2.125
    }  # fmt: skip
    assert later == {a.EPOCH: 1, m.LOSS: 3.25}, "its iteration is that of the epoch, which is no step"


def test_the_list_at_the_end_of_nemo_1_gives_times_and_the_speed() -> None:
    found = records(SAMPLES / "nemo.txt", NAME)
    assert [each.values for each in found if each.line == 1] == [{m.STEP_TIME: time} for time in (9.5, 2.25, 2)]
    assert column(found, Kind.summary, a.FLOPS_PER_S_PER_RANK) == [412.5e12]


@needs_corpus
@pytest.mark.parametrize(
    ("file", "count", "first", "last", "time_s"),
    [
        ("nemo1x_progress_bar_old", 1, 795, 795, 41.36),
        ("nemo2x_iteration_lines_bionemo", 6, 121, 126, 0.03147),
        ("nemo2x_nemorun_prefix", 2, 1, 2, 2.008),
        ("nemo2x_no_timing", 9, 1, 9, None),
        ("nemo2x_peak_memory_fields", 1, 50, 50, 12.39),
    ],
)
def test_quoted_pieces_give_their_steps_and_times(
    file: str, count: int, first: int, last: int, time_s: float | None
) -> None:
    found = records(EXCERPTS / f"{file}.txt", NAME)
    steps = column(found, Kind.step, m.STEP)
    assert (len(steps), steps[0], steps[-1]) == (count, first, last)
    assert column(found, Kind.step, m.STEP_TIME)[-1:] == ([] if time_s is None else [time_s])


@needs_corpus
def test_a_quoted_list_has_all_fifty_times_and_a_quoted_readme_its_true_throughput() -> None:
    times_s = column(records(EXCERPTS / "nemo1x_perf_metrics_list.txt", NAME), Kind.step, m.STEP_TIME)
    assert (len(times_s), times_s[0], times_s[-1]) == (50, 11.85, 2.13)
    (line,) = records(EXCERPTS / "nemo2x_peak_memory_fields.txt", NAME)
    # Its README says 84631 tokens/s at a sequence length of 8192.
    assert line.values[a.GLOBAL_BATCH_SIZE] * 8192 / line.values[m.STEP_TIME] == pytest.approx(84631, abs=1)
