"""The tables of `slurmscale tune`: what was tried, what each rung bought, and the effect of each choice."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from analysis.compare.tuning import Effect, TrialRun, best, effects, tunings
from analysis.formatting import ABSENT, plural, short, significant
from analysis.report.digest import Digest
from analysis.report.figures.style import Section, word_of
from analysis.untrusted import as_list
from jobs.rundir import TUNING, read_records

DIGITS = 4
LONGEST_REASON = 160
MOST_REFUSALS = 3


def tuning_sections(digest: Digest) -> list[Section]:
    """Return three tables for each tuning among the runs; empty without any."""
    found = []
    for folder, trials in sorted(tunings(digest.runs).items()):
        found += [
            trials_section(folder, trials, records(folder)),
            rungs_section(folder, trials),
            effects_section(folder, trials),
        ]
    return found


def records(folder: Path) -> list[dict[str, Any]]:
    """Return the ledger of a tuning; empty if it cannot be read."""
    with suppress(OSError):
        return list(read_records(folder / TUNING))
    return []


def trials_section(folder: Path, trials: Sequence[TrialRun], ledger: Sequence[dict[str, Any]]) -> Section:
    """Return one row per trial: those of the longest rung first, the best first, those that do not count last."""
    baselines = {trial.steps: trial.score for trial in trials if trial.is_baseline}
    objective = trials[0].objective
    suspects = {record.get("run"): str(record.get("reason")) for record in ledger if record.get("event") == "suspect"}
    rows = [
        [
            " ".join(trial.choices),
            f"{trial.steps:,}",
            ABSENT if trial.value is None else significant(trial.value / trial.unit.size, DIGITS),
            gain(trial.score, baselines.get(trial.steps)),
            significant(trial.rank_hours, 3),
            remark(trial, suspects.get(trial.run.name, "")),
        ]
        for trial in sorted(trials, key=lambda each: (each.score is None, -each.steps, -(each.score or 0)))
    ]
    note = " ".join([lead(trials), *space_words(ledger), *end_words(ledger)])
    # Trials that do not count have no merit, and so no unit of it.
    unit = next((trial.unit for trial in trials if trial.value is not None), trials[0].unit)
    value = f"{objective.name.replace('_', ' ').capitalize()} ({unit.name})"
    headings = ("Configuration", "Steps", value, "Against the baseline", "Rank-hours", "Remarks")
    return Section(f"Tuning {folder.name}", note, headings, rows)


def remark(trial: TrialRun, suspicion: str) -> str:
    """Return why a trial does not count, or what is odd about it."""
    words = "baseline" if trial.is_baseline else suspicion
    return short(trial.reason or words, LONGEST_REASON)


def lead(trials: Sequence[TrialRun]) -> str:
    """Return what was tried, on which hardware."""
    hours = sum(trial.rank_hours for trial in trials)
    failed = sum(trial.score is None for trial in trials)
    configurations = len({trial.choices for trial in trials})
    known = next((trial for trial in trials if trial.value is not None), trials[0])
    better = "more is better" if known.more_is_better else "less is better"
    return (
        f"{word_of(trial.run for trial in trials)}: {plural(len(trials), 'trial')} of "
        f"{plural(configurations, 'configuration')}, {significant(hours, 3)} rank-hours, {failed} that do not count; "
        f"{better}. One rank is one GPU, where there are any. Ratios compare with the baseline of as many steps."
    )


def space_words(ledger: Sequence[dict[str, Any]]) -> list[str]:
    """Return the size of the space and the points that were not tried."""
    begun = [record for record in ledger if record.get("event") == "begun"]
    if not begun:
        return []
    refused = begun[-1].get("refused")
    counts = refused if isinstance(refused, dict) else {}
    reasons = [f"{count} refused: {reason}" for reason, count in list(counts.items())[:MOST_REFUSALS]]
    too_large = as_list(begun[-1].get("too_large"))
    if too_large:
        reasons.append(f"{len(too_large)} predicted not to fit the GPU")
    left_out = f" ({'; '.join(reasons)})" if reasons else ""
    return [f"The space has {begun[-1].get('points')} points, {begun[-1].get('legal')} of them legal{left_out}."]


def end_words(ledger: Sequence[dict[str, Any]]) -> list[str]:
    """Return the verdict of the pairs, and what would be tried next."""
    ended = [record for record in ledger if record.get("event") == "ended"]
    if not ended:
        return ["The tuning has not ended; the same command goes on."]
    following = [" ".join(map(str, as_list(each))) for each in as_list(ended[-1].get("next"))]
    after = f"To be tried next: {'; '.join(following)}." if following else "Every legal point was tried."
    ruled_out = len(as_list(ended[-1].get("ruled_out")))
    of_memory = [
        f"{ruled_out} points need more memory than trials of their kind that ran out of it, and are not tried."
    ]
    return [str(ended[-1].get("verdict")), *(of_memory if ruled_out else []), after]


def gain(score: float | None, baseline: float | None) -> str:
    """Return a score relative to the baseline's: above 1 is better."""
    return ABSENT if not score or not baseline else f"{score / baseline:.3f}"


def rungs_section(folder: Path, trials: Sequence[TrialRun]) -> Section:
    """Return one row per rung: its cost, its best trial, and the gain of each rank-hour over the rung's baseline."""
    rows = []
    for steps in sorted({trial.steps for trial in trials}):
        here = [trial for trial in trials if trial.steps == steps]
        hours = sum(trial.rank_hours for trial in here)
        first, winner = next((trial.score for trial in here if trial.is_baseline), None), best(here)
        percent = (winner.score / first - 1) * 100 if winner and winner.score and first else None
        rows.append(
            [
                f"{steps:,} steps",
                str(len(here)),
                str(sum(trial.score is None for trial in here)),
                significant(hours, 3),
                gain(winner.score if winner else None, first),
                ABSENT if percent is None or not hours else significant(percent / hours, 3),
                " ".join(winner.choices) if winner else ABSENT,
            ]
        )
    note = (
        "One row per rung. Gain: how much better its best trial is than its baseline, in per cent for each rank-hour."
    )
    headings = ("Rung", "Trials", "Do not count", "Rank-hours", "Best against the baseline", "Gain (%/h)", "Best")
    return Section(f"Cost of tuning {folder.name}", note, headings, rows)


def effects_section(folder: Path, trials: Sequence[TrialRun]) -> Section:
    """Return one row per choice: its ratio to the baseline's choice over pairs of trials that differ in it alone."""
    note = (
        "Ablation: each choice against the baseline's choice of the same key, over all pairs of trials of equal steps "
        "that differ in nothing else; geometric mean of the ratios, above 1 is better. Other choices vary between the "
        "pairs, so the range also shows how much the effect depends on them."
    )
    rows = [effect_row(effect) for effect in sorted(effects(trials), key=lambda e: -(e.ratio.middle if e.ratio else 0))]
    return Section(f"Choices of tuning {folder.name}", note, ("Choice", "Pairs", "Ratio", "Range", "Against"), rows)


def effect_row(effect: Effect) -> list[str]:
    """Return the cells of a choice."""
    ratio = effect.ratio
    if ratio is None:
        return [effect.choice, "0", ABSENT, ABSENT, f"{effect.against}; no pair that differs in it alone"]
    return [
        effect.choice,
        str(ratio.n[0]),
        f"{ratio.middle:.3f}",
        f"{ratio.low:.3f} to {ratio.high:.3f}",
        effect.against,
    ]
