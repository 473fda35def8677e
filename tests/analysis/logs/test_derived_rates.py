"""Speeds that no program printed: by the clock, by epochs, by a log's own summary; each states that it is derived."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from analysis.load.discover import read, read_runs
from analysis.parsers import log_metrics as a
from analysis.report.content import build
from analysis.report.digest import Digest
from analysis.report.runs_table import rows_of, to_csv
from analysis.run import RunResult
from jobs import metrics as m
from tests.support.megatron_logs import write

START = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
CONFIGURATION = "[INFO] [config.py:1003:print]   train_batch_size ............. 64\n"


def deepspeed(took_s: Sequence[float], *, timer: float, evaluated_after: int = -1, evaluation_s: float = 0.0) -> str:
    """Return a log of DeepSpeed-Chat's two engines, ten steps a line; an evaluation follows one of the lines.

    The rate of the engines' timer has nothing to do with the time between the lines.
    """
    now, lines = START, [CONFIGURATION]
    for index, time_s in enumerate(took_s):
        now += timedelta(seconds=time_s)
        step, stamp = 10 * (index + 1), f"[{now:%Y-%m-%d %H:%M:%S},{now.microsecond // 1000:03}] [INFO]"
        for _ in ("actor", "critic"):
            lines.append(f"{stamp} [logging.py:96:log_dist] [Rank 0] step={step}, skipped=0, lr=[1e-05], mom=[0.9]\n")
            lines.append(
                f"{stamp} [timer.py:199:stop] epoch=0/micro_step={step}/global_step={step}, "
                f"RunningAvgSamplesPerSec={timer:.9f}, CurrSamplesPerSec={timer:.9f}, MemAllocated=4.00GB\n"
            )
        if index == evaluated_after:
            now += timedelta(seconds=evaluation_s)
            lines.append("***** Evaluating perplexity, Epoch 1/1 *****\nppl: 6.25\n")
    return "".join(lines)


def warned(path: Path) -> str:
    return " ".join(build(read([path])).warnings)


def only(path: Path) -> RunResult:
    (run,) = read_runs([path])
    return run


def test_where_a_timer_misses_most_of_a_step_the_clock_gives_the_speed_without_evaluations(tmp_path: Path) -> None:
    # Ten RLHF steps of 64 samples take 40 s, of which the engines' timer sees a tenth.
    log = deepspeed([40.0] * 12, timer=160.0, evaluated_after=5, evaluation_s=500.0)
    run = only(write(tmp_path / "rlhf.log", log))
    assert run.values[m.STEP_TIME_MEDIAN] == pytest.approx(4.0)
    assert run.values[a.STEPS_PER_S] == pytest.approx(0.25)
    assert run.steady_steps == 9, "neither the first line, nor the first timed one, nor the one after the evaluation"
    assert "derived from the time stamps of its steps" in warned(tmp_path)
    (row,) = csv.DictReader(to_csv(rows_of(Digest([run]))).splitlines())
    assert row["throughput_derived"].startswith("derived from the time stamps")


def test_stamps_in_whole_seconds_are_rounded_away_over_several_lines(tmp_path: Path) -> None:
    # BERT: lines 3.5 s apart, whose stamps are 3 or 4 s apart.
    lines = [
        f"DLL {START + timedelta(seconds=int(3.5 * i)):%Y-%m-%d %H:%M:%S} - Training Epoch: 0 Training Iteration: "
        f"{10 * i}  average_loss : {9 - i / 100} step_loss : {9 - i / 100} \n"
        for i in range(1, 61)
    ]
    run = only(write(tmp_path / "bert.log", "".join(lines)))
    assert run.values[a.STEPS_PER_S] == pytest.approx(1 / 0.35, rel=0.02)
    assert run.values[m.STEP_TIME_P90] / run.values[m.STEP_TIME_P10] < 1.06, "single stamps differ by a third"
    assert "time stamps" in warned(tmp_path)


def test_a_speed_that_the_program_prints_is_not_replaced(tmp_path: Path) -> None:
    lines = [
        f"DLL {START + timedelta(seconds=7 * i):%Y-%m-%d %H:%M:%S}.000 - Epoch: 0 Iteration: {i}  train.loss : 6.5 "
        "train.ips : 800.5 img/s \n"
        for i in range(1, 30)
    ]
    run = only(write(tmp_path / "resnet.log", "".join(lines)))
    assert run.values[a.SAMPLES_PER_S] == pytest.approx(800.5)
    assert run.derived is None
    assert a.STEPS_PER_S not in run.values


def test_the_mean_of_a_whole_training_is_used_where_there_is_nothing_better_and_called_so(tmp_path: Path) -> None:
    losses = "".join(f"{{'loss': {9 - i / 10:.4f}, 'learning_rate': 1e-05, 'epoch': {i / 10}}}\n" for i in range(1, 9))
    end = (
        "{'train_runtime': 100.0, 'train_samples_per_second': 12.5, 'train_steps_per_second': 0.5, 'train_loss': 8.5, "
    )
    run = only(write(tmp_path / "hf.log", f"{losses}{end}'epoch': 1.0}}\n"))
    assert (run.reason, run.values[a.SAMPLES_PER_S]) == (None, 12.5)
    assert "the log's own mean over the whole training, with warm-up" in warned(tmp_path)


def versions(path: Path, epochs: range, *, steps: int = 500, every: int = 50, time_s: float = 250.0) -> None:
    """Write the file of a Lightning version that trains these epochs, with a row every so many steps."""
    rows = ["epoch,epoch_time,step,train_loss_step,val_loss"]
    for epoch in epochs:
        last = (epoch + 1) * steps
        rows += [f"{epoch},,{step - 1},{9 - step / 1000}," for step in range(last - steps + every, last + 1, every)]
        rows.append(f"{epoch},{time_s if epoch else 4 * time_s},{last - 1},,{8 - epoch / 10}")
    write(path / "metrics.csv", "\r\n".join(rows) + "\r\n")
    write(path / "hparams.yaml", "width: 64\n")


def test_the_times_of_lightning_epochs_give_its_speed_and_its_versions_are_attempts(tmp_path: Path) -> None:
    versions(tmp_path / "version_0", range(4))
    alone = only(tmp_path)
    assert alone.values[a.STEPS_PER_S] == pytest.approx(2.0), "the first epoch has the warm-up"
    assert alone.values[m.EPOCH_TIME] == 250.0
    assert "derived from the times of its epochs" in warned(tmp_path)
    versions(tmp_path / "version_1", range(4, 7), time_s=500.0)
    runs = {run.name: run for run in read_runs([tmp_path])}
    assert runs["version_0/metrics.csv"].state == "attempt"
    merged = runs["version_1/metrics.csv"]
    assert merged.attempts == 2
    assert (min(merged.losses), max(merged.losses)) == (50, 3500)
    assert "its first step and its experiment" in warned(tmp_path)


def test_a_lightning_version_with_other_hyperparameters_or_from_the_first_step_is_a_training_of_its_own(
    tmp_path: Path,
) -> None:
    versions(tmp_path / "version_0", range(4))
    versions(tmp_path / "version_1", range(4, 7))
    write(tmp_path / "version_1" / "hparams.yaml", "width: 128\n")
    versions(tmp_path / "version_2", range(2), time_s=300.0)
    assert [run.used for run in read_runs([tmp_path])] == [True] * 3
