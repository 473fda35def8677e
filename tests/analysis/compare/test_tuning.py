"""Trials of a tuning: what counts, figures of merit, and the effect of each choice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from analysis.compare.tuning import best, effects, tunings
from analysis.load.discover import read
from analysis.report.content import build
from jobs.rundir import append_record
from tests.support.tunings import a_trial

MBS1, MBS2, MBS4 = (f"job.micro_batch_size={size}" for size in (1, 2, 4))
DDP, FSDP = "parallelism=ddp", "parallelism=fsdp_full"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tuning: MBS 2 is 1.25 times as fast under DDP and 1.6 times under FSDP, which is half as fast."""
    where = tmp_path / "tuned"
    for size, parallelism, step_time_s in (
        (MBS1, DDP, 0.5), (MBS2, DDP, 0.4), (MBS1, FSDP, 1.0), (MBS2, FSDP, 0.625),
    ):  # fmt: skip
        a_trial(where, [size, parallelism], step_time_s, baseline=(size, parallelism) == (MBS1, DDP))
    a_trial(where, [MBS4, DDP], 0.1, failure={"cause": "out_of_gpu_memory", "error": "CUDA out of memory"})
    a_trial(where, [MBS4, FSDP], 0.1, loss=4.0)
    a_trial(where, [MBS1, DDP], 0.5, steps=12, baseline=True)
    a_trial(where, [MBS2, DDP], 0.45, steps=12)
    return where


def test_what_ran_out_of_memory_or_left_the_loss_band_does_not_count(folder: Path) -> None:
    (trials,) = tunings(read([folder]).runs).values()
    reasons = {trial.choices: trial.reason for trial in trials if trial.score is None}
    assert set(reasons) == {(MBS4, DDP), (MBS4, FSDP)}
    assert "out of GPU memory" in str(reasons[MBS4, DDP])
    assert "loss 4.000 is outside the baseline's" in str(reasons[MBS4, FSDP])
    found = best(trials)
    assert found is not None
    # The longest rung decides: 1,024 tokens in 0.45 s.
    assert (found.steps, found.choices) == (12, (MBS2, DDP))
    assert found.value == pytest.approx(1024 / 0.45)


def test_the_effect_of_a_choice_is_that_of_pairs_that_differ_in_it_alone(folder: Path) -> None:
    (trials,) = tunings(read([folder]).runs).values()
    found = {effect.choice: effect for effect in effects(trials)}
    assert set(found) == {MBS2, MBS4, FSDP}
    assert found[MBS4].ratio is None
    size, sharding = found[MBS2].ratio, found[FSDP].ratio
    assert size is not None
    assert sharding is not None
    # Under DDP the longer rung counts.
    assert size.n[0] == 2
    assert size.middle == pytest.approx(((0.5 / 0.45) * 1.6) ** 0.5)
    assert sharding.middle == pytest.approx((0.5 * (0.4 / 0.625)) ** 0.5)


def test_time_to_train_adds_startup_and_the_steps_of_the_whole_training(tmp_path: Path) -> None:
    facts: dict[str, Any] = {"objective": "time_to_train", "training_steps": 100}
    a_trial(tmp_path / "t", [MBS1], 0.5, baseline=True, **facts)
    a_trial(tmp_path / "t", [MBS2], 0.25, **facts)
    (trials,) = tunings(read([tmp_path]).runs).values()
    # Start-up takes 2 s and the first step 1.5 s (tests.support.fake_runs).
    assert [trial.value for trial in trials] == [pytest.approx(2 + 1.5 + 99 * each) for each in (0.5, 0.25)]
    found = best(trials)
    assert found is not None
    assert found.choices == (MBS2,)


def test_cost_is_the_time_of_the_training_by_the_price_of_its_nodes(tmp_path: Path) -> None:
    facts: dict[str, Any] = {"objective": "cost", "training_steps": 100}
    directory = a_trial(tmp_path / "t", [MBS1], 0.5, baseline=True, **facts)
    (trials,) = tunings(read([tmp_path]).runs).values()
    assert trials[0].value is None, "no price is known"
    config = yaml.safe_load(directory.config.read_text())
    config["cluster"]["service_units_per_node_hour"] = 48
    directory.config.write_text(yaml.safe_dump(config))
    (trials,) = tunings(read([tmp_path]).runs).values()
    assert trials[0].value == pytest.approx(48 * (2 + 1.5 + 99 * 0.5) / 3600)


def test_the_report_shows_trials_costs_choices_and_what_is_next(folder: Path) -> None:
    append_record(
        folder / "tuning.jsonl",
        {"event": "begun", "points": 8, "legal": 6, "refused": {"GBS N is not a multiple": 2}, "too_large": []},
        {"event": "suspect", "run": f"{MBS2}-{FSDP}-6steps", "reason": "node, network or fault?"},
        {"event": "ended", "verdict": "Confirmed.", "ruled_out": ["a", "b"], "next": [[MBS4, FSDP]]},
    )
    content = build(read([folder]))
    trials, cost, choices = (each for each in content.rankings if "tuned" in each.heading)
    assert trials.note.startswith("CPU: 8 trials of 6 configurations")
    assert "8 points, 6 of them legal (2 refused: GBS N is not a multiple). Confirmed. 2 points need" in trials.note
    assert (
        "more memory than trials of their kind that ran out of it, and are not tried. To be tried next: " in trials.note
    )
    assert [row[-1] for row in trials.rows if row[0] == f"{MBS2} {FSDP}"] == ["node, network or fault?"]
    assert list(trials.rows[0][:4]) == [f"{MBS2} {DDP}", "12", "2,276", "1.111"]
    assert [row[0] for row in cost.rows] == ["6 steps", "12 steps"]
    assert [list(row[1:3]) for row in cost.rows] == [["6", "2"], ["2", "0"]]
    assert {row[0] for row in choices.rows} == {MBS2, MBS4, FSDP}
    assert content.unknown == []


def test_the_report_of_a_batch_finder_has_the_sizes_and_what_ran_out_of_memory(tmp_path: Path) -> None:
    facts: dict[str, Any] = {"objective": "micro_batch", "loss_tolerance": None}
    a_trial(tmp_path / "found", [MBS1], 0.5, **facts)
    a_trial(tmp_path / "found", [MBS4], 0.5, failure={"cause": "out_of_host_memory", "error": "not enough"}, **facts)
    trials, *_ = build(read([tmp_path / "found"])).rankings
    assert trials.headings[2] == "Micro batch (sequences)"
    assert [row[0] for row in trials.rows] == [MBS1, MBS4]
    assert "out of host memory" in trials.rows[1][-1]
    assert trials.rows[0][2] == "1.000"
