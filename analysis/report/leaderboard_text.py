"""The sentences of a leaderboard: what is compared, the winners, how to read it, why a trial does not count."""

from __future__ import annotations

from analysis.compare.campaign import SURE, Entry, Leaderboard, Verdict, confidence_of_each, rehearsal
from analysis.compare.campaign_budget import accounts
from analysis.compare.contest_rules import Rules
from analysis.compare.expectations import of_entry
from analysis.compare.proxy import Bias
from analysis.compare.published import figures_for
from analysis.compare.score import score_of
from analysis.formatting import percent, plural, significant
from analysis.intervals import CONFIDENCE, FEWEST_FOR_MEAN, NORMALITY
from analysis.report.sensitivity import sensitivity, unseen_below
from analysis.run import RunResult, hardware
from jobs.schema import Counted

RATIO_DIGITS = 4
COUNTED_WORDS = {
    Counted.training: "training time (first step to last, checkpoints in, start-up not)",
    Counted.total: "total time (start of the process to its recorded end)",
    Counted.target: "time to the target (first step to the one that reaches the contest's loss, checkpoints in)",
}


def lead(board: Leaderboard) -> str:
    """Return what is compared, on which hardware, and whether it is the contest."""
    contest = board.first.setting("contest.name")
    of = f" of {contest}" if contest and contest != board.path.name else ""
    ran = [run for run in board.runs if run.started]
    where = hardware(ran) if ran else "Nothing measured"
    text = f"{where}: campaign {board.path.name}{of}, {plural(len(board.trials), 'attempt')} against the baseline"
    if found := rehearsal(board):
        text = f"Rehearsal, not the contest ({'; '.join(found)}). {text}"
    return f"{text}; {counted_words(board.rules)}."


def counted_words(rules: Rules) -> str:
    """Return what is compared, as text."""
    if rules.counted is not None:
        return COUNTED_WORDS[rules.counted]
    return f"{rules.metric.name}: {rules.metric.definition[:1].lower()}{rules.metric.definition[1:].rstrip('.')}"


def answer(board: Leaderboard) -> str:
    """Return the sentence of a campaign: the trials that are faster than its baseline, and how many count."""
    ahead = [entry for entry in board.entries if entry.rank == 1 and entry.verdict is Verdict.faster]
    below = sum(entry.verdict is Verdict.invalid for entry in board.entries)
    counted = f"attempts that count: {len(board.trials) - below} of {len(board.trials)}"
    if not ahead:
        none = "no attempt is significantly faster than the baseline"
        if not board.compared:
            none = "nothing is decided yet" if board.baseline else "no repeat of the baseline has finished"
        unseen = [each for entry in board.entries if (each := unseen_below(entry)) is not None]
        limit = f"; differences below {percent(min(unseen))} are hardly seen at this noise" if unseen else ""
        return f"Campaign {board.path.name}: {none}; {counted}{limit}."
    listed = [
        f"{entry.trial.name} {ratio.middle:.3g} times ({ratio.interval[0]:.3g} to {ratio.interval[1]:.3g}, "
        f"{len(entry.ratios)} pairs)"
        for entry in ahead
        if (ratio := entry.ratio) and ratio.interval
    ]
    return f"Campaign {board.path.name}: faster than the baseline, and first, {', '.join(listed)}; {counted}."


def notes(board: Leaderboard) -> list[str]:
    """Return how to read it: the test, the loss band, multiple comparisons, transports, published baselines."""
    rules, budget = board.rules, accounts(board.runs)
    share = board.left / max(1, board.compared)
    each, sure = (percent(confidence_of_each(together, share)) for together in (CONFIDENCE, SURE))
    of_each = f", at {each} for each of {board.compared} attempts (Bonferroni)" if board.compared > 1 else ""
    text = [
        f"Ratio: the geometric mean of {rules.ratio_in_words}, over n pairs of repeats that ran in "
        f"turns; its {percent(CONFIDENCE)} interval is Student's t of their logarithms{of_each}: if all attempts were "
        f"as fast as the baseline, at most {percent(1 - CONFIDENCE)} of such leaderboards would report a difference. A "
        f"tie is an interval that contains 1. A star marks a difference that also holds at {sure}, at most "
        f"{percent(1 - SURE)} of such leaderboards. {NORMALITY} At least {FEWEST_FOR_MEAN} pairs are required for "
        "a verdict. Attempts with the same rank do not differ significantly (Welch)."
    ]
    if board.baseline is not None and board.baseline.band is not None:
        low, high = (significant(value, RATIO_DIGITS) for value in board.baseline.band)
        text.append(
            f"A loss counts from {low} to {high}: the mean over the last {rules.loss_steps} steps, and of the "
            f"baseline's {plural(len(board.baseline.runs), 'repeat')}, +- the larger of "
            f"{rules.loss_tolerance:.3g} x mean and {rules.loss_spreads:.3g} x standard deviation."
        )
    found = [f"Budget: {'; '.join(each.words for each in budget)}."] if budget else []
    found += (
        score_words(board)
        + expected_words(board)
        + text
        + referee_words(board)
        + proxy_words(board)
        + sensitivity(board)
        + transports(board)
    )
    return found + (published_words(board.baseline.run) if board.baseline else [])


def score_words(board: Leaderboard) -> list[str]:
    """Return what the official score is, and who has none: one sentence, or none."""
    if (count := board.rules.runs) is None:
        return []
    named = {"baseline": None} | {entry.trial.name: entry for entry in board.entries}
    found = {name: score_of(board, entry) for name, entry in named.items()}
    without = "; ".join(f"{name} has none: {each.because}" for name, each in found.items() if each and each.because)
    out = f" without the {dropped} fastest and the {dropped} slowest" if (dropped := board.rules.dropped) else ""
    return [
        f"Score: the contest's own, the mean of the first {plural(count, 'run')} of a configuration{out}; it has no "
        f"interval, and decides no verdict{f'. {without}' if without else ''}."
    ]


def referee_words(board: Leaderboard) -> list[str]:
    """Return how attempts that run until a verdict are judged: one sentence, or none."""
    found = [entry for entry in board.entries if entry.trial.sequence]
    if not found:
        return []
    listed = ", ".join(f"{entry.trial.name} {percent(1 - entry.confidence)}" for entry in found if not entry.reasons)
    return [
        "Attempts that run until a verdict are judged after every pair, by intervals of a group-sequential t test that "
        "hold at all looks together; further pairs and attempts change no verdict. Error of each, by the order of "
        f"their submission: {listed or 'none counts'}; the other attempts share what these leave of "
        f"{percent(1 - CONFIDENCE)}."
    ]


def proxy_words(board: Leaderboard) -> list[str]:
    """Return how attempts by short runs are judged: one sentence for each, with its bias."""
    return [
        f"{entry.trial.name} is judged by proxy {proxy.name}, short runs of both sides: {proxy.words}"
        f"{f'; {bias_words(entry.bias)}' if entry.bias else ', so that it is not decided'}."
        for entry in board.entries
        if (proxy := entry.trial.proxy)
    ]


def bias_words(bias: Bias) -> str:
    """Return the bias of short runs, as text."""
    return (
        f"their short ratio was {bias.middle:.4f} times the long one ({bias.low:.4f} to {bias.high:.4f} for a further "
        "configuration), which is taken out of the ratio and added to its interval"
    )


def expected_words(board: Leaderboard) -> list[str]:
    """Return the outcomes of the attempts' expectations, one sentence each."""
    return [found.words for entry in board.entries if (found := of_entry(entry, board.rules)) is not None]


def transports(board: Leaderboard) -> list[str]:
    """Return the trials whose collectives used other transports than the baseline's: one sentence, or none."""
    used = board.baseline and board.baseline.run.transport
    # An older version did not record the transport, so a missing one may be equal.
    known = {trial.name: trial.first.transport for trial in board.trials if used and trial.first.transport}
    others = [f"{name} used {own}" for name, own in known.items() if own != used]
    return [f"Collectives of the baseline used {used}; {'; '.join(others)}."] if others else []


def published_words(run: RunResult) -> list[str]:
    """Return the results published for a run's contest, by machine: one sentence, or none."""
    found = [figure for figure in figures_for(run) if figure.experiment]
    values: dict[str, list[str]] = {figure.hardware: [] for figure in found}
    for figure in found:
        values[figure.hardware].append(figure.printed)
    machines = "; ".join(f"{hardware} {' and '.join(printed)}" for hardware, printed in values.items())
    return [f"Published baselines ({found[0].document.name}): {machines}."] if found else []


def reasons(entry: Entry) -> str:
    """Return why a trial does not count."""
    return "; ".join(entry.reasons)


def verdict_words(entry: Entry, *, floor: bool = False) -> str:
    """Return the verdict, with a star if it holds at SURE, or why the trial does not count.

    Under a `floor` a slower trial counts as the baseline.
    """
    if entry.verdict is Verdict.invalid:
        return reasons(entry)
    short = ", by proxy" if entry.trial.proxy else ""
    if entry.verdict is Verdict.no_difference and entry.trial.sequence:
        return f"no difference within {percent(entry.trial.sequence.minimum_effect)}{short}"
    below = ", counts as the baseline" if floor and entry.verdict is Verdict.slower else ""
    return f"{entry.verdict.value}{' *' if entry.holds else ''}{below}{short}"
