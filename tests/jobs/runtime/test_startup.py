"""Start-up by cause: every second from the process's start to its first step has one, on record and on the page."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, cast

import pytest

from analysis.load.discover import read
from analysis.report.content import build
from analysis.report.report import report
from jobs import metrics as m
from jobs.lease import Lease
from jobs.ranks import Rank
from jobs.rundir import RunDir
from jobs.runtime.startup import Startup
from jobs.runtime.watchdog import Watchdog
from tests.support.fake_events import clock
from tests.support.fake_runs import a_run, ended, event, finished_run, prepared, started, step
from tests.support.paths import ROOT
from tests.support.real_run import events, make_run, printed, train

PARTS: dict[str, Any] = {metric.name: float(i) for i, metric in enumerate(m.STARTUP_PARTS, start=1)}


def test_ranks_wait_as_long_as_the_first_one_needs_for_all_data_also_in_later_parts(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/tokens.npy").write_bytes(bytes(3000))
    (tmp_path / "data/meta.json").write_bytes(bytes(70))
    begun: list[float] = []

    class Watching:
        def begins(self, _work: str, size_bytes: float = 0) -> None:
            begun.append(size_bytes)

    startup = Startup(time.time(), cast(Watchdog, Watching()), {m.STARTUP_WEIGHTS_TIME: 500})
    startup.begins(m.STARTUP_DATA_TIME)
    startup.reads_data(tmp_path / "data")
    startup.begins(m.STARTUP_WEIGHTS_TIME)
    startup.begins(m.STARTUP_OTHER_TIME)
    assert begun == [0, 3070, 3570, 3070]


def test_every_second_of_a_start_up_is_of_one_part(tmp_path: Path) -> None:
    began = time.time() - 100
    watchdog = Watchdog(Lease(RunDir(tmp_path)), Rank(0, 1, 0, "127.0.0.1", "1"), limit_s=1000)
    clock = Startup(began, watchdog, {})
    assert clock.parts[m.STARTUP_IMPORT_TIME] >= 100
    for part in (m.STARTUP_DATA_TIME, m.STARTUP_WEIGHTS_TIME, m.STARTUP_DATA_TIME):
        clock.begins(part)
        time.sleep(0.01)
    assert watchdog.doing == "opening the data"
    met = clock.ends()
    watchdog.stop()
    assert sum(clock.parts.values()) == pytest.approx(met - began)
    assert clock.parts[m.STARTUP_DATA_TIME] >= 0.02
    assert clock.parts[m.STARTUP_WEIGHTS_TIME] >= 0.01
    assert clock.parts[m.STARTUP_RENDEZVOUS_TIME] == 0


def test_a_run_records_parts_that_sum_to_its_start_up(tmp_path: Path) -> None:
    run = make_run(tmp_path, "parallelism=ddp", "job.steps=1", "job.warmup_steps=0")
    assert train(run) == [0, 0], printed(run)
    (start,) = events(run, "started")
    parts = [float(str(start[metric.name])) for metric in m.STARTUP_PARTS if metric is not m.STARTUP_STAGING_TIME]
    assert all(part > 0 for part in parts)
    assert float(str(start["slowest_import_time_s"])) >= float(str(start["startup_import_time_s"]))
    assert float(str(start["startup_read_bytes"])) >= 0
    assert sum(parts) == pytest.approx(float(str(start["startup_time_s"])), abs=1e-6)


@pytest.mark.slow
@pytest.mark.long
def test_a_rank_imports_no_packages_that_only_metrics_of_text_and_sound_need_and_leaves_them_to_others(
    tmp_path: Path,
) -> None:
    run = make_run(tmp_path, "name=run", "parallelism=single", "ranks_per_node=1")
    script = """
import sys
from pathlib import Path
from jobs.rundir import load_run
from jobs.work.work import work_of

run = load_run(Path(sys.argv[1])); assert callable(work_of(run).entry(run))
assert {"litgpt", "lightning.pytorch", "torchmetrics"} <= set(sys.modules)
print(sorted({"scipy", "transformers", "sklearn"} & set(sys.modules)))

from lightning_utilities.core.imports import RequirementCache, package_available
assert package_available("scipy") and RequirementCache("scipy")
"""
    done = subprocess.run(
        [sys.executable, "-c", script, run.config], check=False, capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[]\n"


def test_liger_is_imported_without_the_package_that_it_only_asks_for_and_others_still_find_that(tmp_path: Path) -> None:
    (tmp_path / "peft.py").write_text("")
    ops = tmp_path / "liger_kernel" / "ops.py"
    ops.parent.mkdir()
    (ops.parent / "__init__.py").write_text("")
    ops.write_text("try:\n    import peft\n    ASKED = True\nexcept ImportError:\n    ASKED = False\n")
    script = """
import sys
from jobs.runtime.imports import import_liger_alone

import_liger_alone()
import liger_kernel.ops
print(liger_kernel.ops.ASKED, "peft" in sys.modules)
import peft
del sys.modules["liger_kernel.ops"]
import_liger_alone()
print(sys.modules["liger_kernel.ops"].ASKED, sys.modules["peft"] is peft)
"""
    path = os.pathsep.join((str(tmp_path), str(ROOT)))
    done = subprocess.run(
        [sys.executable, "-c", script],
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["False False", "True True"]


def test_the_report_shows_start_up_by_cause_summed_over_starts(tmp_path: Path) -> None:
    directory = prepared(tmp_path, run := a_run("twice"))
    for attempt in (1, 2):
        started(directory, run, attempt=attempt, startup_time_s=36.0, **PARTS)
    for number in range(1, 7):
        step(directory, number, attempt=2)
    ended(directory, attempt=2, step=6)
    finished_run(tmp_path, a_run("older"))
    page = report([tmp_path], None)
    section = next(each for each in build(read([tmp_path])).sections if each.heading == "Start-up by cause")
    ((name, starts, whole, *parts, most),) = section.rows
    assert (name, starts, whole) == ("twice", "2", "72.0")
    assert parts == ["2.00", "4.00", "6.00", "8.00", "10.0", "12.0", "14.0", "16.0"]
    assert most == "other, 22 %"
    assert ">Start-up by cause</h2>" in page.read_text()
    assert "startup_weights_time_s" in (tmp_path / "runs.csv").read_text().splitlines()[0]


def test_where_no_run_recorded_it_the_page_does_not_speak_of_it(tmp_path: Path) -> None:
    finished_run(tmp_path, a_run())
    assert "Start-up by cause" not in report([tmp_path], None).read_text()


def test_cold_and_warm_starts_are_apart_also_those_of_a_restart_on_the_same_machines(tmp_path: Path) -> None:
    first, again = prepared(tmp_path, a_run("first")), prepared(tmp_path, a_run("again"))
    started(first, a_run("first"), startup_time_s=100.0, machines=["a", "b"], startup_read_bytes=3e9, time=clock(0))
    event(first, "kernels", attempt=1, step=1, kernels_found=0, kernels_compiled=2)
    started(first, a_run("first"), attempt=2, startup_time_s=20.0, machines=["b", "a"], time=clock(200))
    event(first, "kernels", attempt=2, step=5, kernels_found=2, kernels_compiled=0)
    started(again, a_run("again"), startup_time_s=30.0, machines=["a"], slowest_import_time_s=25.0, time=clock(300))
    started(again, a_run("again"), attempt=2, startup_time_s=90.0, machines=["a", "c"], time=clock(400))
    for directory in (first, again):
        for number in range(1, 7):
            step(directory, number, attempt=2)
        ended(directory, attempt=2, step=6)
    found = {run.name: run.values for run in read([tmp_path]).runs}
    assert [found["first"][metric] for metric in (m.COLD_STARTS, m.COLD_STARTUP_TIME, m.WARM_STARTUP_TIME)] == [
        1,
        100,
        20,
    ]
    assert [found["again"][metric] for metric in (m.COLD_STARTS, m.COLD_STARTUP_TIME, m.WARM_STARTUP_TIME)] == [
        1,
        90,
        30,
    ]
    kept = (m.KERNELS_FOUND, m.KERNELS_COMPILED, m.STARTUP_READ_BYTES)
    assert [found["first"][metric] for metric in kept] == [2, 2, 3e9]
    assert found["again"][m.SLOWEST_IMPORT_TIME] == 25
