"""`slurmscale report --live`: a real sweep's page while it runs, after Ctrl-C, and at the end."""

from __future__ import annotations

import csv
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from analysis.report import live
from analysis.report.content import Live
from analysis.report.live import rewrite
from analysis.report.report import answered
from jobs.cli import main
from jobs.rundir import SweepDir, append_record
from tests.support.fake_runs import a_run, ended, finished_run, prepared, started, step
from tests.support.paths import ROOT
from tests.support.real_run import SMALL
from tests.support.waiting import limit_s

RELOADS = '<meta http-equiv="refresh"'


def first_line(page: Path) -> str:
    """Return the first text of a page's body."""
    found = re.search(r"<body>\s*<[^>]*>(.*?)</", page.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def test_a_page_is_live_while_runs_run_and_after_ctrl_c_it_is_the_ordinary_one(tmp_path: Path) -> None:
    sweep = tmp_path / "runs/s"
    line = [*SMALL, "launcher=local", "ranks_per_node=1", f"runs_dir={tmp_path}/runs", "sweep=s", "job.steps=100000"]
    assert main(["submit", *line, f"data.cache_dir={tmp_path}/cache"]) == 0
    try:
        command = ["env", "--default-signal=INT", sys.executable, "-m", "jobs.cli", "report", str(sweep), "--live"]
        seen = subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert seen.stdout is not None
        assert "Ctrl-C ends that" in seen.stdout.readline()
        assert re.match(r"Live: 1 run: 1 (running|queued); written \d{4}-\d\d-\d\d ", first_line(sweep / "report.html"))
        assert RELOADS in (sweep / "report.html").read_text()
        seen.send_signal(signal.SIGINT)
        _, err = seen.communicate(timeout=limit_s(180))
        assert seen.returncode == 130
        assert "the runs continue" in err
        assert first_line(sweep / "report.html") == "Skip to the result"
        assert RELOADS not in (sweep / "report.html").read_text()
    finally:
        assert main(["cancel", str(sweep)]) == 0


def test_the_page_of_a_sweep_that_has_ended_is_that_of_report(tmp_path: Path) -> None:
    finished_run(tmp_path / "s", a_run("r"))
    assert main(["report", str(tmp_path / "s"), "--output", str(tmp_path / "once")]) == 0
    assert main(["report", str(tmp_path / "s"), "--output", str(tmp_path / "live"), "--live"]) == 0
    for name in ("report.html", "report.md", "runs.csv"):
        assert (tmp_path / "once" / name).read_bytes() == (tmp_path / "live" / name).read_bytes()


def test_runs_in_progress_have_curves_that_are_no_results(tmp_path: Path) -> None:
    finished_run(tmp_path / "s", a_run("done"))
    run = a_run("busy<b>", steps=50)
    directory = prepared(tmp_path / "s", run)
    started(directory, run)
    for number in range(1, 4):
        step(directory, number, loss=5.0 - number, step_time_s=0.5)
    live_state = Live("Live: 1 running", 10, frozenset({directory.path.resolve()}))
    headline, page = answered([tmp_path / "s"], tmp_path / "live", live=live_state)
    text = page.read_text()
    assert '<div class="plot" id="plot-running-loss"' in text
    assert "CPU, still running, not a result" in text
    assert "busy&lt;b&gt; step 3 of 50" in text
    plots = json.loads(re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', text, re.DOTALL)[0])
    assert plots["running-loss"]["data"][0]["y"] == [4.0, 3.0, 2.0]
    assert plots["running-tokens_per_s"]["data"][0]["y"] == [2048.0] * 3
    assert not any("busy" in sentence for sentence in headline)
    table = list(csv.DictReader((tmp_path / "live/runs.csv").read_text().splitlines()))
    assert {row["name"]: bool(row["not_used_because"]) for row in table} == {"done": False, "busy<b>": True}
    assert "still running" not in answered([tmp_path / "s"], tmp_path / "last")[1].read_text().replace(
        "no end recorded; last seen at step 3 of 50: still running, killed, or out of time", ""
    )


def test_nothing_is_written_while_nothing_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = prepared(tmp_path, a_run("r"))
    started(run, a_run("r"))
    step(run, 1, step_time_s=1.0)
    append_record(SweepDir(tmp_path).submissions, {"event": "submitted", "run": "r", "launcher": "local", "job_id": "1",
                  "events_before": 0, "host": "elsewhere", "time": "2026-01-01T00:00:00+00:00"})  # fmt: skip
    looks, written = 0, list[int]()

    def sleep(_: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 5:
            step(run, 2, step_time_s=1.0)
        if looks == 8:
            ended(run, step=2)

    def write(state: Live | None) -> tuple[list[str], Path]:
        assert state is not None
        written.append(looks)
        return [], tmp_path

    monkeypatch.setattr(live, "LEAST_S", 0.0)
    monkeypatch.setattr(live, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: float(looks)))
    rewrite([SweepDir(tmp_path)], write, bool)
    assert written == [0, 5]


@pytest.mark.parametrize("option", [["--compare", "A", "B"], ["A", "--reference", "A/runs.csv"]])
def test_a_comparison_is_not_live(option: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [word.replace("A", str(tmp_path)) if word[0] != "-" else word for word in option]
    with pytest.raises(SystemExit) as end:
        sys.exit(main(["report", *words, "--live"]))
    assert end.value.code == 2
    assert "--live writes the report of sweeps" in capsys.readouterr().err
