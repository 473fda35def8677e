"""`slurmscale rerun PACKAGE`: repeat the attempt of a package here, and judge whether its claim holds."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from analysis.compare.campaign import Entry, Verdict
from analysis.report.leaderboard_text import verdict_words
from analysis.untrusted import as_list, as_number
from jobs.answers import RerunAnswer
from jobs.console import shell_line
from jobs.errors import ConfigError, RunDirError
from jobs.explore.campaign.campaign_file import read_trials
from jobs.explore.campaign.package import ATTEMPTS, CLAIM, LONGEST_FILE_BYTES, SUMS, board_of
from jobs.explore.campaign.trial import submit_trials
from jobs.files import read_bytes, read_object, read_text
from jobs.rundir import BASELINE

NOT_REPRODUCED = 1


def rerun(package: Path, overrides: list[str], *, repeats: int, trust: bool) -> tuple[RerunAnswer, int]:
    """Submit baseline and attempt of a package, wait for them, print whether the claim holds, and return it.

    The exit code is 0 if it holds, else 1. Raise ConfigError for a package that is incomplete or changed, or without
    `trust`.
    """
    check_sums(package)
    claim = read_object(package / CLAIM)
    trials = read_trials(package / ATTEMPTS)
    if not trust:
        lines = "".join(f"\n    {name}: {shell_line(changes)}" for name, changes in trials.items())
        raise ConfigError(
            f"{package} was made by somebody else, and its overrides and the files in {package / 'site'} decide which "
            f"commands run here:{lines}\nRead them, then add --trust."
        )
    if (package / "site").is_dir():
        os.environ["SLURMSCALE_SITE"] = str((package / "site").absolute())
    place = Path("runs") / f"rerun-{package.resolve().name}"
    code, started = submit_trials(
        package / ATTEMPTS, overrides, campaign=place, repeats=repeats, changed_code=False, wait=True
    )
    if started is None or code:
        return RerunAnswer(None, "not judged: the runs did not finish", str(started) if started else None), code
    entry = next((each for each in board_of(started).entries if each.trial.name != BASELINE), None)
    if entry is None:
        raise RunDirError(f"{started} has no attempt that ended. See slurmscale status {started}")
    words, holds = judged(claim, entry)
    print(words)
    return RerunAnswer(holds, words, str(started)), 0 if holds else NOT_REPRODUCED


def check_sums(package: Path) -> None:
    """Raise ConfigError if a file of a package is missing or changed, or is not listed."""
    if not (package / SUMS).is_file():
        raise ConfigError(
            f"{package} is not a package: it has no {SUMS}. Make one: slurmscale package CAMPAIGN ATTEMPT"
        )
    listed = {}
    for line in read_text(package / SUMS).splitlines():
        digest, _, path = line.partition("  ")
        listed[path] = digest
    found = {str(file.relative_to(package)) for file in package.rglob("*") if file.is_file()} - {SUMS}
    wrong = sorted(found ^ listed.keys())
    for path in sorted(found & listed.keys()):
        if hashlib.sha256(read_bytes(package / path, LONGEST_FILE_BYTES)).hexdigest() != listed[path]:
            wrong.append(path)
    if wrong:
        raise ConfigError(
            f"{package} has changed since it was made: {', '.join(wrong[:5])}. Ask for the package again, or see "
            f"`sha256sum -c {SUMS}`."
        )


def judged(claim: dict[str, Any], entry: Entry) -> tuple[str, bool]:
    """Return what the repetition shows, and whether the claim holds: the same verdict, and intervals that overlap."""
    interval = [value for each in as_list(claim.get("interval")) if (value := as_number(each)) is not None]
    claimed = as_number(claim.get("ratio")) or 0.0
    stated = f"claimed {claimed:.3f}"
    stated += f" ({interval[0]:.3f} to {interval[1]:.3f})" if len(interval) == 2 else " (no interval)"
    if entry.ratio is None or entry.verdict in {Verdict.invalid, Verdict.too_few, Verdict.undecided}:
        return f"Not judged: {verdict_words(entry)}; {stated}.", False
    low, high = entry.interval or (entry.ratio.middle, entry.ratio.middle)
    here = f"here {entry.ratio.middle:.3f} ({low:.3f} to {high:.3f}, n = {len(entry.ratios)})"
    overlaps = len(interval) != 2 or (low <= interval[1] and interval[0] <= high)
    same = entry.verdict.name == claim.get("verdict")
    if same and overlaps:
        return f"Reproduced: {stated}, {here}; {verdict_words(entry)} both times.", True
    why = f"{verdict_words(entry)} here, claimed {claim.get('verdict')}" if not same else "the intervals do not overlap"
    return f"Not reproduced: {stated}, {here}: {why}.", False
