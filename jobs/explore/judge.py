"""The end of a tuning: the best in pairs with the baseline, and its experiment file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import yaml

from analysis.compare.campaign import Entry, Verdict, leaderboards
from analysis.load.discover import read_runs
from analysis.report.leaderboard_text import verdict_words
from jobs.explore.campaign.campaign import Campaign, repeats_on_disk
from jobs.explore.campaign.trial import baseline_points, trial_points
from jobs.explore.folder import BEST, TuningFolder
from jobs.explore.space import Candidate, Space
from jobs.frozen import dump_run
from jobs.output import own_directory, write_file
from jobs.plan.compose import Point
from jobs.rundir import BASELINE

LONGEST_NAME = 80
# Keys that a submission of the best sets itself. An experiment goes before launcher=NAME of the command line.
NOT_CHOSEN = ("name", "runs_dir", "repeat", "launcher", "tune")


def attempt_name(candidate: Candidate) -> str:
    """Return the name of a candidate as an attempt of the confirming campaign."""
    return candidate.name[:LONGEST_NAME]


def pairs_to_run(space: Space, best: Candidate) -> list[Point]:
    """Return the runs of the confirming campaign that are not on disk: the baseline once, then the missing pairs.

    They have the steps of the longest rung; under the rules of a contest they are whole.
    """
    sweep = space.folder.confirmation
    base = space.baseline.point
    is_whole = base.run.contest is not None or space.has_whole_runs
    steps = [] if is_whole else ["job.epochs=null", f"job.steps={space.settings.steps[-1]}"]
    overrides = [*base.overrides, *steps]
    begun = repeats_on_disk(sweep, BASELINE)
    first = [] if begun else baseline_points(overrides, sweep.path, 1)
    changes = [own for own, other in zip(best.choices, space.baseline.choices, strict=True) if own != other]
    missing = space.settings.pairs - repeats_on_disk(sweep, attempt_name(best))
    paired = trial_points(attempt_name(best), changes, Campaign(sweep, overrides), missing) if missing > 0 else []
    return [*first, *paired]


def entry_of(folder: TuningFolder, best: Candidate) -> Entry | None:
    """Return the campaign's judgement on the best; None if there is none."""
    if not folder.confirmation.runs():
        return None
    found = [each for board in leaderboards(read_runs([folder.confirmation.path])) for each in board.entries]
    return next((each for each in found if each.trial.name == attempt_name(best)), None)


def verdict_of(entry: Entry) -> str:
    """Return the campaign's judgement as text: `faster: ratio 1.08 (1.05 to 1.11) over 3 pairs`."""
    words = verdict_words(entry)
    if entry.ratio is None or entry.verdict is Verdict.invalid:
        return words
    interval = f" ({entry.interval[0]:.3f} to {entry.interval[1]:.3f})" if entry.interval else ""
    return f"{words}: ratio {entry.ratio.middle:.3f}{interval} over {len(entry.ratios)} pairs"


def write_best(space: Space, chosen: Candidate, note: str) -> Path:
    """Write the experiment file of a candidate, with all of its values but the launcher's, and return its path."""
    run = replace(chosen.point.run, sweep=BEST)
    values = {key: value for key, value in yaml.safe_load(dump_run(run)).items() if key not in NOT_CHOSEN}
    head = [
        "# @package _global_",
        f"# Best of {len(space.candidates)} configurations, found by slurmscale tune: {' '.join(chosen.choices)}",
        f"# {note}",
    ]
    own_directory(space.folder.best.parent)
    text = "\n".join(line.replace("\n", " ") for line in head)
    write_file(space.folder.best, f"{text}\n{yaml.safe_dump(values, sort_keys=False, allow_unicode=True)}")
    return space.folder.best
