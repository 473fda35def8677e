"""Predicted memory beside the measured peak in a report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from analysis.formatting import ABSENT
from analysis.load.discover import read_runs
from analysis.report.sections.memory import memory_section
from jobs.submit.prepare import plan_of
from tests.support.composing import one
from tests.support.fake_runs import a_run, finished_run

GB = 10**9


def predicted(sweep: Path, name: str, point: float, device: str) -> None:
    """A run that measured a peak of 1 GiB (1.074 GB), with a prediction."""
    directory = finished_run(sweep, a_run(name), device=device)
    size = {"point": int(point * GB), "low": int(0.8 * point * GB), "high": int(1.2 * point * GB)}
    plan = json.loads(directory.plan.read_text()) | {"memory": {"allocated_bytes": size, "basis": "uncalibrated: x"}}
    directory.plan.write_text(json.dumps(plan))


def test_the_report_compares_the_peak_of_a_gpu_and_not_that_of_a_process(tmp_path: Path) -> None:
    predicted(tmp_path, "near", 1.0, "cuda")
    predicted(tmp_path, "far", 4.0, "cuda")
    predicted(tmp_path, "cpu", 1.0, "cpu")
    finished_run(tmp_path, a_run("none"))
    section = memory_section(read_runs([tmp_path]))
    assert section is not None
    assert [row[0] for row in section.rows] == ["far", "near", "cpu"]
    far, near, cpu = section.rows
    assert near[1:] == ["1.000", "0.8000 to 1.200", "1.074", "1.07", "inside the interval; uncalibrated: x"]
    assert far[3:] == ["1.074", "0.268", "outside the interval; uncalibrated: x"]
    assert cpu[3:] == [ABSENT, ABSENT, "uncalibrated: x"]


def test_the_plan_of_a_run_on_gpus_has_its_prediction_and_one_on_cpus_has_none() -> None:
    run = one("cluster=xe9680_h100", "model=llama3_8b", "parallelism=fsdp_full", "job.micro_batch_size=1").run
    memory = plan_of(run, 1)["memory"]
    assert memory["basis"].startswith("uncalibrated")
    device, terms = memory["device_bytes"], memory["terms_bytes"].values()
    for end in ("low", "point", "high"):
        assert device[end] == pytest.approx(sum(term[end] for term in terms), abs=len(terms))
    assert device["low"] < device["point"] < device["high"]
    assert "memory" not in plan_of(one().run, 1)
