"""The space, budget and sampler of a tuning."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from analysis.compare.tuning import TrialRun
from analysis.run import RunResult
from jobs.cli import main
from jobs.explore.budget import Spent, first_rung, rungs
from jobs.explore.propose.gaussian_process import needs_as_much, proposals
from jobs.explore.space import Candidate, Space
from jobs.explore.tune import tuning_of
from jobs.failure_causes import FailureCause
from jobs.schema import Tune
from tests.support.cli import printed_words
from tests.support.real_run import SMALL, last_of_each

SIZES = "job.micro_batch_size=1,2"


def tuned(where: Path, *overrides: str) -> list[str]:
    given = [*SMALL, f"runs_dir={where}", "sweep=t", "scaling.global_batch_size=8", "ranks_per_node=1", *overrides]
    return last_of_each(given)


def test_illegal_points_are_counted_by_their_refusal_and_named_where_memory_is_short(tmp_path: Path) -> None:
    given = tuned(tmp_path, "job.micro_batch_size=1,3,5,8", "parallelism=ddp,fsdp_full")
    space = tuning_of(given).space
    assert [each.choices for each in space.candidates] == [
        (f"job.micro_batch_size={size}", f"parallelism={name}") for size in (1, 8) for name in ("ddp", "fsdp_full")
    ]
    assert space.refused == {"GBS N is not a multiple of MBS N x DP N = N": 4}
    gpus = ["model=llama2_7b", "cluster=xe9680_h100", "data=random", "job.precision=bfloat16", f"runs_dir={tmp_path}"]
    values = ["parallelism=fsdp_full,ddp", "job.micro_batch_size=1,2", "scaling.global_batch_size=16"]
    large = tuning_of([*gpus, *values]).space
    one, two = (each.expected_s or 0 for each in large.candidates)
    assert 0 < two < one, "the prediction of a GPU's rates: larger micro-batches are faster"
    assert len(large.candidates) == 2
    assert len(large.too_large) == 2
    assert all("ddp" in name for name in large.too_large)


@pytest.mark.parametrize(
    ("overrides", "refusal"),
    [
        (["job.micro_batch_size=1"], "The space has 1 point, and 1 of them can run: there is nothing to choose from."),
        (["job.micro_batch_size=1,3"], "1 refused: GBS N is not a multiple of MBS N x DP N = N."),
        (["job.micro_batch_size=3,1"], "The baseline, the first value of every key (job.micro_batch_size=3), cannot"),
        ([SIZES, "nodes=1,2"], "nodes: tuning compares configurations of one task on the same nodes"),
        ([SIZES, "job.steps=8,16"], "job.steps: slurmscale tune sets it for its runs"),
        ([SIZES, "tune.runs=5"], "too small for one rung: the fewest runs are 2 of 8 steps, 2 of 24 steps and 7 for"),
        ([SIZES, "tune.runs=5"], "Set tune.runs=11 or more, fewer tune.steps, or tune.pairs=0."),
        ([SIZES, "tune.steps=[8,4]"], "must be increasing numbers of steps"),
        ([SIZES, "tune.objective=cost"], "cluster.service_units_per_node_hour is not set. Set it, or"),
        ([SIZES, "tune.objective=time_to_train", "tune.loss_tolerance=null"], "needs a quality gate"),
        ([SIZES, "launcher=script"], "launcher=script starts nothing, and tuning waits for results."),
    ],
)
def test_what_cannot_be_tuned_is_refused_before_anything_is_made(
    tmp_path: Path, overrides: list[str], refusal: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", *tuned(tmp_path, *overrides)]) == 2
    assert refusal in printed_words(capsys)
    assert not list(tmp_path.iterdir())


def test_a_run_that_is_no_tuning_warns_of_its_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *tuned(tmp_path, "tune=halving")]) == 0
    assert "tune=... has no effect on a run." in printed_words(capsys)


def test_the_budget_of_runs_covers_all_rungs_and_the_confirmation() -> None:
    settings = Tune(runs=30, steps=[8, 24])
    # 16 short ones; the baseline and a third of the other 15; the baseline once, and 3 pairs: 16 + 6 + 7.
    assert first_rung(settings, 100) == 16
    assert rungs(settings, 16) == [16, 6]
    assert first_rung(settings, 5) == 5


def test_hours_that_later_rungs_need_are_not_spent_on_short_trials() -> None:
    spent = Spent(Tune(runs=30, steps=[8, 24], gpu_hours=10.0), "2026-01-01T00:00:00+00:00", 4.0, {8: 0.5})
    # A run of 24 steps takes 1.5 hours: 2 of 0.5, 2 of 1.5 and the confirmation's one of 1.5 are 5.5 of the 6 left.
    assert spent.allows([2, 2], [8, 24], 1)
    assert not spent.allows([2, 3], [8, 24], 1)


# --- the sampler -----------------------------------------------------------------------------------------------

AXES = {"a": 4, "b": 4, "c": 2, "d": 2}


def landscape(choices: Sequence[str]) -> float:
    """A score in which every choice has an effect, and two of them interact; the best is 1.7."""
    a, b, c, d = (int(each[-1]) for each in choices)
    return 1 + 0.1 * a + 0.05 * b * (1 - c) + 0.1 * d + 0.15 * (a == 3 and b == 3)


def a_space(seed: int, *, predicted: bool = False) -> Space:
    points: list[tuple[str, ...]] = [()]
    for key, size in AXES.items():
        points = [(*before, f"{key}={value}") for before in points for value in range(size)]
    candidates = [
        Candidate(each, cast(Any, None), False, 1 / landscape(each) if predicted else None) for each in points
    ]
    settings = Tune(runs=100, steps=[1], parallel=4, seed=seed)
    return Space(cast(Any, None), settings, [], candidates)


def a_result(choices: Sequence[str], score: float | None) -> TrialRun:
    return TrialRun(RunResult(Path()), {"choices": list(choices), "steps": 1}, score)


def replayed(seed: int, budget: int, *, predicted: bool = False) -> Iterator[float]:
    space, trials = a_space(seed, predicted=predicted), list[TrialRun]()
    while len(trials) < budget:
        for each in proposals(space, trials, min(4, budget - len(trials))):
            assert each.choices not in {trial.choices for trial in trials}
            trials.append(a_result(each.choices, landscape(each.choices)))
    yield from (trial.value or 0 for trial in trials)


def test_the_sampler_repeats_no_point_and_finds_better_ones_than_random_choice() -> None:
    found = [max(replayed(seed, 16)) for seed in range(5)]
    scores = [landscape(each.choices) for each in a_space(0).candidates]
    chosen = [max(random.Random(seed).sample(scores, 16)) for seed in range(200)]
    assert sum(found) / len(found) > sum(chosen) / len(chosen)


def test_the_prediction_chooses_the_first_points() -> None:
    first = list(replayed(1, 4, predicted=True))
    assert max(first) == max(landscape(each.choices) for each in a_space(0).candidates)


def test_a_failed_trial_teaches_the_sampler_to_avoid_its_choice() -> None:
    space = a_space(3)
    trials = [a_result(each.choices, None if each.choices[2] == "c=1" else 1.0) for each in space.candidates[::5]]
    assert [each.choices[2] for each in proposals(space, trials, 10)] == ["c=0"] * 10


def test_what_needs_more_memory_than_a_trial_that_ran_out_of_it_is_never_tried() -> None:
    def choices(size: int, mode: str, layout: str = "ddp") -> tuple[str, ...]:
        return (f"job.micro_batch_size={size}", f"engine.activation_checkpointing={mode}", f"parallelism={layout}")

    failed = choices(2, "selective")
    larger = (choices(4, "selective"), choices(16, "none"), choices(2, "none"))
    other = (choices(1, "none"), choices(4, "full"), choices(4, "selective", "fsdp_full"))
    assert all(needs_as_much(each, failed) for each in larger)
    assert not any(needs_as_much(each, failed) for each in other)
    candidates = [
        Candidate(each, cast(Any, None), tight=False) for each in (choices(1, "full"), failed, *larger, *other)
    ]
    space = Space(cast(Any, None), Tune(runs=9, steps=[1]), [], candidates)
    trials = [
        a_result(candidates[0].choices, 1.0),
        replace(a_result(failed, None), cause=FailureCause.out_of_gpu_memory),
    ]
    assert {each.choices for each in proposals(space, trials, 9)} == set(other)
