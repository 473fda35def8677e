"""`slurmscale attempt NAME OVERRIDES --proxy job.steps=50`: pairs of short runs in place of long ones.

The bias of their ratio (analysis.compare.proxy) is that of the configurations of the campaign that ran at both lengths
before. It is stored in the record of each run before it starts, so that no later run changes a verdict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import geometric_mean
from typing import Any

from analysis.compare.campaign import Entry, Leaderboard, Trial, changes, leaderboards, length_of
from analysis.compare.proxy import Proxy
from analysis.intervals import FEWEST_FOR_MEAN
from analysis.load.discover import read_runs
from jobs.errors import ConfigError, RunDirError
from jobs.explore.campaign.campaign import Campaign
from jobs.explore.campaign.trial_checks import is_shared, refuse_another_task, refuse_changes
from jobs.plan.keys import key_of
from jobs.rundir import BASELINE, NOISE_FLOOR
from jobs.schema import Counted, Run


def refuse_proxy(name: str, proxy: Sequence[str], overrides: Sequence[str]) -> None:
    """Raise ConfigError for a proxy that an attempt cannot have, whatever its campaign."""
    if name in {BASELINE, NOISE_FLOOR}:
        raise ConfigError(
            f"--proxy belongs to an attempt, and {name} is what attempts are compared with. Leave it out."
        )
    refuse_changes(list(proxy))
    own = {key_of(each) for each in overrides}
    for each in proxy:
        if is_shared(each):
            raise ConfigError(f"--proxy {each} does not shorten runs. Leave --proxy out: {each}")
        if key_of(each) in own:
            raise ConfigError(
                f"{key_of(each)} is set by the attempt, and by --proxy for both runs of a pair. Leave one of them out."
            )


def refuse_same_length(proxy: Sequence[str], short: Run, full: Run) -> None:
    """Raise ConfigError if the runs of a proxy are another task than the campaign's, or no other runs at all."""
    shown = " ".join(proxy)
    refuse_another_task(f"--proxy {shown}", short, full)
    if short == full:
        raise ConfigError(
            f"--proxy {shown} changes nothing: the baseline has these values. Use smaller ones, or leave it out."
        )
    if full.contest is not None and full.contest.counted is Counted.target:
        raise ConfigError(
            f"--proxy {shown}: contest.counted=target compares the time to a loss, which short runs do not reach. "
            "Leave --proxy out."
        )


def refuse_other_length(name: str, known: Mapping[str, Any] | None, proxy: Sequence[str]) -> None:
    """Raise RunDirError if further pairs of an attempt would have another length than the first ones."""
    had = [] if known is None else list(known["overrides"])
    if sorted(had) != sorted(proxy):
        began = f"with {options(had)}" if had else "at full length, without --proxy"
        raise RunDirError(
            f"The attempt {name} began {began}, and its pairs have one length. Keep that, or use another name."
        )


def options(proxy: Sequence[str]) -> str:
    """Return overrides as options of the command."""
    return " ".join(f"--proxy {each}" for each in proxy)


def record_of(campaign: Campaign, proxy: Sequence[str]) -> dict[str, Any]:
    """Return what the runs of a new proxy record: its overrides, and the biases that are known now."""
    boards = leaderboards(read_runs([campaign.sweep.path])) if campaign.sweep.path.exists() else []
    biases = biases_of(boards[0], Proxy(proxy)) if boards else {}
    return {"overrides": list(proxy), "biases": biases}


def biases_of(board: Leaderboard, proxy: Proxy) -> dict[str, float]:
    """Return the ratio of short pairs over that of long ones, by the short attempt, of each configuration with both."""
    full, short = (by_change(board, length) for length in (length_of(None), length_of(proxy)))
    return {
        entry.trial.name: geometric_mean(entry.ratios) / geometric_mean(full[change].ratios)
        for change, entry in short.items()
        if change in full
    }


def by_change(board: Leaderboard, length: frozenset[str]) -> dict[frozenset[str], Entry]:
    """Return the attempts of one length that count, by what they changed; of equal ones that with the most pairs.

    One that changed nothing has no bias, whatever the length, and stands for no other.
    """
    counted = [
        entry
        for entry in board.entries
        if not entry.reasons and len(entry.ratios) >= FEWEST_FOR_MEAN and length_of(entry.trial.proxy) == length
    ]
    ordered = sorted(counted, key=lambda entry: len(entry.ratios))
    return {change: entry for entry in ordered if (change := changed(entry.trial))}


def changed(trial: Trial) -> frozenset[str]:
    """Return the differences between the runs of a pair."""
    beside, tried = next((pair for pair in trial.repeats.values() if all(pair)), ((), ()))
    return frozenset(changes(tried[-1], beside[-1])) if tried else frozenset()
