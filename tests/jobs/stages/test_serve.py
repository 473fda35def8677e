"""The stage that serves a trained model, with the tiny server as a real process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from analysis.load.discover import read_runs
from analysis.parsers import log_metrics as a
from jobs.rundir import RunDir, append_event
from tests.support.paths import ROOT
from tests.support.real_run import TIMEOUT_S, events, make_run
from tests.support.serving import CLIENT, MODEL, SERVER, listed, model_directory

SERVED = (
    *MODEL, "data=stdlib", "data.held_out_samples=4", "model.max_sequence_length=512", "job.export=true",
    "launcher=local", "stages=all_and_serve", "stages.serve.engine.server.layout=litgpt",
    f"stages.serve.engine.server.command={listed(SERVER)}", f"stages.serve.serving.client_command={listed(CLIENT)}",
    "stages.serve.serving.requests=6", "stages.serve.serving.warmup_requests=0", "stages.serve.serving.prompts=4",
    "stages.serve.serving.concurrency=2", "stages.serve.serving.output_tokens=4",
)  # fmt: skip


def trained(where: Path, *overrides: str) -> RunDir:
    """Return the directory of a run whose training has finished, with what a server that loads no weights reads."""
    run = make_run(where, *SERVED, *overrides, small=False)
    model_directory(run.export)
    append_event(run, "started", attempt=1)
    append_event(run, "finished", attempt=1)
    return run


def serve(run: RunDir) -> subprocess.CompletedProcess[str]:
    """Run the stage."""
    command = [sys.executable, "-m", "jobs.stages.serve", str(run.path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, cwd=ROOT, check=False)


def test_the_load_on_a_trained_model_is_a_run_below_it_and_a_row_of_the_report(tmp_path: Path) -> None:
    run = trained(tmp_path)
    ended = serve(run)
    assert ended.returncode == 0, ended.stderr
    assert [event["event"] for event in events(run, "load_measured")] == ["load_measured"]
    found = {each.name: each for each in read_runs([tmp_path / "test"])}
    assert found.keys() == {run.name, f"{run.name}-served"}
    load = found[f"{run.name}-served"]
    assert (load.state, load.values[a.REQUESTS_COMPLETED]) == ("served", 6)
    assert str(run.export) in (RunDir(run.served).serving / "request.json").read_text()


def test_a_load_needs_a_training_that_has_finished_and_a_server_that_starts(tmp_path: Path) -> None:
    run = make_run(tmp_path, *SERVED, "name=unfinished", small=False)
    assert "training has not finished" in serve(run).stderr
    assert not run.served.exists()
    run = trained(tmp_path, "name=broken", "stages.serve.engine.server.command=[sh,-c,exit 3]")
    assert serve(run).returncode == 1
    for record, event in ((run, "serve_failed"), (RunDir(run.served), "failed")):
        (failed,) = events(record, event)
        assert "replica 0 on" in str(failed["error"])
        assert "exited with code 3" in str(failed["error"])
