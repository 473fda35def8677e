"""tune=batch_finder: bracketing, bisection, and a real process that runs out of memory."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.cli import main
from jobs.explore.searches.batch_finder import Bracket, experiment_of, sized
from jobs.explore.tune import tuning_of
from jobs.rundir import SweepDir, load_run
from tests.support.cli import printed_words
from tests.support.paths import ROOT
from tests.support.tune_command import command


@pytest.mark.parametrize(
    ("bracket", "following"),
    [
        (Bracket(None, 0.0, None), 8),
        (Bracket(8, 0.2, None), 16),
        (Bracket(8, 0.2, 16), 12),
        (Bracket(12, 0.8, 13), None),
        (Bracket(12, 0.9, 16), None),
        (Bracket(None, 0.0, 8), 4),
        (Bracket(None, 0.0, 1), None),
    ],
)
def test_sizes_are_doubled_until_one_does_not_fit_and_then_halve_the_bracket(
    bracket: Bracket, following: int | None
) -> None:
    assert bracket.next_size(8, 0.9) == following


def test_the_batch_finder_refuses_a_sweep_and_an_unknown_size_of_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [*command(tmp_path), "tune=batch_finder"]
    assert main(given) == 2
    assert "The memory of gpu=none is not known, so no share of it is. Set tune.memory_gb" in printed_words(capsys)
    assert main([*given, "tune.memory_gb=1", "parallelism=ddp,fsdp_full"]) == 2
    assert "finds the size for one configuration; these are 2. Give single values." in printed_words(capsys)
    assert main(command(tmp_path, "tune.objective=micro_batch", "job.micro_batch_size=1,2")) == 2
    assert "tune.objective=micro_batch belongs to tune=batch_finder." in printed_words(capsys)
    assert main(command(tmp_path, "tune=batch_finder", "tune.search=halving", "job.micro_batch_size=1,2")) == 2
    assert "Set tune=batch_finder, without tune.objective and tune.search." in printed_words(capsys)
    for other in (["tune.search=batch_finder"], ["tune=batch_finder", "tune.objective=cost"]):
        assert main(command(tmp_path, "tune.memory_gb=1", *other)) == 2
        assert "is another objective. Set tune=batch_finder, without" in printed_words(capsys)
    assert not list(tmp_path.iterdir())


def test_trials_have_two_micro_batches_where_the_runs_have_several_and_the_experiment_a_legal_global_batch(
    tmp_path: Path,
) -> None:
    space = tuning_of([*command(tmp_path)[1:], "tune=batch_finder", "tune.memory_gb=1"]).space
    run = sized(space, 8).run
    assert (run.job.micro_batch_size, run.global_batch_size, run.job.steps) == (8, 16, 4)
    larger = [*command(tmp_path)[1:], "tune=batch_finder", "tune.memory_gb=1", "job.micro_batch_size=4"]
    whole = tuning_of(larger).space
    assert sized(whole, 8).run.global_batch_size == 8
    assert experiment_of(space, 3).choices == ("job.micro_batch_size=3", "scaling.global_batch_size=6")
    assert experiment_of(space, 2).choices == ("job.micro_batch_size=2",)


@pytest.mark.slow
@pytest.mark.long
def test_the_largest_micro_batch_is_found_where_larger_ones_really_run_out_of_memory(tmp_path: Path) -> None:
    # The kernel refuses a process more than so much memory of its own. The rank is said to have twice of it, so that no
    # size uses 90 % of that, and the search goes on until two neighbours differ.
    limit_gib = 1.5
    large = ["model.vocab_size=8192", "job.micro_batch_size=100", "scaling.global_batch_size=100", "job.steps=4",
             "data.max_samples=2048", "tune=batch_finder", f"tune.memory_gb={2 * limit_gib}"]  # fmt: skip
    given = command(tmp_path, *large)
    limited = f'ulimit -d {int(limit_gib * 2**20)}; exec "$@"'
    done = subprocess.run(
        ["bash", "-c", limited, "-", sys.executable, "-m", "jobs.cli", *given],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    verdict = re.search(
        r"micro_batch_size=(\d+) uses ([\d.]+) % of .*; (\d+) does not fit \(out of host memory\)", done.stdout
    )
    assert verdict, done.stdout
    assert done.stdout.splitlines()[-1] == str(tmp_path / "t/runs.csv")
    size, share, too_large = int(verdict[1]), float(verdict[2]), int(verdict[3])
    assert 100 <= size == too_large - 1
    assert share < 90
    tried = {load_run(run.config).job.micro_batch_size for run in SweepDir(tmp_path / "t/trials").runs()}
    assert {size, too_large} <= tried
    assert f"micro_batch_size: {size}" in (tmp_path / "t/experiment/best.yaml").read_text()
