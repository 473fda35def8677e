"""Trials that are stopped early, and trials that are slower than models allow."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from analysis.compare.tuning import trial_runs
from analysis.load.discover import read_runs
from analysis.report.digest import Digest
from analysis.report.sections.tuning import tuning_sections
from jobs.explore.monitor import hopeless, repeat_elsewhere, slower_than_models
from jobs.explore.searches.halving import Halving
from jobs.explore.tune import tuning_of
from jobs.rundir import SweepDir, append_record, read_records
from tests.support.cli import run_cli
from tests.support.tune_command import command, starts
from tests.support.tunings import STEPS, a_trial


@pytest.mark.parametrize(
    ("own", "stops"),
    [
        ([40, 38, 40, 40], True),
        ([40, 38, 40], False),  # too few steps
        ([40, 38, 95, 40], False),  # one step was as fast
        ([70, 71, 70, 70], False),  # less than 1.5 times as slow
    ],
)
def test_a_trial_is_stopped_where_all_of_its_steps_are_much_slower_than_those_of_the_best(
    own: list[float], *, stops: bool
) -> None:
    found = hopeless(own, [100, 91, 100, 83, 100, 91])
    assert (found is not None) is stops
    if found:
        assert "its last 4 steps have 40.0 tokens/s in the median and at most 40.0" in found
    assert hopeless([40, 38, 40, 40], [100]) is None


def grid(folder: Path, odd: tuple[str, ...], **further: Any) -> None:
    """Write trials of two keys, of which one is six times as slow as any other."""
    for place, choices in enumerate(itertools.product(("a=0", "a=1", "a=2"), ("b=0", "b=1", "b=2", "b=3"))):
        a_trial(folder, choices, 0.6 if choices == odd else 0.1 + 0.01 * (place % 4), baseline=place == 0, **further)


def test_a_trial_far_slower_than_those_that_differ_in_one_choice_is_suspect_and_its_repeat_stands_for_it(
    tmp_path: Path,
) -> None:
    odd = ("a=1", "b=2")
    grid(tmp_path / "t", odd)
    trials = trial_runs(read_runs([tmp_path / "t"]))
    found = {trial.choices: slower_than_models(trial, trials) for trial in trials}
    assert [choices for choices, why in found.items() if why] == [odd]
    assert "s by 5 trials that differ in one choice) on node0: node, network or fault?" in str(found[odd])
    (suspect,) = (trial for trial in trials if trial.choices == odd)
    a_trial(tmp_path / "t", odd, 0.1, repeats=suspect.run.name, name="again")
    judged = {trial.run.name: trial for trial in trial_runs(read_runs([tmp_path / "t"]))}
    assert judged["again"].score
    assert judged[suspect.run.name].score is None
    assert "repeated as again: its node, the network or a fault cost" in str(judged[suspect.run.name].reason)


def test_a_whole_choice_that_is_slow_is_no_fault_and_a_longer_run_is_compared_with_its_shorter_one(
    tmp_path: Path,
) -> None:
    for place, choices in enumerate(itertools.product(("a=0", "a=1"), ("b=0", "b=1", "b=2", "b=3"))):
        a_trial(tmp_path / "t", choices, 0.6 if choices[0] == "a=1" else 0.1, baseline=place == 0)
    for choices, time_s in ((("a=0", "b=0"), 0.1), (("a=0", "b=1"), 0.2)):
        a_trial(tmp_path / "t", choices, time_s, baseline=choices[1] == "b=0", steps=12)
    trials = trial_runs(read_runs([tmp_path / "t"]))
    (found,) = (why for trial in trials if (why := slower_than_models(trial, trials)))
    assert "0.200 s a step (at most 0.150 s by its shorter run)" in found


def test_the_repeat_of_a_job_in_slurm_excludes_the_nodes_of_the_first_if_it_has_others(tmp_path: Path) -> None:
    gpus = ["model=llama2_7b", "cluster=xe9680_h100", "cluster.account=a", "data=random", f"runs_dir={tmp_path}"]
    space = tuning_of(
        [*gpus, "parallelism=fsdp_full", "job.micro_batch_size=1,2", "scaling.global_batch_size=16"]
    ).space
    a_trial(tmp_path / "t", space.baseline.choices, 0.1)
    (trial,) = trial_runs(read_runs([tmp_path / "t"]))
    node = str(trial.run.started["nodes"][0])
    again = repeat_elsewhere(space, trial, space.baseline, spare=1)
    assert again.run.cluster.sbatch["exclude"] == node
    assert "exclude" not in repeat_elsewhere(space, trial, space.baseline, spare=0).run.cluster.sbatch
    assert again.facts["trial"]["repeats"] == trial.run.name


def test_a_trial_that_was_stopped_early_does_not_count_and_keeps_its_speed_as_information(tmp_path: Path) -> None:
    a_trial(tmp_path / "t", ["a=1"], 0.1, baseline=True)
    run = a_trial(tmp_path / "t", ["a=2"], 0.3, failure={"cause": "cancelled", "error": "asked to end"})
    append_record(
        tmp_path / "t/tuning.jsonl", {"event": "stopped_early", "run": run.name, "reason": "slow", "score": 3}
    )
    _, stopped = trial_runs(read_runs([tmp_path / "t"]))
    assert (stopped.score, stopped.reason, stopped.score_so_far) == (None, "slow", 3)
    (table, *_) = tuning_sections(Digest(read_runs([tmp_path / "t"])))
    assert table.rows[-1][-1] == "slow"


def test_a_suspect_is_repeated_once_and_on_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    space = tuning_of(command(tmp_path, "job.micro_batch_size=1,2,4", "engine.loss=whole,chunked")[1:]).space
    for point in space.candidates:
        odd = point.choices == ("job.micro_batch_size=2", "engine.loss=chunked")
        a_trial(tmp_path / "t", point.choices, 0.6 if odd else 0.1, baseline=point is space.baseline)
    tuning = Halving(space, 6, "2026-01-01T00:00:00+00:00")
    (again,) = tuning.repeats_elsewhere(STEPS)
    assert again.run.name == "tiny-ddp-n1x1-micro_batch_size=2-loss=chunked-6steps-again"
    assert "It is repeated once." in capsys.readouterr().out
    (record,) = space.folder.records("suspect")
    assert record["run"] == again.facts["trial"]["repeats"]
    assert list(tuning.repeats_elsewhere(STEPS)) == []


@pytest.mark.slow
@pytest.mark.long
def test_a_hopeless_trial_is_cancelled_while_it_runs_and_those_behind_it_run(tmp_path: Path) -> None:
    # 64 passes a step against one, so that it would run for long.
    values = ["job.micro_batch_size=64,1,32", "scaling.global_batch_size=64", "data.max_samples=64"]
    given = command(tmp_path, *values, "tune.steps=[100]", "tune.pairs=0", "tune.loss_tolerance=null")
    done = run_cli(*given)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "micro_batch_size=1-100steps: stopped early: its" in done.stdout
    records = [each for each in read_records(tmp_path / "t/tuning.jsonl") if each["event"] == "stopped_early"]
    # Other work on this machine during the trial of 32 can make that one hopeless, too.
    assert sum("micro_batch_size=1-" in record["run"] for record in records) == 1
    assert set(starts(SweepDir(tmp_path / "t/trials")).values()) == {1}
    assert "stopped early" in (tmp_path / "t/report.md").read_text()
