"""`slurmscale leaderboard DIR`: the trials of a campaign by rank, why some do not count, and the ledger of their time.

The terminal, the page of a report and the spreadsheet show the same tables, in which a trial is called an attempt, as
in the command that submits it. Imports no torch.
"""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from analysis.compare.campaign import (
    SURE,
    Entry,
    Leaderboard,
    Verdict,
    changes,
    confidence_of_each,
    leaderboards,
    rehearsal,
)
from analysis.compare.published import figures_for
from analysis.formatting import ABSENT, csv_cell, percent, plural, shown, significant
from analysis.intervals import CONFIDENCE, FEWEST_FOR_MEAN
from analysis.load.discover import read_runs
from analysis.report.figures.leaderboard import leaderboard_figure
from analysis.report.figures.style import Section
from analysis.report.sensitivity import sensitivity, unseen_below
from analysis.run import RunResult, hardware
from jobs import metrics as m
from jobs.console import console, plain
from jobs.errors import ReportError
from jobs.metrics import Metric
from jobs.schema import Counted

FILE_NAME = "leaderboard.csv"
HEADINGS = ("Attempt", "Rank", "Time (s)", "Ratio", "95 % interval", "n", "Loss", "Verdict")
LEDGER_HEADINGS = ("Attempt", "Start-up", "First step", "Warm-up", "Steady", "Checkpoint", "Other", "Total", "Changed")
RATIO_DIGITS = 4
WORK = (m.SAMPLES_PER_STEP, m.SAMPLES_TRAINED, m.TOKENS_TRAINED)
COUNTED_WORDS = {
    Counted.training: "training time (first step to last, checkpoints in, start-up not)",
    Counted.total: "total time (start of the process to its recorded end)",
}


def show(path: Path) -> int:
    """Print the leaderboard of a campaign and return the exit code; raise ReportError if there is none."""
    if not path.is_dir():
        raise ReportError(
            f"There is no directory {path}. Pass the directory of a campaign, such as runs/apac_hpc_ai_2024."
        )
    found = leaderboards(read_runs([path]))
    if not found:
        raise ReportError(
            f"{path} is not a campaign: no run in it was started by slurmscale attempt. To begin one, run: "
            "slurmscale attempt baseline OVERRIDES"
        )
    for board in found:
        print_board(board, console())
    return 0


def print_board(board: Leaderboard, out: Console) -> None:
    """Print the leaderboard, the trials that do not count, and the ledger, for a terminal of 80 columns or more."""
    out.print(lead(board), highlight=False)
    rows, below = leader_rows(board), [entry for entry in board.entries if entry.verdict is Verdict.invalid]
    out.print(rich_table(HEADINGS, rows[: len(rows) - len(below)]))
    if below:
        out.print("\nNot ranked, because they do not count:", highlight=False)
    for entry in below:
        out.print(f"  {entry.trial.name}: {reasons(entry)}", highlight=False)
    out.print("\nLedger: seconds per repeat, medians", highlight=False)
    ledger = ledger_rows(board)
    out.print(rich_table(LEDGER_HEADINGS[:-1], [row[:-1] for row in ledger]))
    out.print("\nChanges of each attempt against the one before:", highlight=False)
    for row in ledger[1:]:
        out.print(f"  {row[0]}: {row[-1]}", highlight=False)
    out.print()
    for note in notes(board):
        out.print(note, highlight=False)


def rich_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Return a table of names, numbers and, under that heading, a verdict in words."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="left" if heading in {"Attempt", "Verdict"} else "right", overflow="fold")
    for row in rows:
        table.add_row(*(plain(cell) for cell in row))
    return table


# --- words -----------------------------------------------------------------------------------------------------


def lead(board: Leaderboard) -> str:
    """Return what is compared, on which hardware, and whether it is the contest."""
    contest = board.first.setting("contest.name")
    of = f" of {contest}" if contest and contest != board.path.name else ""
    ran = [run for run in board.runs if run.started]
    where = hardware(ran) if ran else "Nothing measured"
    text = f"{where}: campaign {board.path.name}{of}, {plural(len(board.trials), 'attempt')} against the baseline"
    if found := rehearsal(board):
        text = f"Rehearsal, not the contest ({'; '.join(found)}). {text}"
    return f"{text}; {COUNTED_WORDS[board.rules.counted]}."


def answers(runs: Iterable[RunResult]) -> list[str]:
    """Return one sentence for each campaign among the runs: the trials that are faster than its baseline."""
    return [answer(board) for board in leaderboards(runs)]


def answer(board: Leaderboard) -> str:
    """Return the first trials with ratio and interval, and the number of trials that count."""
    ahead = [entry for entry in board.entries if entry.rank == 1 and entry.verdict is Verdict.faster]
    below = sum(entry.verdict is Verdict.invalid for entry in board.entries)
    counted = f"{len(board.trials) - below} of {plural(len(board.trials), 'attempt')} count"
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
    rules = board.rules
    each, sure = (percent(confidence_of_each(together, board.compared)) for together in (CONFIDENCE, SURE))
    of_each = f", at {each} for each of {board.compared} attempts (Bonferroni)" if board.compared > 1 else ""
    text = [
        "Ratio: the geometric mean of time of the baseline / time of the attempt, over n pairs of repeats that ran in "
        f"turns; its {percent(CONFIDENCE)} interval is Student's t of their logarithms{of_each}: if all attempts were "
        f"as fast as the baseline, at most {percent(1 - CONFIDENCE)} of such leaderboards would report a difference. A "
        f"tie is an interval that contains 1. A star marks a difference that also holds at {sure}, at most "
        f"{percent(1 - SURE)} of such leaderboards. At least {FEWEST_FOR_MEAN} pairs are required for a verdict. "
        "Attempts with the same rank do not differ significantly (Welch)."
    ]
    if board.baseline is not None:
        low, high = (significant(value, RATIO_DIGITS) for value in board.baseline.band)
        text.append(
            f"A loss counts from {low} to {high}: the mean over the last {rules.loss_steps} steps, and of the "
            f"baseline's {plural(len(board.baseline.runs), 'repeat')}, +- the larger of "
            f"{rules.loss_tolerance:.3g} x mean and {rules.loss_spreads:.3g} x standard deviation."
        )
    return (
        text + sensitivity(board) + transports(board) + (published_words(board.baseline.run) if board.baseline else [])
    )


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


def verdict_words(entry: Entry) -> str:
    """Return the verdict, with a star if it holds at SURE, or why the trial does not count."""
    if entry.verdict is Verdict.invalid:
        return reasons(entry)
    return f"{entry.verdict.value}{' *' if entry.holds else ''}"


# --- tables ----------------------------------------------------------------------------------------------------


def leader_rows(board: Leaderboard) -> list[list[str]]:
    """Return a row a trial, those that do not count last; the baseline stands before those that tie with it."""
    rows = [leader_row(board, entry) for entry in board.entries]
    faster = sum(entry.verdict is Verdict.faster for entry in board.entries)
    if board.baseline is None:
        return rows
    runs = board.baseline.runs
    baseline = ["baseline", str(faster + 1), time_words(board, runs), "1", "", str(len(runs)), loss_words(board, runs)]
    return [*rows[:faster], [*baseline, ""], *rows[faster:]]


def leader_row(board: Leaderboard, entry: Entry) -> list[str]:
    """Return the cells of a trial under HEADINGS."""
    used = entry.trial.used
    counts = entry.verdict is not Verdict.invalid
    interval = " to ".join(f"{value:.3f}" for value in entry.interval) if entry.interval and counts else ABSENT
    return [
        entry.trial.name,
        ABSENT if entry.rank is None else str(entry.rank),
        time_words(board, used),
        f"{entry.ratio.middle:.3f}" if entry.ratio is not None and counts else ABSENT,
        interval,
        str(len(entry.ratios)),
        loss_words(board, used),
        verdict_words(entry),
    ]


def time_words(board: Leaderboard, runs: Iterable[RunResult]) -> str:
    """Return the median of the compared time."""
    time_s = middle(board.rules.time_s(run) for run in runs)
    return ABSENT if time_s is None else significant(time_s, RATIO_DIGITS)


def loss_words(board: Leaderboard, runs: Sequence[RunResult]) -> str:
    """Return the median of the judged loss."""
    loss = middle(map(board.rules.loss, runs))
    return ABSENT if loss is None else significant(loss, RATIO_DIGITS)


def ledger_rows(board: Leaderboard) -> list[list[str]]:
    """Return a row a trial in order of submission: the parts of its time, and its changes."""
    rows = []
    before = board.baseline.run if board.baseline else None
    if board.baseline is not None:
        rows.append(["baseline", *split(board.baseline.runs), ""])
    for trial in board.trials:
        rows.append([trial.name, *split(trial.used), changed(trial.first, before) or ABSENT])
        before = trial.first
    return rows


def split(runs: Sequence[RunResult]) -> list[str]:
    """Return the medians of the parts of a run's time and of their sum."""
    return [shown(metric, median(runs, metric)) for metric in m.ATTEMPT_METRICS]


def median(runs: Iterable[RunResult], metric: Metric) -> float | None:
    """Return the median of a metric over the runs that have it."""
    return middle(run.values.get(metric) for run in runs)


def middle(values: Iterable[float | None]) -> float | None:
    """Return the median of the known values, if any."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def sections(runs: Iterable[RunResult]) -> list[Section]:
    """Return two tables for each campaign among the runs: the leaderboard and the ledger."""
    found = []
    for number, board in enumerate(leaderboards(runs), start=1):
        note = " ".join([lead(board), *notes(board)])
        found.append(
            Section(
                f"Leaderboard of {board.path.name}",
                note,
                HEADINGS,
                leader_rows(board),
                leaderboard_figure(board, number),
            )
        )
        words = "Seconds per repeat, medians; the last column shows the changes against the attempt before."
        found.append(Section(f"Ledger of {board.path.name}", words, LEDGER_HEADINGS, ledger_rows(board)))
    return found


# --- the spreadsheet -------------------------------------------------------------------------------------------


def to_csv(runs: Iterable[RunResult]) -> str | None:
    """Return one row a trial of each campaign, in full precision and SI units; None without a campaign."""
    rows = [row for board in leaderboards(runs) for row in records(board)]
    if not rows:
        return None
    file = io.StringIO()
    writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: csv_cell(value) for name, value in row.items()} for row in rows)
    return file.getvalue()


def records(board: Leaderboard) -> list[dict[str, Any]]:
    """Return the values of each trial of a campaign, by column."""
    baseline = board.baseline.run if board.baseline else None
    firsts = [baseline, *(trial.first for trial in board.trials)]
    before = dict(zip((trial.name for trial in board.trials), firsts, strict=False))
    return [
        {
            "campaign": board.path.name,
            "attempt": entry.trial.name,
            "rank": entry.rank,
            "verdict": entry.verdict.name,
            "holds_after_bonferroni": entry.holds,
            "does_not_count_because": reasons(entry) or None,
            "pairs": len(entry.ratios),
            "ratio": entry.ratio.middle if entry.ratio else None,
            "ratio_low": entry.interval[0] if entry.interval else None,
            "ratio_high": entry.interval[1] if entry.interval else None,
            "counted": board.rules.counted.name,
            "counted_time_s": middle(board.rules.time_s(run) for run in entry.trial.used),
            "judged_loss": middle(board.rules.loss(run) for run in entry.trial.used),
            **{metric.name: median(entry.trial.used, metric) for metric in (*m.ATTEMPT_METRICS, *WORK)},
            "changed_against_baseline": changed(entry.trial.first, baseline),
            "changed_against_attempt_before": changed(entry.trial.first, before[entry.trial.name]),
        }
        for entry in board.entries
    ]


def changed(run: RunResult, since: RunResult | None) -> str | None:
    """Return the differences from another run in words; None without one."""
    return None if since is None else "; ".join(changes(run, since)) or "nothing"
