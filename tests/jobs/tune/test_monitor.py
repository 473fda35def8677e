"""Trials that are stopped early, and trials that are slower than models allow."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, cast

import pytest

from analysis.compare.tuning import trial_runs
from analysis.load.discover import read_runs
from jobs.rundir import SweepDir, append_record, read_records
from jobs.tune.monitor import hopeless, repeat_elsewhere, slower_than_models
from jobs.tune.space import Candidate, read_space
from tests.support.cli import run_cli
from tests.support.tune_command import command, starts
from tests.support.tunings import a_trial


@pytest.mark.parametrize(
    ("own", "stops"),
    [
        ([0.25, 0.26, 0.25, 0.25], True),
        ([0.25, 0.26, 0.25], False),  # too few steps
        ([0.25, 0.26, 0.11, 0.25], False),  # one step was as fast
        ([0.24, 0.14, 0.14, 0.14], False),  # less than 1.5 times as slow
    ],
)
def test_a_trial_is_stopped_where_all_of_its_steps_are_much_slower_than_those_of_the_best(
    own: list[float], *, stops: bool
) -> None:
    found = hopeless(own, [0.10, 0.11, 0.10, 0.12, 0.10, 0.11])
    assert (found is not None) is stops
    if found:
        assert "its 4 last steps take 0.250 s in the median and at least 0.250 s" in found
    assert hopeless([0.25, 0.26, 0.25, 0.25], [0.1]) is None


def test_a_trial_far_slower_than_the_others_let_expect_is_repeated_and_the_repeat_stands_for_it(tmp_path: Path) -> None:
    axes = [[f"a={value}" for value in range(3)], [f"b={value}" for value in range(4)]]
    points = [Candidate(each, cast(Any, None)) for each in itertools.product(*axes)]
    odd = points[6].choices
    for place, point in enumerate(points):
        slow = 6.0 if point.choices == odd else 1.0
        time_s = 0.1 * (1 + 0.1 * place % 4) * slow
        a_trial(tmp_path / "t", point.choices, time_s, baseline=place == 0)
    trials = trial_runs(read_runs([tmp_path / "t"]))
    found = {trial.choices: slower_than_models(trial, trials, points) for trial in trials}
    assert [choices for choices, why in found.items() if why] == [odd]
    assert "node, network or fault? It ran on" in str(found[odd])
    (suspect,) = (trial for trial in trials if trial.choices == odd)
    a_trial(tmp_path / "t", odd, 0.1, repeats=suspect.run.name, name="again")
    judged = {trial.run.name: trial for trial in trial_runs(read_runs([tmp_path / "t"]))}
    assert judged["again"].score
    assert judged[suspect.run.name].score is None
    assert "repeated as again: its node, the network or a fault cost" in str(judged[suspect.run.name].reason)


def test_the_repeat_of_a_job_in_slurm_excludes_the_nodes_of_the_first(tmp_path: Path) -> None:
    gpus = ["model=llama2_7b", "cluster=xe9680_h100", "cluster.account=a", "data=random", f"runs_dir={tmp_path}"]
    space = read_space([*gpus, "parallelism=fsdp_full", "job.micro_batch_size=1,2", "scaling.global_batch_size=16"])
    a_trial(tmp_path / "t", space.baseline.choices, 0.1)
    (trial,) = trial_runs(read_runs([tmp_path / "t"]))
    node = str(trial.run.started["nodes"][0])
    again = repeat_elsewhere(space, trial, space.baseline)
    assert again.run.cluster.sbatch["exclude"] == node
    assert again.facts["trial"]["repeats"] == trial.run.name


def test_a_trial_that_was_stopped_early_does_not_count_and_keeps_its_speed_as_information(tmp_path: Path) -> None:
    a_trial(tmp_path / "t", ["a=1"], 0.1, baseline=True)
    run = a_trial(tmp_path / "t", ["a=2"], 0.3, failure={"cause": "cancelled", "error": "asked to end"})
    append_record(
        tmp_path / "t/tuning.jsonl", {"event": "stopped_early", "run": run.name, "reason": "slow", "score": 3}
    )
    _, stopped = trial_runs(read_runs([tmp_path / "t"]))
    assert (stopped.score, stopped.reason, stopped.score_so_far) == (None, "slow", 3)


@pytest.mark.slow
@pytest.mark.long
def test_a_hopeless_trial_is_cancelled_while_it_runs_and_those_behind_it_run(tmp_path: Path) -> None:
    # 64 passes a step against one, for so many steps that it would run for minutes.
    values = ["job.micro_batch_size=64,1,32", "scaling.global_batch_size=64", "data.max_samples=64"]
    given = command(tmp_path, *values, "tune.steps=[1000]", "tune.pairs=0", "tune.loss_tolerance=null")
    done = run_cli(*given)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "micro_batch_size=1-1000steps: stopped early: its" in done.stdout
    (record,) = (each for each in read_records(tmp_path / "t/tuning.jsonl") if each["event"] == "stopped_early")
    assert "micro_batch_size=1-" in record["run"]
    assert set(starts(SweepDir(tmp_path / "t/trials")).values()) == {1}
    assert "stopped early" in (tmp_path / "t/report.md").read_text()
