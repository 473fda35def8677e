"""The lines and the state file of the Trainer of transformers, in its several versions."""

from __future__ import annotations

from pathlib import Path

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind
from tests.analysis.parsers.reading import column, records

NAME = "Hugging Face Trainer"


def test_each_node_prints_its_own_end_and_rank_0_a_block_of_it(tmp_path: Path) -> None:
    log = tmp_path / "slurm.out"
    ends = [f"{{'train_runtime': {time}, 'train_samples_per_second': 2.5, 'train_steps_per_second': 0.039, "
            "'train_loss': 6.5, 'epoch': 1.0}\n" for time in (400.5, 400.25)]  # fmt: skip
    rows = ("train_runtime = 0:06:40.25", "train_samples_per_second = 2.5", "train_steps_per_second = 0.039")
    log.write_text("".join([*ends, "***** train metrics *****\n", *(f"  {row}\n" for row in rows)]))
    found = records(log, NAME)
    assert column(found, Kind.summary, a.TRAINING_TIME) == [400.5, 400.25, 400.25]
    assert column(found, Kind.summary, a.SAMPLES_PER_S) == [2.5] * 3
