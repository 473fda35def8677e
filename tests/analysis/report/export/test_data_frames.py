"""`analysis.frames`: the report's tables in a notebook."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import analysis
from analysis.report.export.data_frames import steps_of
from analysis.run import RunResult
from jobs import metrics as m
from jobs.errors import ReportError
from tests.support.fake_runs import a_run, finished_run, prepared
from tests.support.measured_runs import resumed
from tests.support.mlperf_logs import logged
from tests.support.readme_text import README
from tests.support.report_pages import a_scaling_sweep


def test_importing_analysis_imports_next_to_nothing() -> None:
    code = "import sys; before = set(sys.modules); import analysis; print(*sorted(set(sys.modules) - before))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"pandas", "numpy", "plotly", "yaml", "jobs"}.isdisjoint(answer.stdout.split())


def test_runs_has_a_row_a_run_used_or_not(tmp_path: Path) -> None:
    a_scaling_sweep(tmp_path)
    prepared(tmp_path, a_run("waits"))
    runs = analysis.frames(str(tmp_path)).runs
    assert len(runs) == 9
    waiting = runs.set_index("name").loc["waits"]
    assert waiting["not_used_because"] == "never started"
    assert waiting["tokens_per_s"] is pd.NA
    assert runs["nodes"].dtype == "Int64"
    assert runs["tokens_per_s"].dtype == "Float64"


def test_points_hold_the_numbers_of_the_page(tmp_path: Path) -> None:
    finished_run(tmp_path, a_run("n1"), step_time_s=1.0)
    finished_run(tmp_path, a_run("n1-again", repeat=2), step_time_s=2.0)
    finished_run(tmp_path, a_run("n4", nodes=4), step_time_s=0.5)
    points = analysis.frames(tmp_path).points.set_index("ranks")
    assert list(points["n"]) == [2, 1]
    assert points.loc[1, ["tokens_per_s_low", "tokens_per_s", "tokens_per_s_high"]].tolist() == [512, 768, 1024]
    assert points.loc[4, "speedup"] == 2048 / 768
    assert points.loc[4, "reference"] == "1 rank on 1 node"
    assert bool(points["loss_believed"].all())


def test_steps_hold_the_latest_attempt_and_nothing_for_what_is_absent(tmp_path: Path) -> None:
    resumed(prepared(tmp_path, a_run(steps=8)))
    steps = analysis.frames(tmp_path).steps
    assert list(steps["step"]) == list(range(1, 9))
    assert list(steps["attempt"]) == [1, 1, 1, 2, 2, 2, 2, 2]
    assert list(steps["step_time_s"]) == [0.5] * 3 + [0.25] * 5
    assert steps["gradient_norm"].isna().all()
    assert set(steps["path"]) == set(analysis.frames(tmp_path).runs["path"])


def test_runs_without_our_own_records_have_the_losses_that_are_known() -> None:
    run = RunResult(Path("/nowhere/log.txt"), losses={3: 2.5})
    assert steps_of(run) == {3: {m.LOSS.name: 2.5}}


def test_several_places_make_one_frame(tmp_path: Path) -> None:
    for sweep in ("one", "two"):
        finished_run(tmp_path / sweep, a_run(sweep, sweep=sweep))
    places: list[str | Path] = [tmp_path / "one", str(tmp_path / "two")]
    assert list(analysis.frames(*places).runs["sweep"]) == ["one", "two"]
    assert list(analysis.frames(places).runs["sweep"]) == ["one", "two"]


def test_no_run_is_the_same_refusal_as_of_the_report(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="no run in it"):
        analysis.frames(tmp_path)


def test_names_that_are_no_utf8_are_text(tmp_path: Path) -> None:
    os.mkdir(os.fsencode(tmp_path) + b"/caf\xe9")  # noqa: PTH102 (pathlib takes no bytes)
    (directory,) = tmp_path.iterdir()
    finished_run(directory, a_run())
    assert analysis.frames(tmp_path).runs["path"][0].endswith(r"caf\udce9/run")


def test_steps_that_a_log_does_not_number_have_no_number(tmp_path: Path) -> None:
    head = logged("submission_benchmark", "bert", 0) + logged("run_start", None, 0)
    losses = "".join(logged("train_loss", 9 - i / 10, 10 * i, samples_count=64 * i) for i in range(1, 12))
    (tmp_path / "result_0.txt").write_text(head + losses)
    steps = analysis.frames(tmp_path).steps
    assert len(steps) == 11
    assert steps["step"].isna().all()
    assert steps["loss"].notna().all()


def test_a_run_whose_records_are_gone_has_no_steps(tmp_path: Path) -> None:
    directory = finished_run(tmp_path, a_run())
    directory.metrics.unlink()
    steps = analysis.frames(tmp_path).steps
    assert len(steps) == 0
    assert steps["loss"].dtype == "Float64"
    shutil.rmtree(directory.path)


def test_the_readme_s_lines_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_scaling_sweep(tmp_path / "runs" / "demo")
    monkeypatch.chdir(tmp_path)
    (lines,) = re.findall(r"^```python\n(import analysis\n.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
    *before, last = lines.splitlines()
    names: dict[str, Any] = {}
    exec("\n".join(before), names)
    merged = eval(last, names)
    assert len(merged) == 8 * 6
    assert set(merged["parallelism"]) == {"ddp", "fsdp_full"}
