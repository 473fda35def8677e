"""Predicted memory and step time beside what was measured, in a report."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from analysis.formatting import ABSENT
from analysis.load.discover import read_runs
from analysis.metrics.energy import Energy
from analysis.metrics.predictions import compared
from analysis.parsers import log_metrics as a
from analysis.report.digest import Digest
from analysis.report.sections.predictions import predictions_section
from analysis.run import RunResult
from jobs.data.batches import TokensOfSample
from jobs.runtime.steps import Samples
from jobs.submit.preparation.prepare import plan_of
from tests.support.composing import one
from tests.support.fake_runs import a_run, finished_run

GB = 10**9
STEPS = ("job.steps=100", "job.epochs=null")


def predicted(sweep: Path, name: str, point: float, device: str, device_name: str) -> None:
    """A run on a card that measured a peak of 1 GiB (1.074 GB) and 0.5 s, with predictions."""
    run = a_run(name)
    run = replace(run, gpu=replace(run.gpu, device_name="Test GPU"))
    directory = finished_run(sweep, run, device=device, device_name=device_name)
    size = {"point": int(point * GB), "low": int(0.8 * point * GB), "high": int(1.2 * point * GB)}
    step = {"point": 0.5 * point, "low": 0.4 * point, "high": 0.6 * point}
    plan = json.loads(directory.plan.read_text())
    plan |= {
        "memory": {"allocated_bytes": size, "basis": "uncalibrated: x"},
        "speed": {"step_time_s": step, "basis": "calibrated: y"},
    }
    directory.plan.write_text(json.dumps(plan))


def test_the_report_compares_with_the_peak_and_the_steps_of_the_configured_gpu(tmp_path: Path) -> None:
    predicted(tmp_path, "near", 1.0, "cuda", "Test GPU")
    predicted(tmp_path, "far", 4.0, "cuda", "Test GPU")
    predicted(tmp_path, "other", 1.0, "cuda", "Another GPU")
    predicted(tmp_path, "cpu", 1.0, "cpu", "Test CPU")
    finished_run(tmp_path, a_run("none"))
    section = predictions_section(Digest(read_runs([tmp_path])))
    assert section is not None
    rows = {(row[0], row[1]): row[2:] for row in section.rows}
    assert [row[0] for row in section.rows] == ["far", "near", "other", "cpu", "far", "cpu", "near", "other"]
    memory, steps = "Memory (GB)", "Step time (s)"
    assert rows["near", memory] == ["1.000", "0.8000 to 1.200", "1.074", "1.07", "inside the interval; uncalibrated: x"]
    assert rows["far", memory][2:] == ["1.074", "0.268", "outside the interval; uncalibrated: x"]
    assert rows["cpu", memory][2:] == [ABSENT, ABSENT, "uncalibrated: x"]
    assert rows["near", steps] == ["0.5000", "0.4000 to 0.6000", "0.5000", "1.00", "inside the interval; calibrated: y"]
    assert rows["far", steps][2:] == ["0.5000", "0.250", "outside the interval; calibrated: y"]
    for name in ("other", "cpu"):
        assert rows[name, steps][2:] == [ABSENT, ABSENT, "calibrated: y"]


def test_a_server_is_compared_by_its_rate_and_its_latencies_but_not_after_a_search(tmp_path: Path) -> None:
    plan = plan_of(one("job=serve", "engine=vllm", "cluster=xe9680_h100", "model=llama3_8b", "job.init_from=x").run)
    measured = {
        a.OUTPUT_TOKENS_PER_S: 1200.0,
        a.TIME_TO_FIRST_TOKEN["median"]: 0.25,
        a.TIME_PER_OUTPUT_TOKEN["median"]: 8e-3,
    }
    started = {"event": "started", "device": "cuda", "device_name": "Test GPU"}
    run = RunResult(
        tmp_path / "served", {"gpu": {"device_name": "Test GPU"}}, plan=plan, events=(started,), state="served",
        reason="served", values=measured,
    )  # fmt: skip
    rows = {each.quantity: (each.unit, each.measured) for each in compared(run) if each.measured is not None}
    assert rows == {
        "Output rate": ("1/s", 1200.0),
        "Time to first token": ("ms", pytest.approx(250)),
        "Time per output token": ("ms", pytest.approx(8)),
    }
    assert all(each.low is not None and each.basis.startswith("uncalibrated") for each in compared(run))
    searched = replace(run, loads=[run])
    assert all(each.measured is None for each in compared(searched))


def test_the_energy_of_all_gpus_is_compared_if_it_was_read_and_nothing_else_was(tmp_path: Path) -> None:
    plan = plan_of(one("cluster=xe9680_h100", "model=llama3_8b", "parallelism=fsdp_full", *STEPS).run)
    hours, energy = plan["speed"]["hours"]["point"], plan["speed"]["energy_kwh"]
    assert energy["point"] == pytest.approx(hours * 8 * 0.7 * 0.75, rel=1e-3)
    assert energy["low"] < 0.6 * energy["point"] < 1.3 * energy["point"] < energy["high"]
    run = RunResult(
        tmp_path / "run", {"gpu": {"device_name": "Test GPU"}}, plan=plan,
        events=({"event": "started", "device": "cuda", "device_name": "Test GPU"},),
    )  # fmt: skip
    gpus = Energy(3.6e6, covered_s=100, interval_s=100, devices=("n0 GPU 0",), left_out=(), expected=1)

    def measured(read: Energy | None) -> float | None:
        (found,) = (each for each in compared(replace(run, energy=read)) if each.quantity == "Energy of the GPUs")
        return found.measured

    assert measured(gpus) == 1
    assert measured(None) is None
    assert measured(replace(gpus, expected=2)) is None
    assert measured(replace(gpus, devices=("n0 meter",))) is None


def test_the_plan_of_a_run_on_gpus_has_its_predictions_and_one_on_cpus_has_none() -> None:
    run = one("cluster=xe9680_h100", "model=llama3_8b", "parallelism=fsdp_full", "job.micro_batch_size=1", *STEPS).run
    plan = plan_of(run)
    memory, speed = plan["memory"], plan["speed"]
    assert memory["basis"].startswith("uncalibrated")
    assert speed["basis"].startswith("uncalibrated")
    device, terms = memory["device_bytes"], memory["terms_bytes"].values()
    sums = {end: sum(term[end] for term in terms) for end in ("low", "point", "high")}
    assert device["point"] == pytest.approx(sums["point"], abs=len(terms))
    # Fragments and the framework's memory are off independently of the tensors: the interval is narrower than the sum.
    assert sums["low"] < device["low"] < device["point"] < device["high"] < sums["high"]
    step = speed["step_time_s"]
    assert step["point"] == pytest.approx(sum(speed["terms_s"].values()), rel=0.01)
    assert step["low"] < step["point"] < step["high"]
    assert 3600 * speed["hours"]["point"] > 100 * step["point"]
    assert not {"memory", "speed"} & plan_of(one().run).keys()


def test_where_the_samples_are_known_speed_and_hours_are_predicted_for_their_lengths() -> None:
    # Without TF32 products take most of the time, not the traffic of weights.
    given = ("model=llama3_8b", "parallelism=fsdp_full", "job.micro_batch_size=4", "engine.tf32=false")
    run = one("cluster=xe9680_h100", *given, *STEPS).run
    full = plan_of(run)["speed"]
    # Half of a row is padding, and rows are half as long as they could be.
    length = run.job.sequence_length
    tokens = TokensOfSample(used=length / 4, computed=length / 2, most=length / 2)
    known = plan_of(run, Samples(Path("samples"), 200, {}, tokens))["speed"]
    ratio = known["step_time_s"]["point"] / full["step_time_s"]["point"]
    assert 0.5 <= ratio < 0.9
    rates = [each["tokens_per_s_per_gpu"]["point"] for each in (known, full)]
    assert rates[0] == pytest.approx(rates[1] / 4 / ratio, rel=1e-3)
    assert known["hours"]["point"] > full["hours"]["point"] * ratio
