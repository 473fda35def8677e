"""Predictions for samples that have been read: what one GPU measured, and what submit prints and refuses."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from jobs.data.batches import TokensOfSample
from jobs.errors import ConfigError
from jobs.plan.compose import Point
from jobs.plan.predict.memory import memory
from jobs.plan.predict.speed import speed
from jobs.plan.table import plan_notes
from jobs.runtime.steps import Samples
from jobs.submit.preparation.prepare import plan_of, prepared
from tests.benchmarks.gpu import EPOCH, EPOCHS, SHARED
from tests.support.composing import one
from tests.support.paths import ROOT

# 960 samples of Alpaca in 30 steps: their mean tokens, those with padding, and those of the largest micro-batch.
MEASURED = {
    "stock": TokensOfSample(227.72, 385.05, 511),
    "padded": TokensOfSample(227.72, 410.67, 512),
    "packed": TokensOfSample(227.72, 235.53, 304),
    "larger": TokensOfSample(227.72, 229.87, 288),
    "whole": TokensOfSample(227.72, 228.80, 286),
}


@pytest.mark.parametrize("name", EPOCHS)
def test_speed_and_memory_measured_on_a_gpu_are_in_their_intervals(name: str) -> None:
    with (ROOT / ".github" / "gpu-day" / f"epoch_{name}.csv").open(newline="") as file:
        measured = {row["what"].removesuffix(f" {name}"): float(row["value"]) for row in csv.DictReader(file)}
    run = one("model=llama2_7b", "gpu=h100_sxm", "data.path=/data", "data.tokenizer=/tokenizer", *SHARED, *EPOCH,
              *EPOCHS[name]).run  # fmt: skip
    samples = Samples(Path("samples"), 30, {}, MEASURED[name])
    known = speed(run, samples)
    assert known is not None
    rate = known.tokens_per_s_per_gpu
    assert rate.low <= measured["tokens_per_s"] <= rate.high
    held, peak = memory(run, samples).allocated, measured["memory_peak_bytes"]
    assert held.low <= peak <= held.high
    assert held.point == pytest.approx(peak, rel=0.04)


def point(tmp_path: Path, memory_gb: float | None) -> Point:
    """Return a run of prompts and responses, on a GPU of this size."""
    return one(f"runs_dir={tmp_path}/runs", f"data.cache_dir={tmp_path}/cache", "sweep=test", "model=tiny",
               "data=docstrings", "data.max_samples=600", "parallelism=single", "ranks_per_node=1", "gpu=h100_sxm",
               "job.micro_batch_size=16", "scaling.global_batch_size=32", "job.steps=4",
               f"gpu.memory_gb={'null' if memory_gb is None else memory_gb}")  # fmt: skip


def test_submit_predicts_memory_for_the_samples_that_it_has_read_and_refuses_those_that_are_too_long(
    tmp_path: Path,
) -> None:
    unread = point(tmp_path, None)
    with prepared([unread]) as made:
        (read,) = made.samples
        made.take_back()
    assert read is not None
    shortest, known = memory(unread.run), memory(unread.run, read)
    tokens = known.largest_micro_batch
    assert tokens is not None
    assert shortest.device.low < known.device.low < known.device.point < shortest.device.high

    larger = point(tmp_path, 1.01 * known.device.high / 2**30)
    (note,) = [each for each in plan_notes([larger.run], [read]) if "predicted" in each]
    assert f"fits, predicted {known.device.point / 1e9:.1f} GB" in note
    assert f" for the samples read, at most {tokens:,} tokens in a micro-batch, most of it " in note
    assert plan_of(larger.run, read)["memory"]["device_bytes"]["point"] == pytest.approx(known.device.point)
    assert not [each for each in plan_of(larger.run, read)["warnings"] if "memory" in each]

    between = point(tmp_path, (shortest.device.low + known.device.low) / 2 / 2**30)
    with pytest.raises(
        ConfigError, match=r"tiny-.*: tiny does not fit gpu=h100_sxm .* for the samples read"
    ) as refused:
        prepared([between]).__enter__()
    assert "set gpu.memory_check=false to try it anyway. A smaller job.micro_batch_size keeps fewer" in str(
        refused.value
    )
    assert not list((tmp_path / "runs").glob("*/*")), "nothing is left"
    with prepared([between], try_large=True) as made:
        (note,) = [each for each in plan_notes([between.run], made.samples) if "predicted" in each]
        made.take_back()
    assert "does not fit, predicted" in note
