"""Ranks under nsys and rocprofv3: their command lines, and a run for real under a stand-in that starts it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jobs import metrics as m
from jobs.errors import ConfigError
from jobs.ranks import Rank
from jobs.rundir import load_run
from jobs.runtime.profiling.wrapped import command_of, start_under_profiler
from tests.support.paths import ROOT
from tests.support.real_run import events, make_run, printed, steps, train

# Writes down its arguments, and starts what follows its options.
STAND_IN = """#!/bin/sh
printf '%s\\n' "$@" > "$0.arguments"
shift
while case $1 in --*) true;; *) false;; esac; do shift; done
exec "$@"
"""


@pytest.mark.slow
@pytest.mark.long
def test_a_rank_is_started_again_by_nsys_and_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nsys = tmp_path / "bin/nsys"
    nsys.parent.mkdir()
    nsys.write_text(STAND_IN)
    nsys.chmod(0o755)
    monkeypatch.setenv("PATH", f"{nsys.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    steps_of_run = ("job.steps=2", "job.warmup_steps=0", "parallelism=single", "ranks_per_node=1")
    run = make_run(tmp_path, *steps_of_run, "engine.profile.program=nsys")
    assert train(run) == [0], printed(run)
    command = Path(f"{nsys}.arguments").read_text().splitlines()
    assert command[0] == "profile"
    assert f"--output={run.profiles}/rank-0" in command
    assert command[-3:] == ["-m", "jobs.run", str(run.path)]
    assert not any(word.startswith("--capture-range") for word in command)
    assert len(events(run, "finished")) == 1
    # All of the rank is recorded, so that no step is steady.
    assert [row[m.PROFILED.name] for row in steps(run)] == [1, 1]


def test_a_profiler_that_is_not_on_the_node_is_refused_and_other_ranks_start_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path, "engine.profile.program=rocprof", "engine.profile.ranks=[1]")
    monkeypatch.setenv("PATH", str(tmp_path))
    start_under_profiler(load_run(run.config), run, Rank(0, 2, 0, "127.0.0.1", "1"))
    with pytest.raises(ConfigError, match=r"rocprof needs rocprofv3, which is not on PATH on .* Load its module"):
        start_under_profiler(load_run(run.config), run, Rank(1, 2, 1, "127.0.0.1", "1"))
    assert not run.profiles.exists()


def test_command_lines_name_the_output_of_a_rank_and_the_recorded_steps(tmp_path: Path) -> None:
    gpus = ("cluster=generic_slurm", "cluster.gpus=true", "ranks_per_node=1")
    chosen = make_run(tmp_path, *gpus, "engine.profile.program=nsys", "engine.profile.steps=[5]")
    nsys = command_of(load_run(chosen.config), chosen, 0)
    assert nsys[:2] == ["nsys", "profile"]
    assert {"--capture-range=cudaProfilerApi", "--capture-range-end=stop"} <= set(nsys)
    whole = make_run(tmp_path / "rocm", *gpus, "engine.profile.program=rocprof")
    rocprof = command_of(load_run(whole.config), whole, 3)
    assert rocprof[0] == "rocprofv3"
    assert rocprof[-5:] == ["--output-directory", str(whole.profiles), "--output-file", "rank-3", "--"]
