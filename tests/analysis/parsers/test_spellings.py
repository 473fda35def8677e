"""One table of spellings of speeds and times, for the formats whose programs choose the names."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind
from analysis.parsers.spellings import spelled
from jobs import metrics as m
from jobs.metrics import Metric
from tests.analysis.parsers.reading import column, records
from tests.support.mlperf_logs import logged


@pytest.mark.parametrize(
    ("name", "metric", "unit"),
    [
        ("train_step_time", m.STEP_TIME, 1),
        ("train_step_timing in s", m.STEP_TIME, 1),
        ("Step time (s)", m.STEP_TIME, 1),
        ("perf/step_time_ms", m.STEP_TIME, 1e-3),
        ("elapsed_time_per_iteration_ms", m.STEP_TIME, 1e-3),
        ("tokens_per_second_per_gpu", m.TOKENS_PER_S_PER_RANK, 1),
        ("tokens_per_gpu_per_second", m.TOKENS_PER_S_PER_RANK, 1),
        ("TGS", m.TOKENS_PER_S_PER_RANK, 1),
        ("train/tokens_per_sec", m.TOKENS_PER_S, 1),
        ("tok/s", m.TOKENS_PER_S, 1),
        ("tok/s/gpu", m.TOKENS_PER_S_PER_RANK, 1),
        ("train|global/samples_per_sec", a.SAMPLES_PER_S, 1),
        ("device/samples_per_sec", a.SAMPLES_PER_S_PER_RANK, 1),
        ("training_sequences_per_second", a.SAMPLES_PER_S, 1),
        ("train.total_ips", a.SAMPLES_PER_S, 1),
        ("epoch_time", a.EPOCH_TIME, 1),
    ],
)
def test_a_speed_is_known_by_its_meaning(name: str, metric: Metric, unit: float) -> None:
    assert spelled(name) == (metric, unit)


@pytest.mark.parametrize(
    "name", ["throughput", "ips", "items_per_sec", "validation_step_time", "val/tokens_per_sec", "step", "time", ""]
)
def test_a_name_that_does_not_state_what_it_counts_is_not_in_the_table(name: str) -> None:
    assert spelled(name) is None


def test_columns_of_lightning_have_their_speeds(tmp_path: Path) -> None:
    table = tmp_path / "metrics.csv"
    table.write_text("epoch,epoch_time,step,train_step_time,tokens_per_second\n0,,0,0.5,4096\n0,90.5,99,,\n")
    found = records(table, "Lightning CSV")
    assert column(found, Kind.step, m.STEP_TIME) == [0.5]
    assert column(found, Kind.step, m.TOKENS_PER_S) == [4096]
    assert column(found, Kind.summary, a.EPOCH_TIME) == [90.5]


def test_fields_of_dllogger_have_their_speeds(tmp_path: Path) -> None:
    log = tmp_path / "job.out"
    log.write_text(
        "DLL 2026-03-04 05:06:07.1 - (0, 200) loss : 2.5 samples_per_second : 512.5 train_step_time : 0.25 \n"
    )
    found = records(log, "DLLogger")
    assert (column(found, Kind.step, a.SAMPLES_PER_S), column(found, Kind.step, m.STEP_TIME)) == ([512.5], [0.25])


def test_any_benchmark_of_mlperf_has_its_step_times_and_its_throughput(tmp_path: Path) -> None:
    log = tmp_path / "result_0.txt"
    stats = {"train_step_time": 8.5, "reduced_train_loss": 7.5, "throughput": 135.5}
    log.write_text(logged("submission_benchmark", "unet3d", 0) + logged("tracked_stats", stats, 10, step=1152))
    found = records(log, "MLPerf MLLOG")
    assert column(found, Kind.step, m.STEP_TIME) == [8.5]
    assert column(found, Kind.step, a.SAMPLES_PER_S) == [135.5]
