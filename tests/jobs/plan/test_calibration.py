"""Calibration of predicted memory, and the benchmark that judges it on tables of published measurements."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from jobs.plan.predict.calibration import MOST_RUNS, Features, calibrated, chosen
from tests.benchmarks.plan_benchmark import judged_tables

GB = 1e9
SWEEP = "source,model,gpu,n_nodes,n_gpus,dp,tp,pp,zero_stage,mbs,grad_accum,gbs,tokens_per_s_per_gpu,memory_gb,status"


def runs(count: int) -> list[Features]:
    """Runs of which states, activations or logits take the most, in turn."""
    chance = random.Random(1)
    return [
        {term: GB * chance.uniform(1, 10) * (4 if place % 3 == i else 1) for i, term in
         enumerate(("states", "activations", "loss"))} | {"constant": GB}
        for place in range(count)
    ]  # fmt: skip


def truth(features: Features) -> float:
    return features["states"] + 1.6 * features["activations"] + 0.7 * features["loss"] + 0.5 * GB


def test_five_chosen_runs_identify_the_factors_of_a_stack() -> None:
    given = runs(60)
    places = chosen(given)
    assert len(set(places)) == MOST_RUNS
    fitted = calibrated([(given[i], truth(given[i])) for i in places])
    assert fitted.factors["activations"] == pytest.approx(1.6, rel=0.1)
    others = [each for i, each in enumerate(given) if i not in places]
    errors = [fitted.predict(each).point / truth(each) - 1 for each in others]
    assert max(map(abs, errors)) < 0.1
    assert max(abs(truth(each) - total(each)) / truth(each) for each in others) > 0.2, "uncalibrated, for comparison"
    assert all(x.low < truth(each) < x.high for each in others for x in [fitted.predict(each)])


def total(features: Features) -> float:
    return sum(features.values())


def test_the_interval_is_wide_before_a_run_is_measured() -> None:
    fitted = calibrated([])
    interval = fitted.predict({"states": 10 * GB})
    assert interval.point == pytest.approx(10 * GB)
    assert interval.high > 1.3 * interval.point


def test_the_benchmark_reads_a_directory_of_tables_by_their_names(tmp_path: Path) -> None:
    rows = [
        f"s,{model},H100,1,8,{8 // tp},{tp},1,1,{size},{64 // size},{8 // tp * 64},100,{memory},{status}"
        for model, tp, size, memory, status in [
            *(("1B", tp, size, 5 + 12 * size / tp, "ok") for tp in (1, 2, 4, 8) for size in (1, 2, 4)),
            ("8B", 1, 8, "", "no_result"),
        ]
    ]
    (tmp_path / "nanotron_ultrascale_sweep.csv").write_text("\n".join([SWEEP, *rows]) + "\n")
    ((key, found),) = judged_tables(tmp_path).items()
    assert key == ("nanotron_ultrascale_sweep.csv", "H100")
    assert len(found.errors()) == 12 - MOST_RUNS, "those that fitted the factors are not judged"
    assert found.verdicts()["does not fit", "no result"] == 1, "170 GB of states"
