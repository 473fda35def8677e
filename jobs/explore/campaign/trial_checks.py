"""Checks of a trial before anything is prepared: names, overrides and tasks that it cannot have."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from typing import Any

from analysis.compare.campaign import part_of, was_previewed
from analysis.compare.campaign_budget import ATTEMPTS, accounts, attempts
from analysis.formatting import plural
from analysis.load.discover import read_runs
from jobs.console import shell_line
from jobs.errors import ConfigError, RunDirError
from jobs.explore.campaign.campaign import Campaign, recorded
from jobs.plan.compose import Point
from jobs.plan.keys import key_of
from jobs.rundir import BASELINE, NOISE_FLOOR, SweepDir, is_reserved
from jobs.schema import Run

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=+-]{0,80}")
# Keys that the campaign sets for its runs.
GIVEN = {"name", "sweep", "runs_dir", "repeat"}
# How runs are started, and what they may use: equal for both runs of a pair, and not a difference between them.
SHARED = ("launcher", "budget", "campaign")
KEPT = ("nodes", "ranks_per_node", "model", "data", "contest")
# What a program is judged by; its commands, files and parameters may change.
KEPT_OF_PROGRAM = ("metrics", "merit", "gates", "log", "inputs")


def is_shared(override: str) -> bool:
    """Return whether an override is that of both runs of a pair."""
    return key_of(override).partition(".")[0] in SHARED


def refuse_repeats(repeats: int) -> None:
    """Raise ConfigError unless the number of repeats is positive."""
    if repeats < 1:
        raise ConfigError(f"--repeats {repeats} is not a positive number. Use --repeats 3 or more.")


def refuse_name(name: str) -> None:
    """Raise ConfigError for an invalid name, or for an override in the place of a name."""
    if "=" in name or name.startswith(("+", "~")):
        raise ConfigError(f"{name} is an override, but the name comes first: slurmscale attempt NAME {name}")
    if not NAME.fullmatch(name) or is_reserved(name):
        raise ConfigError(
            f"{name!r} cannot be the name of an attempt. Use letters, digits and ._+-, beginning with a letter or "
            "digit, for example mbs2; code-..., logs and the files of a sweep directory are reserved."
        )


def refuse_until(name: str) -> None:
    """Raise ConfigError for a name that has no verdict of its own."""
    if name in {BASELINE, NOISE_FLOOR}:
        what = "what attempts are compared with" if name == BASELINE else "the baseline against itself"
        raise ConfigError(
            f"--until verdict judges an attempt, and {name} is {what}. Leave --until out, or use another name."
        )


def refuse_other_terms(name: str, known: Mapping[str, Any], asked: float) -> None:
    """Raise RunDirError if further pairs of an attempt would be judged by another effect than the first ones."""
    if known["minimum_effect"] != asked:
        raise RunDirError(
            f"The attempt {name} runs until a verdict with campaign.minimum_effect={known['minimum_effect']:g}, which "
            f"was set before its first pair. Set campaign.minimum_effect={known['minimum_effect']:g}, or use another "
            "name."
        )


def refuse_expectation(name: str) -> None:
    """Raise ConfigError if something is expected of the baseline, with which others are compared."""
    if name in {BASELINE, NOISE_FLOOR}:
        raise ConfigError(
            f"--expect belongs to an attempt, and {name} is what attempts are compared with. Leave it out."
        )


def refuse_other_expectation(name: str, known: str | None, wanted: str) -> None:
    """Raise RunDirError if the expectation of an attempt would be stored or changed after its first run."""
    if known != wanted:
        had = f"with --expect {known!r}" if known else "without --expect"
        raise RunDirError(
            f"The attempt {name} began {had}, and an expectation is stored before the first run. Leave --expect "
            f"{'as it was' if known else 'out'}, or use another name."
        )


def refuse_changes(changes: list[str]) -> None:
    """Raise ConfigError for overrides that a trial cannot have."""
    for each in changes:
        key = key_of(each)
        if key in GIVEN:
            raise ConfigError(f"{each}: the campaign sets {key} for the runs of an attempt. Leave {key} out.")
        if key in {"experiment", "contest"} or key.startswith("contest."):
            raise ConfigError(
                f"{each}: the rules are those of the baseline, and an attempt cannot change them. Leave it out, or "
                f"begin another campaign: slurmscale attempt {BASELINE} OVERRIDES --campaign DIRECTORY"
            )


def refuse_other_overrides(name: str, changes: list[str], campaign: Campaign) -> None:
    """Raise RunDirError if the trial of this name has other overrides."""
    known = recorded(campaign.first(name))
    if known is not None and known["changes"] != changes:
        raise RunDirError(
            f"The attempt {name} of {campaign.sweep.path} has other overrides "
            f"({' '.join(known['changes']) or 'none'}). For more repeats of it, run slurmscale attempt "
            f"{shell_line([name, *known['changes']])}; for a new attempt, use another name."
        )


def refuse_changed_code(*, changed_code: bool) -> None:
    """Raise ConfigError if a campaign would begin with changed code."""
    if changed_code:
        raise ConfigError(
            "--changed-code compares an attempt with a baseline that ran before, but here the baseline itself is "
            "submitted. Leave --changed-code out, and add it to the attempts after the change of the code."
        )


def refuse_over_budget(sweep: SweepDir, points: Sequence[Point]) -> None:
    """Raise ConfigError for runs that are expected to exceed the budget of their campaign."""
    if missing := shortage(sweep, points):
        raise ConfigError(f"{missing}, or submit less; nothing was prepared.")


def shortage(sweep: SweepDir, points: Sequence[Point]) -> str | None:
    """Return why the budget of a campaign is not enough for further runs, with the remedy; None if it is."""
    stated = [asdict(point.run.budget) for point in points]
    known = [run for run in read_runs([sweep.path]) if part_of(run) and not was_previewed(run)] if sweep.runs() else []
    asked = {str(point.facts["attempt"]["name"]) for point in points} - {BASELINE, NOISE_FLOOR}
    for account in accounts(known, stated):
        if account.key == ATTEMPTS:
            needed = float(len(asked - attempts(known)))
            reason = f"{account.used:g} are made, and {needed:g} more {'is' if needed == 1 else 'are'} asked for"
        else:
            needed = len(points) * (account.of_a_run or 0)
            each = f"{account.of_a_run:,.3g} each, the median of those that finished" if account.of_a_run else ""
            reason = f"{account.used:,.3g} are used or queued, and {plural(len(points), 'more run')} "
            reason += f"need about {needed:,.3g} ({each})" if each else "would follow"
        if needed > account.left or account.left <= 0 < len(points):
            enough = math.ceil(1000 * (account.used + needed)) / 1000
            return (
                f"budget.{account.key}={account.limit:.10g} is not enough: {reason}. Set "
                f"budget.{account.key}={enough:.10g} or more"
            )
    return None


def refuse_another_task(name: str, tried: Run, baseline: Run) -> None:
    """Raise ConfigError if the task of a trial differs from that of the baseline."""
    pairs = [(key, getattr(tried, key), getattr(baseline, key)) for key in KEPT]
    if tried.program is not None and baseline.program is not None:
        both = (tried.program, baseline.program)
        pairs += [(f"program.{key}", *(getattr(each, key) for each in both)) for key in KEPT_OF_PROGRAM]
    reasons = [
        f"{key}={own}, the baseline has {wanted}: an attempt keeps {kept_by(tried)}. Leave {key} out."
        for key, own, wanted in itertools.chain.from_iterable(itertools.starmap(first_difference, pairs))
    ]
    if reasons:
        lines = "".join(f"\n    {reason}" for reason in reasons)
        raise ConfigError(f"{name} cannot be compared with the baseline; nothing was prepared or submitted.{lines}")


def kept_by(run: Run) -> str:
    """Return what an attempt shares with its baseline, as text."""
    return "model, data and ranks" if run.program is None else "ranks, inputs, metrics and gates"


def first_difference(key: str, tried: Any, baseline: Any) -> list[tuple[str, Any, Any]]:
    """Return the first difference of two settings or sections, with its key: a section's name stands for the rest."""
    if isinstance(tried, dict) and isinstance(baseline, dict):
        names = dict.fromkeys([*tried, *baseline])
        inner = [(f"{key}.{name}", tried.get(name), baseline.get(name)) for name in names]
        return [found for each in inner for found in first_difference(*each)][:1]
    if not is_dataclass(tried) or not is_dataclass(baseline):
        return [(key, tried, baseline)] if tried != baseline else []
    inner = [(f"{key}.{each.name}", getattr(tried, each.name), getattr(baseline, each.name)) for each in fields(tried)]
    return [found for each in inner for found in first_difference(*each)][:1]
