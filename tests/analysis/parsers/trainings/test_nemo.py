"""NeMo's lines and bars: steps counted from 1 and never rounded, no meaningless means."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.parsers import log_metrics as a
from jobs import metrics as m
from tests.analysis.parsers.reading import records

NAME = "NeMo"


@pytest.mark.parametrize("prefix", ["", "3: ", "pretraining/0 ", "[default0]:", "[2026-03-04T05:06:07+00:00] "])
def test_iterations_are_read_behind_the_prefix_of_any_launcher(prefix: str, tmp_path: Path) -> None:
    log = tmp_path / "job.out"
    line = "Training epoch 0, iteration 49/99 | lr: 1e-05 | global_batch_size: 128 | reduced_train_loss: 5.5"
    log.write_text(f"{prefix}{line} | train_step_timing in s: 12.5 | consumed_samples: 6400\n")
    (step,) = records(log, NAME)
    assert (step.values[m.STEP], step.values[m.STEP_TIME], step.values[a.GLOBAL_BATCH_SIZE]) == (50, 12.5, 128)
