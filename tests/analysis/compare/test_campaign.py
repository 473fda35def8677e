"""Campaigns: refusals, the order of runs, and the verdicts of a leaderboard."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from analysis.compare.campaign import Entry, Leaderboard, Trial, Verdict, leaderboards, ranked
from analysis.compare.campaign_budget import ATTEMPTS, NODE_HOURS, accounts
from analysis.compare.score import score_of
from analysis.load.discover import read, read_runs
from analysis.report.content import build
from analysis.report.leaderboard import print_board
from analysis.report.leaderboard_text import answer, lead, notes, reasons
from jobs.cli import main
from jobs.errors import ConfigError
from jobs.explore.campaign.campaign import opened
from jobs.explore.campaign.campaign_file import read_trials
from jobs.explore.campaign.trial import baseline_points, campaign_points, trial_points
from jobs.explore.campaign.trial_checks import refuse_over_budget
from jobs.plan.compose import Point, compose
from jobs.rundir import RunDir, SweepDir, append_record, event_record, load_run, provenance_of, read_records
from jobs.schema import Budget, Contest, Counted, LauncherKind, Run
from jobs.submit.preparation.code_store import PACKAGES
from tests.benchmarks.false_crowns import Scenario, kept_sources, quietest, rates
from tests.benchmarks.real_pairs import collect, kept_pairs
from tests.support.campaigns import SLOWER, a_repeat, leaderboard_of, pairs
from tests.support.fake_runs import a_run, ended, event, prepared, step, with_job
from tests.support.paths import ROOT
from tests.support.real_run import SMALL, train
from tests.support.report_pages import Page
from tests.support.training import long

EXPERIMENT = ["+experiment=apac_hpc_ai_2024", "model=tiny", "data=stdlib"]
# One rank, 24 samples, and an epoch of 6 steps.
TINY = [
    *SMALL,
    *("ranks_per_node=1", "data.max_samples=24", "scaling.global_batch_size=4"),
    *("job.steps=null", "job.epochs=1", "job.unmeasured_steps=1"),
]


# --- made-up campaigns, whose truth is known -------------------------------------------------------------------


def entry_of(board: Leaderboard, name: str) -> Entry:
    (entry,) = [entry for entry in board.entries if entry.trial.name == name]
    return entry


def shown(board: Leaderboard, width: int = 80) -> str:
    out = Console(width=width, record=True, file=None, quiet=False, force_terminal=False)
    with out.capture() as captured:
        print_board(board, out)
    return captured.get()


NOISE = ((10.0, 10.1), (10.2, 10.0), (9.9, 10.0))
FASTER = ((10.0, 8.0), (10.2, 8.1), (9.9, 8.0))


@pytest.mark.long
def test_real_pairs_are_collected_in_several_calls(tmp_path: Path) -> None:
    file = tmp_path / "pairs.csv"
    first = collect(file, pairs=1, minutes=5)
    assert [row.role for row in first] == ["baseline", "attempt"]
    assert collect(file, pairs=1, minutes=5) == first == kept_pairs(file), "nothing more is trained"
    assert collect(file, pairs=2, minutes=0) == first, "no time is left"
    assert [row.role for row in collect(file, pairs=2, minutes=5)][2:] == ["attempt", "baseline"]


def test_the_page_says_which_difference_the_pairs_of_a_tie_would_miss(tmp_path: Path) -> None:
    a_repeat(tmp_path, "baseline", 1, 10.0, role="baseline")
    pairs(tmp_path, "noisy", [(10.0, 10.2), (10.0, 9.7), (10.1, 10.0), (9.9, 10.1), (10.0, 9.9)])
    board = leaderboard_of(tmp_path)
    (text,) = [each for each in notes(board) if each.startswith("A tie does not prove")]
    assert "noisy (n = 5): below 3.69 %" in text
    assert "use 7 pairs to see 3 %" in text
    assert "differences below 3.69 % are hardly seen at this noise" in answer(board)


def test_the_same_configuration_again_is_a_tie_and_shares_the_baselines_rank(tmp_path: Path) -> None:
    pairs(tmp_path, "again", NOISE)
    board = leaderboard_of(tmp_path)
    entry = entry_of(board, "again")
    assert (entry.verdict, entry.rank, entry.holds) == (Verdict.tie, 1, False)
    assert "baseline     1" in shown(board)


def test_a_run_of_a_campaign_stands_for_its_leaderboard(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs(tmp_path, "again", NOISE)
    assert main(["leaderboard", str(tmp_path)]) == 0
    whole = capsys.readouterr().out
    assert main(["leaderboard", str(tmp_path / "again-r2")]) == 0
    assert capsys.readouterr().out == whole


def test_a_difference_beyond_the_repeats_is_ranked_above_or_below_the_baseline(tmp_path: Path) -> None:
    pairs(tmp_path, "slow", SLOWER)
    pairs(tmp_path, "again", NOISE)
    pairs(tmp_path, "fast", FASTER)
    board = leaderboard_of(tmp_path)
    assert [(entry.trial.name, entry.verdict, entry.rank) for entry in board.entries] == [
        ("fast", Verdict.faster, 1),
        ("again", Verdict.tie, 2),
        ("slow", Verdict.slower, 4),
    ]
    fast = entry_of(board, "fast")
    assert fast.ratio is not None
    assert fast.ratio.middle == pytest.approx(1.2489, rel=1e-4)
    assert fast.interval is not None
    assert fast.interval[0] < 1.2489 < fast.interval[1]


def test_the_leaderboard_says_what_is_left_of_the_budget_and_what_it_pays_for(tmp_path: Path) -> None:
    run = replace(a_run(steps=4), budget=Budget(attempts=3, node_hours=2.0))
    pairs(tmp_path, "packed", ((900.0, 900.0), (900.0, 900.0)), run=run)
    pairs(tmp_path, "lost", ((900.0, 900.0),), run=run, end=None)
    board = leaderboard_of(tmp_path)
    used = {each.key: each for each in accounts(board.runs)}
    assert (used[ATTEMPTS].used, used[ATTEMPTS].left) == (2, 1)
    of_a_run = used[NODE_HOURS].of_a_run
    assert of_a_run is not None
    assert used[NODE_HOURS].used >= 5 * of_a_run, "what a failed run used counts too"
    (text,) = [note for note in notes(board) if note.startswith("Budget: 1 of 3 attempts are left; ")]
    pairs_left = int(used[NODE_HOURS].left / (2 * of_a_run))
    assert f"of 2 node-hours are left, for {pairs_left:,} more pairs of runs (" in text


def test_attempts_that_the_budget_does_not_pay_for_prepare_nothing(
    campaign: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place, before = ["--campaign", str(campaign), "launcher=dry"], sorted(campaign.iterdir())
    file = tmp_path / "attempts.yaml"
    file.write_text("a: [parallelism=ddp]\nb: [job.learning_rate=1e-4]\n")
    assert main(["campaign", str(file), *place, "budget.attempts=1"]) == 2
    wanted = "budget.attempts=1 is not enough: 0 are made, and 2 more are asked for. Set budget.attempts=2 or more"
    assert wanted in capsys.readouterr().err
    assert sorted(campaign.iterdir()) == before


def test_a_run_that_waits_is_in_the_budget_until_it_is_cancelled(tmp_path: Path) -> None:
    run = replace(a_run(steps=4), budget=Budget(node_hours=2.0))
    pairs(tmp_path, "packed", NOISE, run=run)
    (before,) = accounts(read_runs([tmp_path]))
    prepared(tmp_path, replace(run, name="packed-r9"), attempt={"name": "packed", "role": "attempt", "repeat": 9})
    record = {"run": "packed-r9", "launcher": "local", "job_id": "1", "events_before": 0, "host": "login"}
    append_record(SweepDir(tmp_path).submissions, event_record("submitted", **record))
    (queued,) = accounts(read_runs([tmp_path]))
    assert before.of_a_run
    assert queued.used == pytest.approx(before.used + before.of_a_run)
    append_record(SweepDir(tmp_path).submissions, event_record("cancelled", run="packed-r9", job_id="1"))
    (cancelled,) = accounts(read_runs([tmp_path]))
    assert cancelled.used == before.used


def test_further_pairs_are_refused_by_what_those_before_took(tmp_path: Path) -> None:
    run = replace(a_run(steps=4), budget=Budget(node_hours=1.0))
    pairs(tmp_path, "packed", NOISE, run=run)
    of_a_run = accounts(read_runs([tmp_path]))[0].of_a_run
    assert of_a_run
    more = [Point(replace(run, budget=Budget(node_hours=limit)), [], {"attempt": {"name": "x"}}) for limit in (1, 2)]
    pairs_of = int(2 / of_a_run) * more
    with pytest.raises(
        ConfigError, match=r"budget\.node_hours=2 is not enough: .* used or queued, and .* more runs need"
    ):
        refuse_over_budget(SweepDir(tmp_path), pairs_of)
    refuse_over_budget(SweepDir(tmp_path), more)


def test_the_time_to_a_loss_is_compared_and_a_run_that_does_not_reach_it_counts_nowhere(tmp_path: Path) -> None:
    rules = Contest(
        name="speedrun", source="tests", wall_time_min=60, counted=Counted.target, target_loss=3.5, loss_steps=2
    )
    run = replace(a_run(steps=4), contest=rules)
    for name, losses in (("early", (4.0, 3.0, 2.5, 2.0)), ("never", (5.0, 4.8, 4.6, 4.4))):
        for number, time_s in enumerate((8.0, 8.1, 8.0), start=1):
            a_repeat(tmp_path, name, number, time_s, role="baseline", run=run)
            a_repeat(tmp_path, name, number, time_s + number / 100, run=run, losses=losses)
    board = leaderboard_of(tmp_path)
    early, never = entry_of(board, "early"), entry_of(board, "never")
    # The baseline's losses 5, 4, 3, 2 have a mean of 3.5 at its third step of four, and the attempt's at the second.
    assert early.verdict is Verdict.faster
    assert early.ratio is not None
    assert early.ratio.middle == pytest.approx(1.5, rel=0.01)
    assert never.reasons == ["never reached a loss of 3.5 (mean of 2 steps); it ended with 4.500"]
    assert "time to the target (first step to the one that reaches the contest's loss" in lead(board)


def test_the_official_score_is_the_mean_of_the_first_runs_without_the_fastest_and_the_slowest(tmp_path: Path) -> None:
    rules = Contest(
        name="mlperf", source="tests", wall_time_min=60, counted=Counted.target, target_loss=3.5, loss_steps=2, runs=5,
        dropped=1,
    )  # fmt: skip
    run = replace(a_run(steps=4), contest=rules)
    late, never = (5.0, 4.0, 3.0, 2.0), (5.0, 4.8, 4.6, 4.4)
    # The target is reached at the third of four steps. The sixth run is not among the first five.
    for name, times_s, losses in (
        ("whole", (4.0, 8.0, 5.0, 6.0, 7.0, 0.4), [late] * 6),
        ("one_fails", (4.0, 8.0, 5.0, 6.0, 7.0), [late, never, late, late, late]),
        ("two_fail", (4.0, 8.0, 5.0, 6.0, 7.0), [late, never, never, late, late]),
        ("short", (4.0, 8.0), [late] * 2),
    ):
        for number, (time_s, each) in enumerate(zip(times_s, losses, strict=True), start=1):
            a_repeat(tmp_path, name, number, 8.0 + number / 100, role="baseline", run=run)
            a_repeat(tmp_path, name, number, time_s, run=run, losses=each)
    board = leaderboard_of(tmp_path)
    scores = {entry.trial.name: score_of(board, entry) for entry in board.entries}
    assert {name: found and found.value for name, found in scores.items()} == {
        "whole": pytest.approx(0.75 * 6), "one_fails": pytest.approx(0.75 * 6), "two_fail": None, "short": None,
    }  # fmt: skip
    found = score_of(board, None)
    assert found is not None
    assert found.value == pytest.approx(0.75 * 8.03)
    assert entry_of(board, "one_fails").verdict is Verdict.invalid, "the verdict is stricter than the score"
    page = " ".join(shown(board).split())
    assert (
        "Score: the contest's own, the mean of the first 5 runs of a configuration without the 1 fastest and the 1 "
        "slowest; it has no interval, and decides no verdict."
    ) in page
    assert "two_fail has none: 2 of 5 runs do not count, and 1 may" in page
    assert "short has none: 2 of 5 runs" in page
    assert re.search(r"^baseline .* 6\.022 ", shown(board), re.MULTILINE)
    pairs(tmp_path / "plain", "packed", NOISE)
    assert "Score" not in shown(leaderboard_of(tmp_path / "plain"))


def test_the_page_shows_what_each_change_gained_on_the_way_to_the_best_attempt(tmp_path: Path) -> None:
    plain = a_run(steps=4)
    large = replace(plain, job=replace(plain.job, micro_batch_size=2))
    both = replace(large, engine=replace(large.engine, compile=True))
    other = replace(plain, job=replace(plain.job, weight_decay=0.2))
    pairs(tmp_path, "large", ((9.0, 6.0), (9.1, 6.0), (9.0, 6.1)), run=large)
    pairs(tmp_path, "other", ((9.0, 8.0), (9.1, 8.0), (9.0, 8.1)), run=other)
    pairs(tmp_path, "both", ((9.0, 4.5), (9.1, 4.6), (9.0, 4.5)), run=both)
    found = {section.heading: section for section in build(read([tmp_path])).rankings}["From the baseline to both"]
    (first, last) = found.rows
    assert [first[0], last[0]] == ["large", "both"]
    assert float(first[1]) * float(last[1]) == pytest.approx(float(last[4]), rel=1e-3)
    assert float(last[1]) == pytest.approx(1.333, abs=0.02)
    assert "micro_batch_size 1 → 2" in first[5]
    assert last[5] == "engine.compile False → True"
    low, high = map(float, last[2].split(" to "))
    assert low < 6.03 / 4.53 < high
    assert found.figure is not None


def test_a_package_has_an_artifact_description_under_the_headings_of_the_conference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    a_repeat(tmp_path / "camp", "baseline", 1, 10.0, role="baseline")
    pairs(tmp_path / "camp", "packed", FASTER)
    assert main(["package", "camp", "packed", "--layout", "sc"]) == 0
    page = (tmp_path / "package-camp-packed/ARTIFACT.md").read_text()
    claim = (tmp_path / "package-camp-packed/README.md").read_text().partition("baseline\n\n")[2].partition("\n")[0]
    assert claim.startswith("1.249 (time of the baseline / time of the attempt, 95 % interval")
    headings = [line.lstrip("# ") for line in page.splitlines() if line.startswith("#")]
    assert headings[9:16] == [
        "Expected Reproduction Time (in Minutes)", "Artifact Setup (incl. Inputs)", "Hardware", "Software",
        "Datasets / Inputs", "Installation and Deployment", "Artifact Execution",
    ]  # fmt: skip
    assert f"* C1: packed of camp. {claim}" in page
    assert "* 1 node, 1 rank" in page
    assert "* Data: random" in page
    assert "Execution: 1 for the runs themselves." in page
    assert "ARTIFACT.md" in (tmp_path / "package-camp-packed/SHA256SUMS").read_text()
    assert main(["package", "camp", "packed", "--output", "plain"]) == 0
    assert not (tmp_path / "plain/ARTIFACT.md").exists()


@pytest.mark.parametrize("count", [1, 2])
def test_fewer_than_three_pairs_are_never_a_win_however_fast(count: int, tmp_path: Path) -> None:
    pairs(tmp_path, "lucky", [(10.0, 5.0), (10.2, 5.0)][:count])
    entry = entry_of(leaderboard_of(tmp_path), "lucky")
    assert (entry.verdict, entry.rank, entry.interval) == (Verdict.too_few, None, None)
    assert "too few repeats" in shown(leaderboard_of(tmp_path))


def test_trials_without_a_significant_difference_share_a_rank(tmp_path: Path) -> None:
    pairs(tmp_path, "fast", FASTER)
    pairs(tmp_path, "as_fast", ((10.0, 8.1), (10.2, 8.05), (9.9, 7.95)))
    pairs(tmp_path, "less_fast", ((10.0, 9.0), (10.2, 9.2), (9.9, 9.0)))
    ranks = {entry.trial.name: entry.rank for entry in leaderboard_of(tmp_path).entries}
    assert ranks == {"fast": 1, "as_fast": 1, "less_fast": 3}


def test_more_attempts_need_a_clearer_win(tmp_path: Path) -> None:
    # Its interval leaves 1 out at 95 %, not at 99 %: no star, and a tie as one of five, of which each has 99 %.
    pairs(tmp_path, "barely", ((10.0, 9.6), (10.0, 9.45), (10.0, 9.75)))
    alone = entry_of(leaderboard_of(tmp_path), "barely")
    assert (alone.verdict, alone.holds) == (Verdict.faster, False)
    for number in range(4):
        pairs(tmp_path, f"again{number}", NOISE)
    board = leaderboard_of(tmp_path)
    among_five = entry_of(board, "barely")
    assert (among_five.verdict, among_five.holds) == (Verdict.tie, False)
    assert among_five.interval is not None
    assert among_five.interval[0] < 1 < among_five.interval[1], "the printed interval is the one that decides"
    message = " ".join(notes(board))
    assert "Student's t of their logarithms, at 99 % for each of 5 attempts (Bonferroni)" in message
    assert "A star marks a difference that also holds at 99.8 %" in message


@pytest.mark.parametrize(("attempts", "pairs_of_each"), [(1, 5), long(5, 3), (5, 5)])
def test_equal_configurations_are_crowned_in_at_most_5_per_cent_of_campaigns(attempts: int, pairs_of_each: int) -> None:
    scenario = Scenario("no drift", attempts, pairs_of_each)
    crowned, starred = rates(kept_sources(), scenario, 200, np.random.default_rng(1))
    assert crowned / 200 <= 0.05
    assert starred / 200 <= 0.01


def test_on_a_machine_that_becomes_faster_only_the_order_keeps_equal_configurations_apart() -> None:
    def crowned(*, alternate: bool) -> int:
        scenario = Scenario("faster and faster", drift=-0.7, alternate=alternate)
        return rates([quietest(kept_sources())], scenario, 100, np.random.default_rng(1))[0]

    assert crowned(alternate=False) > 10
    assert crowned(alternate=True) <= 5


def test_a_pair_counts_only_whole(tmp_path: Path) -> None:
    pairs(tmp_path, "fast", FASTER)
    a_repeat(tmp_path, "fast", 4, 10.0, role="baseline", end="failed")
    a_repeat(tmp_path, "fast", 4, 1.0)
    assert len(entry_of(leaderboard_of(tmp_path), "fast").ratios) == 3


# --- what does not count -----------------------------------------------------------------------------------------


CONTEST = Contest(
    name="rules",
    source="tests",
    model="tiny",
    data="random",
    nodes=1,
    ranks_per_node=1,
    wall_time_min=1,
    samples=64,
    epochs=1,
    sequence_length=64,
)


def contested(**contest: Any) -> Run:
    return replace(a_run(steps=4), contest=replace(CONTEST, **contest))


def judged_beside(tmp_path: Path, like: Run | None = None, **trial: Any) -> str:
    """Return why a trial does not count beside three repeats of the baseline; empty if it counts."""
    for number in range(1, 4):
        a_repeat(tmp_path, "baseline", number, 10.0, role="baseline", run=like)
    a_repeat(tmp_path, "tried", 1, 5.0, **trial)
    entry = entry_of(leaderboard_of(tmp_path), "tried")
    assert (entry.verdict is Verdict.invalid) == bool(entry.reasons)
    return reasons(entry)


def test_a_recorded_batch_that_differs_from_the_configuration_is_seen(tmp_path: Path) -> None:
    message = judged_beside(tmp_path, samples=32)
    assert message == "other work: 32 samples per optimizer step, the baseline 16; 128 samples, the baseline 64"


def test_a_shortened_epoch_is_seen(tmp_path: Path) -> None:
    message = judged_beside(tmp_path, losses=(5.0, 3.0, 2.0))
    assert message == "trained on less: 48 samples, the baseline 64; 3,072 tokens, the baseline 4,096"


def test_tokens_are_compared_without_padding(tmp_path: Path) -> None:
    assert judged_beside(tmp_path, tokens=1023) == "other work: 4,092 tokens, the baseline 4,096"


def test_samples_that_were_not_recorded_are_not_taken_for_the_baselines(tmp_path: Path) -> None:
    assert judged_beside(tmp_path, samples=None).startswith(
        "other work: an unrecorded number of samples per optimizer step, the baseline 16; "
    )


@pytest.mark.parametrize("losses", [(5.0, 4.0, 3.0, 2.3), (5.0, 4.0, 2.7, 2.0), (9.0, 9.0, 9.0, 9.0)])
def test_a_loss_outside_the_band_of_the_rules_does_not_count(losses: Sequence[float], tmp_path: Path) -> None:
    mean = sum(losses[-2:]) / 2
    assert judged_beside(tmp_path, losses=losses) == (
        f"loss {mean:.3f} is outside the baseline's 2.375 to 2.625 (mean of the last 2 steps)"
    )


def test_a_loss_within_the_band_counts(tmp_path: Path) -> None:
    assert judged_beside(tmp_path, losses=(5.0, 4.0, 3.1, 2.1)) == ""


def test_the_band_is_as_wide_as_the_baselines_repeats_differ(tmp_path: Path) -> None:
    for number, last in enumerate((1.6, 2.0, 2.4), start=1):
        a_repeat(tmp_path, "baseline", number, 10.0, role="baseline", losses=(5.0, 4.0, 3.0, last))
    a_repeat(tmp_path, "tried", 1, 5.0, losses=(5.0, 4.0, 3.0, 3.0))
    board = leaderboard_of(tmp_path)
    # Mean 2.5, standard deviation 0.2: three of them are more than 5 % of the mean.
    assert board.baseline is not None
    assert board.baseline.band == pytest.approx((1.9, 3.1))
    assert entry_of(board, "tried").verdict is Verdict.too_few


def test_a_diverged_run_without_a_finite_loss_does_not_count(tmp_path: Path) -> None:
    for number in range(1, 4):
        a_repeat(tmp_path, "baseline", number, 10.0, role="baseline")
    directory = a_repeat(tmp_path, "tried", 1, 5.0)
    step(directory, 4, loss=None, samples=16)
    assert reasons(entry_of(leaderboard_of(tmp_path), "tried")) == "the loss of step 4 is absent or not a finite number"


def test_a_run_that_did_not_finish_does_not_count(tmp_path: Path) -> None:
    assert judged_beside(tmp_path, end="stopped", losses=(5.0, 4.0)).startswith("stopped at step 2")


def test_a_run_that_was_started_twice_has_no_time_of_its_own(tmp_path: Path) -> None:
    assert judged_beside(tmp_path, starts=2) == "was started 2 times, so its time is not that of one run"


def test_other_models_lengths_and_data_are_another_task(tmp_path: Path) -> None:
    other = with_job(a_run(steps=4), sequence_length=32)
    message = judged_beside(tmp_path, run=replace(other, model=replace(other.model, layers=1)), data="other tokens")
    assert message == (
        "another task: model.layers 1, the baseline has 2; data other tokens, the baseline has random tokens; "
        "job.sequence_length 32, the baseline has 64"
    )


def test_more_ranks_are_another_task(tmp_path: Path) -> None:
    message = judged_beside(tmp_path, run=a_run(steps=4, ranks_per_node=2))
    assert message == "another task: ranks 2, the baseline has 1"


def test_rules_that_were_changed_are_another_task(tmp_path: Path) -> None:
    message = judged_beside(tmp_path, like=contested(), run=contested(loss_tolerance=0.5))
    assert message == "another task: contest.loss_tolerance 0.5, the baseline has 0.05"


def test_a_run_beyond_the_time_limit_does_not_count(tmp_path: Path) -> None:
    for number in range(1, 4):
        a_repeat(tmp_path, "baseline", number, 10.0, role="baseline", run=contested())
    directory = a_repeat(tmp_path, "tried", 1, 5.0, run=contested(), end=None)
    ended(directory, "finished", step=4, total_time_s=61.0)
    assert reasons(entry_of(leaderboard_of(tmp_path), "tried")) == "took 61.00 s, the contest's limit is 1 min"


def test_a_fault_of_one_repeat_names_that_repeat(tmp_path: Path) -> None:
    pairs(tmp_path, "tried", FASTER)
    a_repeat(tmp_path, "tried", 4, 5.0, samples=8)
    assert reasons(entry_of(leaderboard_of(tmp_path), "tried")).startswith("repeat 4: trained on less: 8 samples per")


def test_without_a_finished_baseline_nothing_counts(tmp_path: Path) -> None:
    a_repeat(tmp_path, "baseline", 1, 10.0, role="baseline", end="failed")
    a_repeat(tmp_path, "tried", 1, 5.0)
    board = leaderboard_of(tmp_path)
    assert reasons(entry_of(board, "tried")) == "no repeat of the baseline has finished"
    assert "tried" in shown(board)


def test_total_time_is_compared_where_the_rules_state_it(tmp_path: Path) -> None:
    for role in ("baseline", "attempt"):
        directory = a_repeat(tmp_path, "tried", 1, 5.0, role=role, run=contested(counted=Counted.total), end=None)
        ended(directory, "finished", step=4, total_time_s=30.0 if role == "baseline" else 20.0)
    assert entry_of(leaderboard_of(tmp_path), "tried").ratios == pytest.approx([1.5])


# --- how it is shown ---------------------------------------------------------------------------------------------


def a_mixed_campaign(path: Path) -> Leaderboard:
    for number in range(1, 4):
        a_repeat(path, "baseline", number, 10.0 + number / 10, role="baseline")
    pairs(path, "fast", FASTER, run=with_job(a_run(steps=4), micro_batch_size=2))
    pairs(path, "again", NOISE)
    pairs(path, "=<b>hot", ((10.0, 9.0),), losses=(5.0, 9.0, 9.0, 9.0))
    return leaderboard_of(path)


def test_a_leaderboard_fits_80_columns_and_lists_the_changes(tmp_path: Path) -> None:
    text = shown(a_mixed_campaign(tmp_path))
    assert max(map(len, text.splitlines())) <= 80
    assert "faster" in text
    assert "Not ranked, because they do not count:\n  =<b>hot: loss 9.000 is outside" in text
    assert "  fast: job.micro_batch_size 1 → 2\n" in text
    assert "  again: job.micro_batch_size 2 → 1\n" in text


def test_the_report_of_a_campaign_has_the_board_as_text_and_a_table_for_spreadsheets(tmp_path: Path) -> None:
    a_mixed_campaign(tmp_path)
    assert main(["report", str(tmp_path)]) == 0
    html = (tmp_path / "report.html").read_text()
    assert f"Leaderboard of {tmp_path.name}" in Page(html).text
    assert "<b>hot" not in html
    assert f"## Ledger of {tmp_path.name}" in (tmp_path / "report.md").read_text()
    rows = list(csv.DictReader((tmp_path / "leaderboard.csv").read_text().splitlines()))
    assert [(row["attempt"], row["verdict"], row["rank"], row["samples_per_step"]) for row in rows] == [
        ("fast", "faster", "1", "16.0"),
        ("again", "tie", "2", "16.0"),
        ("'=<b>hot", "invalid", "", "16.0"),
    ]
    assert rows[1]["changed_against_baseline"] == "nothing"
    # Its output is not a log of another program.
    assert main(["report", str(tmp_path)]) == 0
    assert "no parser knows" not in (tmp_path / "report.md").read_text()


def test_a_rehearsal_and_changed_rules_come_first(tmp_path: Path) -> None:
    run = contested(model="llama2_7b")
    directory = a_repeat(tmp_path, "baseline", 1, 10.0, role="baseline", run=run)
    known = json.loads(directory.provenance.read_text())
    directory.provenance.write_text(json.dumps(known | {"overrides": ["model=tiny", "contest.samples=64"]}))
    message = lead(leaderboard_of(tmp_path))
    assert message.startswith(
        "Rehearsal, not the contest (model tiny, not llama2_7b; contest.samples=64). CPU: campaign "
    )


def test_a_folder_without_trials_has_no_leaderboard(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = prepared(tmp_path, a_run())
    event(directory, "started")
    assert main(["leaderboard", str(tmp_path)]) == 2
    assert (
        "is not a campaign: no run in it was started by slurmscale attempt. To begin one, run:"
        in capsys.readouterr().err
    )
    assert main(["leaderboard", str(tmp_path / "nowhere")]) == 2
    assert "nowhere. Pass the directory of a campaign, such as runs/apac_hpc_ai_2024." in capsys.readouterr().err


# --- refusals, and the order of submission -------------------------------------------------------


@pytest.fixture
def campaign(tmp_path: Path) -> Path:
    """A campaign whose baseline was prepared and not run."""
    path = tmp_path / "my campaign"
    rules = ["contest.nodes=1", "contest.ranks_per_node=1", "contest.samples=16", "contest.sequence_length=32"]
    small = ["job.micro_batch_size=1", "scaling.global_batch_size=8", f"data.cache_dir={tmp_path}/cache"]
    assert main(["attempt", "baseline", *EXPERIMENT, *rules, *small, "launcher=dry", "--campaign", str(path)]) == 0
    return path


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["x", "job.micro_batch=2"], "job.micro_batch is not a configuration key. Did you mean job.micro_batch_size"),
        (["x", "nodes=2"], "nodes=2 is not the contest's. Set nodes=1. The rule is contest.nodes=1"),
        (["x", "ranks_per_node=4"], "ranks_per_node=4 is not the contest's. Set ranks_per_node=1."),
        (["x", "wall_time_min=121"], "wall_time_min=121 is more than the contest gives. Set wall_time_min=120 or"),
        (["x", "data.max_samples=8"], "data.max_samples=8 is not the contest's. Set"),
        (["x", "data.held_out_samples=4"], "data.held_out_samples=4 shortens the epoch. Set"),
        (["x", "job.epochs=null", "job.steps=1"], "job.steps=1 is not the contest's length of training. Set"),
        (["x", "job.epochs=2"], "job.epochs=2 is not the contest's. Set job.epochs=1"),
        (["x", "job.sequence_length=16"], "job.sequence_length=16 is not the contest's. Set job.sequence_length=32"),
        (["x", "job=finetune_lora"], "job.lora does not count. Set job.lora=null."),
        (["x", "model.layers=2"], "model.layers=2, the baseline has 4: an attempt keeps model, data and ranks."),
        (["x", "data.bpe_vocab_size=512"], "data.bpe_vocab_size=512, the baseline has 2048: an attempt keeps"),
        (["x", "contest.samples=8"], "contest.samples=8: the rules are those of the baseline, and an attempt cannot"),
        (["x", "sweep=mine"], "sweep=mine: the campaign sets sweep for the runs of an attempt. Leave sweep out."),
        (["job.micro_batch_size=2"], "is an override, but the name comes first: slurmscale attempt NAME job."),
        (["a b"], "'a b' cannot be the name of an attempt. Use letters, digits and ._+-"),
        (["x", "--repeats", "0"], "--repeats 0 is not a positive number. Use --repeats 3 or more."),
        (["baseline", "model=tiny", "launcher=dry"], "has a baseline of other overrides (+experiment=apac"),
    ],
)  # fmt: skip
def test_a_broken_rule_is_refused_with_its_remedy_and_nothing_is_prepared(
    arguments: list[str], expected: str, campaign: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(campaign.iterdir())
    assert main(["attempt", *arguments, "--campaign", str(campaign)]) == 2
    assert expected in capsys.readouterr().err
    assert sorted(campaign.iterdir()) == before


def test_a_trial_keeps_its_name_and_gets_more_repeats_by_the_same_words(
    campaign: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = ["attempt", "mbs2", "job.micro_batch_size=2", "--repeats", "1", "--campaign", str(campaign)]
    assert main(again) == main(again) == 0
    assert sorted(path.parent.name for path in campaign.glob("mbs2*/config.yaml")) == [
        "mbs2-baseline-r1", "mbs2-baseline-r2", "mbs2-r1", "mbs2-r2",
    ]  # fmt: skip
    assert main(["attempt", "mbs2", "job.micro_batch_size=4", "--campaign", str(campaign)]) == 2
    assert "For more repeats of it, run slurmscale attempt mbs2 job.micro_batch_size=2;" in capsys.readouterr().err
    # The attempts were only shown, so there is nothing to judge.
    assert leaderboards(read_runs([campaign])) == []


@pytest.mark.parametrize("launcher", ["slurm", "pilot"])
def test_a_trial_takes_turns_with_the_baseline_one_run_at_a_time_on_slurm_too(launcher: str, campaign: Path) -> None:
    cluster = ["cluster=generic_slurm"] if launcher == "slurm" else []
    size = ["launcher.pilot_nodes=1", "launcher.pilot_wall_time_min=200"] if launcher == "pilot" else []
    SweepDir(campaign).submissions.touch()  # it is no preview
    points = trial_points("ddp", ["parallelism=ddp", f"launcher={launcher}", *size, *cluster], opened(campaign), 2)
    assert [point.run.name for point in points] == ["ddp-baseline-r1", "ddp-r1", "ddp-r2", "ddp-baseline-r2"]
    assert [point.run.parallelism.name for point in points] == ["fsdp_full", "ddp", "ddp", "fsdp_full"]
    assert {(point.run.launcher.kind, point.run.launcher.max_running) for point in points} == {
        (LauncherKind[launcher], 1)
    }


def test_the_trials_of_a_file_take_turns_with_the_baseline_and_with_each_other(tmp_path: Path) -> None:
    file, path = tmp_path / "attempts.yaml", tmp_path / "campaign"
    base = [*TINY, f"data.cache_dir={tmp_path}/cache"]
    file.write_text(f"baseline: {json.dumps(base)}\nddp: [parallelism=ddp]\nagain:\n")
    points = campaign_points(read_trials(file), ["launcher=dry"], path, 2)
    assert [point.run.name for point in points] == [
        "baseline-r1", "baseline-r2",
        "ddp-baseline-r1", "ddp-r1", "again-baseline-r1", "again-r1",
        "ddp-r2", "ddp-baseline-r2", "again-r2", "again-baseline-r2",
    ]  # fmt: skip
    assert {point.run.launcher.kind for point in points} == {LauncherKind.dry}
    again = ["campaign", str(file), "launcher=dry", "--campaign", str(path), "--repeats", "1"]
    assert main(again) == main(again) == 0
    assert sorted(each.name for each in path.glob("ddp-r*")) == ["ddp-r1", "ddp-r2"]
    # The launcher is not one of its changes: a later attempt may have another one.
    assert opened(path).base == base


def test_a_proxy_shortens_all_pairs_of_a_file_and_not_its_baseline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, path = tmp_path / "attempts.yaml", tmp_path / "campaign"
    base = ["model=tiny", "data=random", "job.steps=4", "ranks_per_node=2"]
    file.write_text(f"baseline: {json.dumps(base)}\nddp: [parallelism=fsdp_full]\n")
    words = ["campaign", str(file), "launcher=dry", "--campaign", str(path), "--repeats", "1", "--proxy"]
    assert main([*words, "job.steps=2"]) == 0
    names = ("baseline-r1", "ddp-baseline-r1", "ddp-r1")
    assert [load_run(path / name / "config.yaml").job.steps for name in names] == [4, 2, 2]
    assert provenance_of(RunDir(path / "ddp-r1"))["attempt"]["proxy"] == {"overrides": ["job.steps=2"], "biases": {}}
    capsys.readouterr()
    assert main([*words, "launcher=local"]) == 2
    assert "--proxy launcher=local does not shorten runs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "arguments", "expected"),
    [
        ("x: job.micro_batch_size=2\n", [], "the overrides of x are 'job.micro_batch_size=2', not a list of texts."),
        (
            "x: [{job.micro_batch_size: 2}]\n",
            [],
            "not a list of texts. Write x: [key=value, ...], or x: for no change.",
        ),
        ("x: []\nx: [parallelism=ddp]\n", [], "attempts.yaml is not YAML: while constructing a mapping"),
        ("- parallelism=ddp\n", [], "attempts.yaml contains no attempts. Write a name with its overrides a line: ddp:"),
        ("", [], "attempts.yaml contains no attempts."),
        ("x: [}\n", [], "attempts.yaml is not YAML: while parsing"),
        ("a b:\n", [], "'a b' cannot be the name of an attempt"),
        ("x: [launcher=dry]\n", [], "launcher=dry of x belongs to the whole campaign, not to one attempt"),
        ("x:\n", ["job.micro_batch_size=2"], "job.micro_batch_size=2 belongs to an attempt: write it into"),
    ],
)
def test_a_file_without_trials_is_refused_with_its_form(
    text: str, arguments: list[str], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "attempts.yaml").write_text(text)
    assert main(["campaign", str(tmp_path / "attempts.yaml"), *arguments]) == 2
    assert expected in capsys.readouterr().err


def test_a_file_with_one_trial_that_breaks_a_rule_prepares_nothing(
    campaign: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, before = campaign.parent / "attempts.yaml", sorted(campaign.iterdir())
    file.write_text("fine: [job.micro_batch_size=2]\nx: [nodes=2]\n")
    assert main(["campaign", str(file), "--campaign", str(campaign)]) == 2
    assert "nodes=2 is not the contest's. Set nodes=1." in capsys.readouterr().err
    assert sorted(campaign.iterdir()) == before


def test_a_file_without_a_baseline_is_refused_with_the_command_that_begins_a_campaign(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "attempts.yaml"
    file.write_text("ddp: [parallelism=ddp]\n")
    assert main(["campaign", str(file), "--campaign", str(tmp_path / "new")]) == 2
    assert "or begin a file of attempts with baseline: [OVERRIDES]." in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_a_file_of_trials_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["campaign", str(tmp_path / "none.yaml")]) == 2
    assert "none.yaml cannot be read: No such file or directory" in capsys.readouterr().err


def test_the_only_campaign_below_runs_is_found_and_of_several_one_must_be_named(
    campaign: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(campaign.parent)
    assert main(["attempt", "x"]) == 2
    assert "There is no campaign in" in capsys.readouterr().err
    (campaign.parent / "runs").mkdir()
    campaign.rename("runs/first")
    assert opened(None).sweep.path == campaign.parent / "runs/first"
    made = baseline_points([*EXPERIMENT, "contest.samples=256", "launcher=dry"], None, 1)
    assert made[0].run.sweep == "apac_hpc_ai_2024"
    second = campaign.parent / "runs/second/baseline-r1"
    second.mkdir(parents=True)
    (second / "provenance.json").write_text("{}")
    assert main(["attempt", "x"]) == 2
    assert "There are 2 campaigns in" in (message := capsys.readouterr().err)
    assert "--campaign runs/first or --campaign runs/second" in message


@pytest.mark.parametrize("named", [["runs_dir=there"], ["runs_dir=there", "sweep=mine"]])
def test_runs_dir_and_sweep_name_the_campaign_of_an_attempt_as_they_do_for_its_baseline(
    named: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    preview = ["launcher=dry", "--repeats", "1"]
    begun = ["data=random", "job.steps=6", "ranks_per_node=1", "parallelism=single", "runs_dir=there", "sweep=mine"]
    assert main(["attempt", "baseline", *begun, *preview]) == 0
    assert main(["attempt", "mbs2", "job.micro_batch_size=2", *named, *preview]) == 0
    assert (tmp_path / "there/mine/mbs2-r1/config.yaml").exists()
    assert not (tmp_path / "runs").exists()


def test_the_experiment_is_the_task_of_the_contest() -> None:
    run = compose(["+experiment=apac_hpc_ai_2024", "data.path=/data"], multirun=False)[0].run
    assert run == compose(["experiment=apac_hpc_ai_2024", "data.path=/data"], multirun=False)[0].run
    assert (run.model.name, run.data.name, run.data.max_samples) == ("llama2_7b", "alpaca", 1024)
    assert (run.nodes, run.ranks, run.job.epochs, run.job.sequence_length) == (2, 8, 1, 512)
    # As in the organisers' log: 4 steps make the epoch, with micro-batches of 32 on 8 ranks.
    assert 1024 / run.global_batch_size == 4
    assert (run.job.micro_batch_size * run.ranks, run.job.lora) == (256, None)


def test_thresholds_that_judge_nothing_are_refused() -> None:
    wrong = {
        "contest.loss_steps=0": "loss_steps=0 is not a positive",
        "contest.loss_tolerance=-1": "loss_tolerance=-1 is negative",
    }
    for override, expected in wrong.items():
        with pytest.raises(ConfigError, match=expected):
            compose([*EXPERIMENT, override], multirun=False)


def test_a_value_of_a_section_that_is_not_set_is_refused() -> None:
    for section in ("contest", "job.lora"):
        key = "nodes" if section == "contest" else "rank"
        with pytest.raises(ConfigError, match=rf"{section}.{key}=1: {section} is null, so nothing in it can be"):
            compose([f"{section}.{key}=1"], multirun=False)
        with pytest.raises(ConfigError, match=rf"{section}={{{key}:1}}: {section} is null, so nothing in it can be"):
            compose([f"{section}={{{key}:1}}"], multirun=False)
        # A key that no file has gets a plus, which Hydra applies itself.
        for added in (f"+{section}.{key}=1", f"+{section}={{{key}:1}}"):
            with pytest.raises(ConfigError, match=rf"{re.escape(added)}: {section} is null, so nothing in it can be"):
                compose([added], multirun=False)


# --- a real campaign ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Leaderboard:
    """Baseline and trials that really trained, one repeat each, as their scripts would have started them."""
    path = tmp_path_factory.mktemp("real") / "campaign"
    common = ["--campaign", str(path), "--repeats", "1"]
    base = [*TINY, "launcher=script", f"data.cache_dir={path.parent}/cache"]
    trials = {
        "mbs2": ["job.micro_batch_size=2"],
        "hot": ["job.learning_rate=30"],
        "gbs8": ["scaling.global_batch_size=8"],
        "short": ["job.epochs=null", "job.steps=4"],
    }
    assert main(["attempt", "baseline", *base, *common]) == 0
    for name, changes in trials.items():
        assert main(["attempt", name, *changes, *common]) == 0
    for run in ("baseline-r1", "mbs2-baseline-r1", *(f"{name}-r1" for name in trials)):
        # Forked from this process, a rank executes the checkout and not the snapshot.
        RunDir(path / run).code.unlink()
        assert train(RunDir(path / run)) == [0], run
    return leaderboard_of(path)


def test_only_the_real_run_that_did_the_work_of_the_baseline_may_be_ranked(real: Leaderboard) -> None:
    assert {entry.trial.name: entry.verdict for entry in real.entries} == {
        "mbs2": Verdict.too_few,
        "hot": Verdict.invalid,
        "gbs8": Verdict.invalid,
        "short": Verdict.invalid,
    }
    assert len(entry_of(real, "mbs2").ratios) == 1


@pytest.mark.slow
@pytest.mark.long
def test_a_diverged_real_run_is_caught_by_its_loss(real: Leaderboard) -> None:
    message = reasons(entry_of(real, "hot"))
    assert message.startswith("loss ")
    assert "is outside the baseline's" in message


def test_a_real_run_with_another_batch_is_caught_by_the_record_of_its_steps(real: Leaderboard) -> None:
    assert "8 samples per optimizer step, the baseline 4" in reasons(entry_of(real, "gbs8"))


@pytest.mark.slow
@pytest.mark.long
def test_a_real_run_with_a_shortened_epoch_is_caught_by_its_samples(real: Leaderboard) -> None:
    assert "trained on less: 16 samples, the baseline 24" in reasons(entry_of(real, "short"))


@pytest.mark.long
@pytest.mark.slow
def test_started_here_the_runs_of_a_trial_go_one_after_the_other_in_turns(tmp_path: Path) -> None:
    path = tmp_path / "campaign"
    common = ["--campaign", str(path), "--repeats", "1", "--wait"]
    for arguments in (["baseline", *TINY, f"data.cache_dir={tmp_path}/cache"], ["again"]):
        command = [sys.executable, "-m", "jobs.cli", "attempt", *arguments, *common]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "again        —" in done.stdout
    launched = [record["run"] for record in read_records(SweepDir(path).submissions) if record["event"] == "launched"]
    assert launched == ["baseline-r1", "again-baseline-r1", "again-r1"]
    assert load_run(path / "again-r1/config.yaml").repeat == 1


# --- changed code ----------------------------------------------------------------------------------------------


def edited_checkout(where: Path, file: str, old: str, new: str) -> Path:
    """A copy of this program with one change."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, where / package, ignore=shutil.ignore_patterns("__pycache__"))
    text = (where / file).read_text()
    assert text.count(old) == 1
    (where / file).write_text(text.replace(old, new))
    return where


def typed_in(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The output of a command of a checkout."""
    command = [sys.executable, "-m", "jobs.cli", *arguments]
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    return subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.long
def test_a_trial_of_changed_code_runs_beside_the_code_of_the_baseline(tmp_path: Path) -> None:
    path = tmp_path / "campaign"
    how = ["--campaign", str(path), "--repeats", "1", "--wait"]
    done = typed_in(ROOT, "attempt", "baseline", *TINY, f"data.cache_dir={tmp_path}/cache", *how)
    assert done.returncode == 0, done.stdout + done.stderr
    edit = ("jobs/engines/native/trainer.py", "self.model.kernels.name", '"mine"')
    done = typed_in(edited_checkout(tmp_path / "edited", *edit), "attempt", "mine", "--changed-code", *how)
    assert done.returncode == 0, done.stdout + done.stderr
    kernels = {run.name: run.started["kernels"] for run in read_runs([path])}
    assert kernels == {"baseline-r1": "torch", "mine-baseline-r1": "torch", "mine-r1": "mine"}
    codes = {run.name: run.provenance["code_digest"] for run in read_runs([path])}
    assert codes["baseline-r1"] == codes["mine-baseline-r1"] != codes["mine-r1"]
    assert f"mine: code {codes['baseline-r1']} → {codes['mine-r1']}" in " ".join(done.stdout.split())


@pytest.mark.slow
def test_changed_code_is_reported_and_refused_if_it_measures_nothing(campaign: Path, tmp_path: Path) -> None:
    def typed(checkout: Path, *arguments: str) -> str:
        done = typed_in(checkout, "attempt", *arguments, "--repeats", "1", "--campaign", str(campaign))
        return " ".join((done.stdout + done.stderr).split())

    assert "the code equals that of the baseline, " in typed(ROOT, "x", "--changed-code")
    assert "--changed-code compares an attempt with a baseline that ran before" in typed(
        ROOT, "baseline", "--changed-code"
    )
    comment = edited_checkout(tmp_path / "a", "jobs/run.py", "from __future__", "# Mine.\nfrom __future__")
    assert "both runs of each pair use the present code. To measure the change itself, add --changed-code." in typed(
        comment, "x", "launcher=dry"
    )
    assert re.search(r"ran code \w+ and its baseline code \w+, but", typed(comment, "x", "--changed-code"))
    assert not (campaign / "x-r2").exists()
    schema = edited_checkout(tmp_path / "b", "jobs/schema.py", "class OptimizerLoop(", "# Mine.\nclass OptimizerLoop(")
    assert "jobs/schema.py has changed too" in typed(schema, "y", "--changed-code")
    (campaign / "baseline-r1/code").resolve().rename(tmp_path / "gone")
    assert "the code of the baseline, is gone. Leave --changed-code out" in typed(comment, "y", "--changed-code")
    assert not (campaign / "y-r1").exists()


@pytest.mark.slow
@pytest.mark.slurm
@pytest.mark.usefixtures("empty_queue")
@pytest.mark.long
def test_in_a_pilot_a_whole_campaign_shares_one_allocation_and_its_nodes(tmp_path: Path) -> None:
    file, path = tmp_path / "attempts.yaml", tmp_path / "campaign"
    size = ["launcher.pilot_nodes=2", "launcher.pilot_wall_time_min=20"]
    base = [*TINY, "cluster=generic_slurm", "wall_time_min=5", "nodes=2", f"data.cache_dir={tmp_path}/cache"]
    file.write_text(f"baseline: {json.dumps(base)}\nagain:\n")
    how = ["--campaign", str(path), "--repeats", "1", "--wait"]
    assert main(["campaign", str(file), "launcher=pilot", *size, *how]) == 0
    records = [record for record in read_records(SweepDir(path).submissions) if record["event"] == "launched"]
    assert [record["run"] for record in records] == ["baseline-r1", "again-baseline-r1", "again-r1"]
    assert len({record["place"] for record in records}) == 1
    assert len({record["log_id"].split("-")[0] for record in records}) == 1
    assert entry_of(leaderboard_of(path), "again").verdict is Verdict.too_few


def test_figures_and_tables_of_a_campaign_name_its_attempts(tmp_path: Path) -> None:
    a_mixed_campaign(tmp_path)
    content = build(read([tmp_path]))
    labels = [group.label for group in content.digest.groups]
    assert labels == ["baseline, =<b>hot, again", "fast"]
    (throughput,) = [figure for figure in content.figures if figure.name == "tokens_per_s"]
    assert throughput.plot is not None
    assert {trace.name for trace in throughput.plot.data} == {"baseline, =&lt;b&gt;hot, again", "fast"}


def test_the_leaderboard_is_a_picture_of_ratios_with_intervals_beside_a_line_at_1(tmp_path: Path) -> None:
    board = a_mixed_campaign(tmp_path)
    assert main(["report", str(tmp_path), "--format", "svg"]) == 0
    plot = Page((tmp_path / "report.html").read_text()).plots()["leaderboard-1"]
    assert plot["layout"]["yaxis"]["ticktext"] == ["fast *", "again"]
    traces = {trace["name"]: trace for trace in plot["data"]}
    assert set(traces) == {"faster", "tie", "baseline"}, "an attempt that does not count is not drawn"
    assert traces["baseline"]["x"] == [1, 1]
    fast = entry_of(board, "fast")
    assert fast.ratio is not None
    assert fast.interval is not None
    assert traces["faster"]["marker"]["symbol"] == ["star"]
    assert traces["faster"]["x"] == [fast.ratio.middle]
    (above,) = traces["faster"]["error_x"]["array"]
    assert abs(fast.ratio.middle + above - fast.interval[1]) < 1e-9
    assert (tmp_path / "figures" / "leaderboard-1.svg").exists()


def test_neighbours_share_the_rank_of_the_first_that_they_do_not_differ_from() -> None:
    ratios = {"c": 1.5, "a": 2.0, "d": 1.501, "b": 1.999, "e": 1.2, "tie": 1.0, "slow": 0.5, "slower": 0.3}
    verdicts = {"tie": Verdict.tie, "slow": Verdict.slower, "slower": Verdict.slower}
    entries = [
        Entry(Trial(name, {}), verdicts.get(name, Verdict.faster), [ratio * off for off in (0.99, 1.0, 1.01, 1.0)])
        for name, ratio in ratios.items()
    ]
    entries.append(Entry(Trial("broken", {}), Verdict.invalid))
    found = [(entry.trial.name, entry.rank) for entry in ranked(entries)]
    assert found == [
        ("a", 1), ("b", 1), ("d", 3), ("c", 3), ("e", 5), ("tie", 6), ("slow", 8), ("slower", 9), ("broken", None)
    ]  # fmt: skip
