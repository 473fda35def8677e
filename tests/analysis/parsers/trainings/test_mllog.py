"""MLPerf's log lines: the time to train by its rule, power, and the keys of older rounds."""

from __future__ import annotations

import json
from pathlib import Path

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Text
from jobs import metrics as m
from tests.analysis.parsers.reading import SAMPLES, column, records, texts

NAME = "MLPerf MLLOG"


def test_a_result_has_its_settings_progress_and_time_to_train() -> None:
    found = records(SAMPLES / "mllog.txt", NAME)
    assert texts(found, Text.benchmark) == ["llama2_70b_lora"]
    assert texts(found, Text.system) == ["2xtoy"]
    assert column(found, Kind.setting, a.GLOBAL_BATCH_SIZE) == [8]
    assert column(found, Kind.step, m.LOSS) == [1.25]
    assert column(found, Kind.step, a.SAMPLES_PER_S) == [8.5]
    assert column(found, Kind.evaluation, a.EVALUATION_SCORE) == [0.931], "NaN is no score"
    (summary,) = (each for each in found if each.kind is Kind.summary)
    assert summary.values == {a.TIME_TO_TRAIN: 60, a.INITIALIZATION_TIME: 30}
    assert summary.texts == {Text.state: "success"}
    assert {each.rank for each in found if Text.event in each.texts} == {0, 1}


def test_a_result_without_run_stop_has_no_time_to_train(tmp_path: Path) -> None:
    torn = tmp_path / "log"
    torn.write_text((SAMPLES / "mllog.txt").read_text().partition("run_stop")[0])
    assert column(records(torn, NAME), Kind.summary, a.TIME_TO_TRAIN) == []


def test_power_is_a_sample_of_a_host_with_the_efficiency_of_its_supply() -> None:
    found = records(SAMPLES / "mllog_power.txt", NAME)
    assert column(found, Kind.setting, a.CONVERSION_EFFICIENCY) == [0.96]
    samples = [each for each in found if each.kind is Kind.sample]
    assert [each.values for each in samples] == [
        {a.UNIX_TIME: 1773302401, a.POWER: 3418},
        {a.UNIX_TIME: 1773302402, a.POWER: 3420},
        {a.UNIX_TIME: 1773302403, a.POWER: 3990},
    ]
    assert texts(samples, Text.device) == ["node_0"] * 3
    assert texts(samples, Text.variant) == ["power_reading"] * 3
    assert texts(found, Text.event) == ["power_measurement_start", "power_measurement_stop"]
    assert column(found, Kind.event, a.UNIX_TIME) == [1773302401, 1773302403]


def test_a_switch_is_distinguished_from_a_node_and_a_reading_without_a_value_is_absent() -> None:
    (switch,) = records(SAMPLES / "mllog_power_switch.txt", NAME)
    assert switch.values == {a.UNIX_TIME: 1772366403, a.POWER: 1200}
    assert switch.texts == {Text.device: "sw_0", Text.variant: "interconnect_power_est"}


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
