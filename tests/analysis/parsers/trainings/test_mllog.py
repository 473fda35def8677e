"""MLPerf's log lines: the time to train by its rule, power, and the keys of older rounds."""

from __future__ import annotations

import json
from pathlib import Path

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind
from jobs import metrics as m
from tests.analysis.parsers.reading import SAMPLES, column, records

NAME = "MLPerf MLLOG"


def test_a_result_without_run_stop_has_no_time_to_train(tmp_path: Path) -> None:
    torn = tmp_path / "log"
    torn.write_text((SAMPLES / "mllog.txt").read_text().partition("run_stop")[0])
    assert column(records(torn, NAME), Kind.summary, a.TIME_TO_TRAIN) == []


def test_gpt3_of_round_3_counts_tokens_and_has_step_times_instead_of_throughputs(tmp_path: Path) -> None:
    entries = [
        ("submission_benchmark", "gpt3", {}),
        ("global_batch_size", 1536, {}),
        ("tracked_stats", {"train_step_timing": 6.25, "reduced_train_loss": 2.75}, {"samples_count": 1_207_959_552}),
        ("tracked_stats", {"throughput": 450_000.5}, {"step": 12}),
    ]
    lines = [
        ":::MLLOG " + json.dumps({"time_ms": 1_700_000_000_000, "key": key, "value": value, "metadata": metadata})
        for key, value, metadata in entries
    ]
    (tmp_path / "result_0.txt").write_bytes("\r\n".join(lines).encode())
    timed, rated = (each for each in records(tmp_path / "result_0.txt", NAME) if each.kind is Kind.step)
    assert timed.values == {
        a.UNIX_TIME: 1.7e9, a.TOKENS_DONE: 1_207_959_552, m.STEP_TIME: 6.25, m.LOSS: 2.75, a.GLOBAL_BATCH_SIZE: 1536,
    }  # fmt: skip
    assert rated.values == {a.UNIX_TIME: 1.7e9, a.SAMPLES_DONE: 12, m.TOKENS_PER_S: 450_000.5}
