"""MLPerf's log lines: the time to train by its rule, and the figures of real submissions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from analysis.parsers import metrics as a
from analysis.parsers.base import Kind, Text
from jobs import metrics as m
from tests.analysis.parsers.reading import CORPUS, SAMPLES, column, needs_corpus, records, texts

NAME = "MLPerf MLLOG"
CASES = sorted((CORPUS / "mlperf").rglob("meta.json"))


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


def test_a_switch_is_told_from_a_node_and_a_reading_without_a_value_is_absent() -> None:
    (switch,) = records(SAMPLES / "mllog_power_switch.txt", NAME)
    assert switch.values == {a.UNIX_TIME: 1772366403, a.POWER: 1200}
    assert switch.texts == {Text.device: "sw_0", Text.variant: "interconnect_power_est"}


@needs_corpus
def test_real_power_is_read_whole_and_the_clock_of_the_switch_is_left_as_it_is() -> None:
    case = CORPUS / "power" / "mlperf_v4.1_dell_8xXE9680_power"
    found = {part: records(case / f"power__result_0__{part}.txt", NAME) for part in ("node_0", "node_7", "sw_0")}
    assert {part: len(column(each, Kind.sample, a.POWER)) for part, each in found.items()} == {
        "node_0": 286, "node_7": 281, "sw_0": 310,
    }  # fmt: skip
    assert all(column(each, Kind.setting, a.CONVERSION_EFFICIENCY) == [0.96] for each in found.values())
    starts = {part: column(each, Kind.event, a.UNIX_TIME)[0] for part, each in found.items()}
    assert starts["sw_0"] - starts["node_0"] == -18001


@needs_corpus
@pytest.mark.parametrize("case", CASES, ids=[f"{case.parents[1].name}-{case.parent.name}" for case in CASES])
def test_every_result_of_the_corpus_gives_its_true_figures(case: Path) -> None:
    results: dict[str, dict[str, Any]] = json.loads(case.read_text())["per_run"]
    for name, true in results.items():
        file = next(path for path in (case.with_name(name), case.with_name(f"{name}.gz")) if path.exists())
        found = records(file, NAME, beside=("MXNet Speedometer", "NeMo configuration"))
        times_s = column(found, Kind.summary, a.TIME_TO_TRAIN)
        times_min = [time_s / 60 for time_s in times_s]
        assert times_min == pytest.approx([true["ttt_min"]] if true["ttt_min"] else [], abs=1e-4)
        assert texts([each for each in found if each.kind is Kind.summary], Text.state)[:1] == (
            [true["status"]] if times_s else []
        )
        assert set(column(found, Kind.setting, a.GLOBAL_BATCH_SIZE)) == {true["global_batch_size"]}
        rates = sorted(column(found, Kind.step, a.SAMPLES_PER_S) or column(found, Kind.step, m.TOKENS_PER_S))
        if true["throughput_median_raw"] is not None:
            assert rates[len(rates) // 2] == true["throughput_median_raw"]
