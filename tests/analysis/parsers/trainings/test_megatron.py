"""Lines of Megatron-LM and its forks: numbers in base units, and absent where a line leaves them open."""

from __future__ import annotations

from pathlib import Path

from analysis.parsers import log_metrics as a
from jobs import metrics as m
from tests.analysis.parsers.reading import records

NAME = "Megatron-LM"


def test_a_misspelt_field_is_read_and_a_line_broken_in_two_keeps_its_first_half(tmp_path: Path) -> None:
    log = tmp_path / "job.out"
    log.write_text(
        " iteration       50/     200 | consumed samples:        25600 | elapsed time per iteration (ms): 51200.0 | "
        "learning rate: 1.000E-06 | gloabl batch size:   512 | lm loss: 9.5E+00 |\n loss scale: 1.0 |\n"
    )
    (step,) = records(log, NAME)
    assert (step.values[a.GLOBAL_BATCH_SIZE], step.values[m.STEP_TIME]) == (512, 51.2)


def test_of_steps_that_were_all_skipped_there_is_a_time_and_no_loss(tmp_path: Path) -> None:
    log = tmp_path / "job.out"
    log.write_text(
        " iteration       10/     100 | consumed samples:          320 | elapsed time per iteration (ms): 512.5 | "
        "learning rate: 0.000E+00 | global batch size:    32 | loss scale: 4194304.0 | "
        "number of skipped iterations:  10 | number of nan iterations:   0 |\n"
    )
    (step,) = records(log, NAME)
    assert step.values[m.STEP_TIME] == 0.5125
    assert step.values[a.SKIPPED_STEPS] == 10
    assert m.LOSS not in step.values
