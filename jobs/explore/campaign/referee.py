"""`slurmscale attempt NAME --until verdict`: pairs of an attempt and its baseline until they decide.

First the baseline runs against itself (the noise floor), if the campaign has no such pairs. Then pairs follow in turns
until an interval that holds at all looks together proves a difference, or that there is none that matters, or until
the pairs or the budget are spent. The same command goes on after an interruption, and after a verdict it starts
nothing. The judgement is that of the leaderboard (analysis.compare.campaign).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from analysis.compare.campaign import Entry, Leaderboard, Verdict, changes, leaderboards
from analysis.compare.expectations import Expected, State, of_entry
from analysis.formatting import percent, plural
from analysis.intervals import FEWEST_FOR_MEAN, log_deviation
from analysis.load.discover import read_runs
from analysis.report.leaderboard import proxy_columns
from analysis.report.leaderboard_text import reasons
from analysis.sequential import pairs_until
from jobs.answers import NoiseAnswer, VerdictAnswer
from jobs.errors import ConfigError
from jobs.explore.campaign.campaign import Campaign, located, opened, repeats_on_disk
from jobs.explore.campaign.proxies import refuse_proxy
from jobs.explore.campaign.trial import trial_points
from jobs.explore.campaign.trial_checks import is_shared, refuse_name, refuse_repeats, refuse_until, shortage
from jobs.plan.compose import Point
from jobs.rundir import NOISE_FLOOR, SweepDir
from jobs.submit.commands import look, submit_points, wait_for

INTERRUPTED = 130


class Outcome(Enum):
    """The verdict; the value is the exit code."""

    better = 0
    worse = 3
    no_difference = 4
    undecided = 5
    not_comparable = 6


OUTCOMES = {
    Verdict.faster: Outcome.better,
    Verdict.slower: Outcome.worse,
    Verdict.no_difference: Outcome.no_difference,
    Verdict.undecided: Outcome.undecided,
    Verdict.invalid: Outcome.not_comparable,
}


@dataclass(frozen=True)
class Ended:
    """The end of the command."""

    code: int
    campaign: Path | None
    """None if nothing was started."""
    verdict: VerdictAnswer | None = None


def until_verdict(
    name: str,
    overrides: list[str],
    *,
    campaign: Path | None,
    repeats: int | None,
    changed_code: bool,
    expect: str | None = None,
    proxy: Sequence[str] = (),
) -> Ended:
    """Run pairs until a verdict; `repeats` is the number of pairs of a submission, by default as few as may decide.

    `proxy` shortens both runs of a pair. Such an attempt has no noise floor, and without a known bias it ends as
    undecided where its short pairs alone would decide. Raises what `submit_trial` does before anything is prepared.
    """
    refuse_name(name)
    refuse_until(name)
    if proxy:
        refuse_proxy(name, proxy, overrides)
    if repeats is not None:
        refuse_repeats(repeats)
    overrides, campaign = located(overrides, campaign)
    place = opened(campaign, changed_code=changed_code)
    sweep = place.sweep
    while True:
        # A wait for runs of an earlier start of the command; none is open after those of this one.
        points = next_pairs(name, overrides, place, repeats, expect=expect, proxy=proxy)
        run = points[0].run
        if not run.launcher.kind.starts_runs:
            return Ended(submit_points(points, wait=False), None)
        if wait_for_all(sweep) == INTERRUPTED:
            return Ended(INTERRUPTED, sweep.path)
        board = leaderboards(read_runs([sweep.path]))[0]
        entry = next((each for each in board.entries if each.trial.name == name and each.trial.sequence), None)
        made, most = repeats_on_disk(sweep, name), run.campaign.maximum_pairs
        noise = None if proxy else noise_of(board, name)
        points = points[: max(0, 2 * (most - made))]
        floor = noise_pairs(overrides, place) if noise is None and not proxy else []
        spent = shortage(sweep, [*floor, *points]) if points else f"campaign.maximum_pairs={most} are run"
        spent = (unknown_bias(entry) if entry else None) or spent
        if entry is not None and (entry.verdict is not Verdict.undecided or spent):
            verdict = answer_of(entry, of_entry(entry, board.rules), noise, most, spent)
            return Ended(Outcome[verdict.verdict].value, sweep.path, verdict)
        if spent:
            raise ConfigError(f"{spent}; nothing was prepared.")
        if entry is not None:
            print(so_far(entry), flush=True)
        if floor:
            print(f"Noise floor: the baseline against itself, {plural(len(floor) // 2, 'pair')}.", flush=True)
        submit_points(floor or points, wait=False)


def next_pairs(
    name: str,
    overrides: list[str],
    place: Campaign,
    repeats: int | None,
    *,
    expect: str | None,
    proxy: Sequence[str],
) -> list[Point]:
    """Return the pairs of the next submission: at first as many as a verdict takes, then one, or `repeats`."""
    count = repeats or max(1, FEWEST_FOR_MEAN - repeats_on_disk(place.sweep, name))
    return trial_points(name, overrides, place, count, until_verdict=True, expect=expect, proxy=proxy)


def unknown_bias(entry: Entry) -> str | None:
    """Return why further short pairs of a proxy without a known bias would not help; None if they may, or decide."""
    terms, proxy = entry.trial.sequence, entry.trial.proxy
    if terms is None or proxy is None or proxy.is_known:
        return None
    short = terms.verdict(entry.looks)
    if short is Verdict.undecided:
        return None
    return f"{OUTCOMES[short].name.replace('_', ' ')} by proxy {proxy.name} alone, whose bias is unknown: {proxy.words}"


def noise_pairs(overrides: Sequence[str], place: Campaign) -> list[Point]:
    """Return the pairs of the baseline against itself that are not on disk."""
    missing = FEWEST_FOR_MEAN - repeats_on_disk(place.sweep, NOISE_FLOOR)
    where = [each for each in overrides if is_shared(each)]
    return trial_points(NOISE_FLOOR, where, replace(place, code=None), missing) if missing > 0 else []


def noise_of(board: Leaderboard, name: str) -> Entry | None:
    """Return the noise floor of a campaign, or another attempt with enough pairs that changed nothing."""
    if board.baseline is None:
        return None
    equal = (
        entry
        for entry in board.entries
        if entry.trial.name != name
        and len(entry.ratios) >= FEWEST_FOR_MEAN
        and not changes(entry.trial.first, board.baseline.run)
    )
    return min(equal, key=lambda entry: entry.trial.name != NOISE_FLOOR, default=None)


def wait_for_all(sweep: SweepDir) -> int:
    """Wait for the runs of a sweep that have not ended; return INTERRUPTED if the user stops waiting."""
    found = look(sweep)
    if not any(item.state.is_open for item in found):
        return 0
    return wait_for(sweep, [item.run.name for item in found if not item.state.is_open])


# --- the answer ------------------------------------------------------------------------------------------------


def answer_of(
    entry: Entry, expected: Expected | None, noise: Entry | None, most: int, why: str | None
) -> VerdictAnswer:
    """Return the verdict on an attempt; `why` no further pair is run."""
    terms, ratio = entry.trial.sequence, entry.ratio
    assert terms is not None
    outcome = OUTCOMES[entry.verdict]
    because = {Outcome.not_comparable: reasons(entry), Outcome.undecided: why}.get(outcome)
    error = 1 - entry.confidence
    return VerdictAnswer(
        attempt=entry.trial.name,
        verdict=outcome.name,
        because=because,
        order=terms.order,
        error=error,
        minimum_effect=terms.minimum_effect,
        pairs=len(entry.ratios),
        pairs_left_out=len(entry.trial.repeats) - len(entry.ratios),
        maximum_pairs=most,
        ratio=ratio.middle if ratio else None,
        ratio_low=entry.interval[0] if entry.interval else None,
        ratio_high=entry.interval[1] if entry.interval else None,
        noise=noise_answer(noise, terms.minimum_effect, error, most) if noise else None,
        **proxy_columns(entry),
        expected=expected.expectation.text if expected else None,
        expected_state=expected.state.name if expected else None,
    )


def noise_answer(noise: Entry, effect: float, error: float, most: int) -> NoiseAnswer:
    """Return the noise floor as data."""
    assert noise.ratio is not None
    spread = log_deviation(noise.ratios)
    low, high = noise.interval or (None, None)
    return NoiseAnswer(
        len(noise.ratios), noise.ratio.middle, low, high, spread, pairs_until(spread, effect, error, most)
    )


def so_far(entry: Entry) -> str:
    """Return where an undecided attempt stands, as a line between two submissions."""
    ratio = f"ratio {entry.ratio.middle:.4f}" if entry.ratio else "no ratio"
    interval = f" ({entry.interval[0]:.4f} to {entry.interval[1]:.4f})" if entry.interval else ""
    return f"After {plural(len(entry.ratios), 'pair')}: {ratio}{interval}, undecided."


def sentences(found: VerdictAnswer) -> list[str]:
    """Return the verdict as text."""
    effect = percent(found.minimum_effect)
    words = {
        Outcome.better.name: "better than the baseline",
        Outcome.worse.name: "worse than the baseline",
        Outcome.no_difference.name: f"no difference within {effect}",
        Outcome.undecided.name: f"undecided: {found.because}",
        Outcome.not_comparable.name: f"not comparable: {found.because}",
    }[found.verdict]
    lines = [f"Verdict on {found.attempt}: {words}."]
    if found.ratio is not None and found.verdict != Outcome.not_comparable.name:
        interval = f" ({found.ratio_low:.4f} to {found.ratio_high:.4f})" if found.ratio_low is not None else ""
        left_out = f", {plural(found.pairs_left_out, 'pair')} left out" if found.pairs_left_out else ""
        lines.append(
            f"Speed over the baseline {found.ratio:.4f}{interval}, {plural(found.pairs, 'pair')} of at most "
            f"{found.maximum_pairs}{left_out}; attempt {found.order} of the campaign, which errs with a probability of "
            f"{percent(found.error)} at most over all looks."
        )
    if found.expected and found.expected_state:
        lines.append(
            f"Expected before its first run: {found.expected}. {State[found.expected_state].value.capitalize()}."
        )
    if found.proxy is not None and found.bias is not None:
        lines.append(
            f"By proxy {found.proxy}: the short ratio was {found.bias:.4f} times the long one ({found.bias_low:.4f} to "
            f"{found.bias_high:.4f} for a further configuration), by {found.proxy_configurations} configurations that "
            "ran at both lengths before. This is taken out of the ratio, and added to its interval."
        )
    if (noise := found.noise) is not None:
        needed = (
            f"about {noise.pairs_for_minimum_effect} pairs"
            if noise.pairs_for_minimum_effect
            else f"more than {found.maximum_pairs} pairs"
        )
        lines.append(
            f"Noise floor: {noise.pairs} pairs of the baseline against itself, ratio {noise.ratio:.4f}, spread "
            f"{percent(noise.spread)}; at this noise {effect} takes {needed}."
        )
        if not (noise.ratio_low or 0) <= 1 <= (noise.ratio_high or math.inf):
            lines.append("The baseline differs from itself, so the machine is not steady: distrust small differences.")
    return lines
