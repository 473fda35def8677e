"""`slurmscale leaderboard DIR`: who is ahead of the baseline, what does not count and why, and every attempt's ledger.

The same tables for a terminal, the page of a report and a spreadsheet. Imports no torch.
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
from rich.text import Text

from analysis.compare.campaign import Board, Entry, Verdict, boards, changes, rehearsal
from analysis.compare.published import figures_for
from analysis.formatting import ABSENT, csv_cell, plural, shown, significant
from analysis.intervals import CONFIDENCE, FEWEST_FOR_MEAN
from analysis.load.discover import read_runs
from analysis.report.figures.style import Section
from analysis.run import RunResult, hardware
from jobs import metrics as m
from jobs.errors import ReportError
from jobs.metrics import Metric
from jobs.plan.table import console
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
    """Print the leaderboard of a campaign; returns the exit code. Raises ReportError where there is none."""
    if not path.is_dir():
        raise ReportError(f"There is no directory {path}. Give that of a campaign, such as runs/apac_hpc_ai_2024.")
    found = boards(read_runs([path]))
    if not found:
        raise ReportError(
            f"{path} is not a campaign: no run in it was started by slurmscale attempt. Type slurmscale attempt "
            "baseline OVERRIDES to begin one."
        )
    for board in found:
        print_board(board, console())
    return 0


def print_board(board: Board, out: Console) -> None:
    """The leaderboard, what is below its line, and the ledger, for a terminal of 80 columns or more."""
    out.print(lead(board), markup=False, highlight=False)
    rows, below = leader_rows(board), [entry for entry in board.entries if entry.verdict is Verdict.invalid]
    out.print(rich_table(HEADINGS, rows[: len(rows) - len(below)]))
    if below:
        out.print("\nBelow the line, since they do not count:", highlight=False)
    for entry in below:
        out.print(f"  {entry.attempt.name}: {reasons(entry)}", markup=False, highlight=False)
    out.print("\nLedger: seconds of a repeat, medians", highlight=False)
    ledger = ledger_rows(board)
    out.print(rich_table(LEDGER_HEADINGS[:-1], [row[:-1] for row in ledger]))
    out.print("\nWhat each attempt changed against the one before:", highlight=False)
    for row in ledger[1:]:
        out.print(f"  {row[0]}: {row[-1]}", markup=False, highlight=False)
    out.print()
    for note in notes(board):
        out.print(note, markup=False, highlight=False)


def rich_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table of names, numbers and, where the last heading says so, a verdict in words."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="left" if heading in {"Attempt", "Verdict"} else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


# --- words -----------------------------------------------------------------------------------------------------


def lead(board: Board) -> str:
    """What is compared, on what, and whether it is the contest."""
    contest = (board.baseline or board.runs)[0].setting("contest.name")
    of = f" of {contest}" if contest and contest != board.path.name else ""
    ran = [run for run in board.runs if run.started]
    where = hardware(ran) if ran else "Nothing measured"
    text = f"{where}: campaign {board.path.name}{of}, {plural(len(board.attempts), 'attempt')} against the baseline"
    if found := rehearsal(board):
        text = f"Rehearsal, not the contest ({'; '.join(found)}). {text}"
    return f"{text}; {COUNTED_WORDS[board.rules.counted]}."


def answers(runs: Iterable[RunResult]) -> list[str]:
    """One sentence for each campaign among the runs: whether anything is faster than its baseline."""
    return [answer(board) for board in boards(runs)]


def answer(board: Board) -> str:
    """Who is ahead, by how much and how surely, and how many do not count."""
    ahead = [entry for entry in board.entries if entry.rank == 1 and entry.verdict is Verdict.faster]
    below = sum(entry.verdict is Verdict.invalid for entry in board.entries)
    counted = f"{len(board.attempts) - below} of {plural(len(board.attempts), 'attempt')} count"
    if not ahead:
        return f"Campaign {board.path.name}: no attempt is shown to be faster than the baseline; {counted}."
    said = [
        f"{entry.attempt.name} {entry.ratio:.3g} times ({' to '.join(f'{value:.3g}' for value in entry.interval)}, "
        f"{len(entry.ratios)} pairs)"
        for entry in ahead
        if entry.ratio is not None and entry.interval is not None
    ]
    return f"Campaign {board.path.name}: faster than the baseline, and first, {', '.join(said)}; {counted}."


def notes(board: Board) -> list[str]:
    """How to read it: the test, the loss band, chance among many, other transports, what the organisers measured."""
    rules = board.rules
    said = [
        "Ratio: the geometric mean of time of the baseline / time of the attempt, over n pairs of repeats that ran in "
        f"turns; its {percent(CONFIDENCE)} interval is Student's t of their logarithms. A tie is an interval that "
        "holds 1. Fewer "
        f"than {FEWEST_FOR_MEAN} pairs prove nothing. Attempts that share a rank cannot be told apart (Welch)."
    ]
    if board.reference is not None:
        low, high = (significant(value, RATIO_DIGITS) for value in board.reference.band)
        said.append(
            f"A loss counts from {low} to {high}: the mean over the last {rules.loss_steps} steps, and of the "
            f"baseline's {plural(len(board.reference.runs), 'repeat')}, +- the larger of "
            f"{rules.loss_tolerance:.3g} x mean and {rules.loss_spreads:.3g} x standard deviation."
        )
    if board.compared > 1:
        chance = 1 - CONFIDENCE**board.compared
        each = 1 - (1 - CONFIDENCE) / board.compared
        said.append(
            f"{board.compared} attempts were compared: were none of them another speed, up to {percent(chance)} of "
            f"such leaderboards would still name one. A star marks what holds at {percent(each)} too (Bonferroni)."
        )
    return said + transports(board) + (published_words(board.reference.run) if board.reference else [])


def transports(board: Board) -> list[str]:
    """The attempts whose collectives travelled by other ways than the baseline's: one sentence, or none."""
    ways = board.reference and board.reference.run.transport
    # What an older version did not record may have been the same.
    known = {attempt.name: attempt.first.transport for attempt in board.attempts if ways and attempt.first.transport}
    others = [f"of {name} by {own}" for name, own in known.items() if own != ways]
    return [f"Collectives of the baseline travelled by {ways}; {'; '.join(others)}."] if others else []


def percent(share: float) -> str:
    """A share in per cent, to a digit that tells 99 from 99.5."""
    return f"{share * 100:.3g} %"


def published_words(run: RunResult) -> list[str]:
    """What was published of the contest that a run was composed for, by machine: one sentence, or none."""
    found = [figure for figure in figures_for(run) if figure.experiment]
    values: dict[str, list[str]] = {figure.hardware: [] for figure in found}
    for figure in found:
        values[figure.hardware].append(figure.printed)
    machines = "; ".join(f"{hardware} {' and '.join(printed)}" for hardware, printed in values.items())
    return [f"Published baselines ({found[0].document.name}): {machines}."] if found else []


def reasons(entry: Entry) -> str:
    """Why an attempt does not count."""
    return "; ".join(entry.reasons)


def verdict_words(entry: Entry) -> str:
    """The verdict, starred where it survives the number of attempts; of an attempt that does not count, why."""
    if entry.verdict is Verdict.invalid:
        return reasons(entry)
    return f"{entry.verdict.value}{' *' if entry.holds else ''}"


# --- tables ----------------------------------------------------------------------------------------------------


def leader_rows(board: Board) -> list[list[str]]:
    """A row an attempt, the best first and those that do not count last; the baseline before those that tie with it."""
    rows = [leader_row(board, entry) for entry in board.entries]
    faster = sum(entry.verdict is Verdict.faster for entry in board.entries)
    if board.reference is None:
        return rows
    runs = board.reference.runs
    baseline = ["baseline", str(faster + 1), time_words(board, runs), "1", "", str(len(runs)), loss_words(board, runs)]
    return [*rows[:faster], [*baseline, ""], *rows[faster:]]


def leader_row(board: Board, entry: Entry) -> list[str]:
    """The cells of an attempt under HEADINGS."""
    used = entry.attempt.used
    counts = entry.verdict is not Verdict.invalid
    interval = " to ".join(f"{value:.3f}" for value in entry.interval) if entry.interval and counts else ABSENT
    return [
        entry.attempt.name,
        ABSENT if entry.rank is None else str(entry.rank),
        time_words(board, used),
        f"{entry.ratio:.3f}" if entry.ratio is not None and counts else ABSENT,
        interval,
        str(len(entry.ratios)),
        loss_words(board, used),
        verdict_words(entry),
    ]


def time_words(board: Board, runs: Iterable[RunResult]) -> str:
    """The median of the time that counts."""
    time_s = middle(board.rules.time_s(run) for run in runs)
    return ABSENT if time_s is None else significant(time_s, RATIO_DIGITS)


def loss_words(board: Board, runs: Sequence[RunResult]) -> str:
    """The median of the loss that is judged."""
    loss = middle(map(board.rules.loss, runs))
    return ABSENT if loss is None else significant(loss, RATIO_DIGITS)


def ledger_rows(board: Board) -> list[list[str]]:
    """A row an attempt in the order of submission: where its time went, and what was changed."""
    rows = []
    before = board.reference.run if board.reference else None
    if board.reference is not None:
        rows.append(["baseline", *split(board.reference.runs), ""])
    for attempt in board.attempts:
        rows.append([attempt.name, *split(attempt.used), changed(attempt.first, before) or ABSENT])
        before = attempt.first
    return rows


def split(runs: Sequence[RunResult]) -> list[str]:
    """The medians of the parts of a run's time and of their sum."""
    return [shown(metric, median(runs, metric)) for metric in m.ATTEMPT_METRICS]


def median(runs: Iterable[RunResult], metric: Metric) -> float | None:
    """The median of a metric over the runs that have it."""
    return middle(run.values.get(metric) for run in runs)


def middle(values: Iterable[float | None]) -> float | None:
    """The median of the values that are known, if any."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def sections(runs: Iterable[RunResult]) -> list[Section]:
    """Two tables of a report for each campaign among its runs: the leaderboard and the ledger."""
    found = []
    for board in boards(runs):
        note = " ".join([lead(board), *notes(board)])
        found.append(Section(f"Leaderboard of {board.path.name}", note, HEADINGS, leader_rows(board)))
        words = "Seconds of a repeat, medians; the last column is what was changed against the attempt before."
        found.append(Section(f"Ledger of {board.path.name}", words, LEDGER_HEADINGS, ledger_rows(board)))
    return found


# --- the spreadsheet -------------------------------------------------------------------------------------------


def to_csv(runs: Iterable[RunResult]) -> str | None:
    """One row an attempt of each campaign, full precision and SI units; None where there is no campaign."""
    rows = [row for board in boards(runs) for row in records(board)]
    if not rows:
        return None
    file = io.StringIO()
    writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: csv_cell(value) for name, value in row.items()} for row in rows)
    return file.getvalue()


def records(board: Board) -> list[dict[str, Any]]:
    """What is known of each attempt of a campaign, by column."""
    baseline = board.reference.run if board.reference else None
    firsts = [baseline, *(attempt.first for attempt in board.attempts)]
    before = dict(zip((attempt.name for attempt in board.attempts), firsts, strict=False))
    return [
        {
            "campaign": board.path.name,
            "attempt": entry.attempt.name,
            "rank": entry.rank,
            "verdict": entry.verdict.name,
            "holds_after_bonferroni": entry.holds,
            "does_not_count_because": reasons(entry) or None,
            "pairs": len(entry.ratios),
            "ratio": entry.ratio,
            "ratio_low": entry.interval[0] if entry.interval else None,
            "ratio_high": entry.interval[1] if entry.interval else None,
            "counted": board.rules.counted.name,
            "counted_time_s": middle(board.rules.time_s(run) for run in entry.attempt.used),
            "judged_loss": middle(board.rules.loss(run) for run in entry.attempt.used),
            **{metric.name: median(entry.attempt.used, metric) for metric in (*m.ATTEMPT_METRICS, *WORK)},
            "changed_against_baseline": changed(entry.attempt.first, baseline),
            "changed_against_attempt_before": changed(entry.attempt.first, before[entry.attempt.name]),
        }
        for entry in board.entries
    ]


def changed(run: RunResult, since: RunResult | None) -> str | None:
    """What differs from another configuration, in words; None where there is none."""
    return None if since is None else "; ".join(changes(run, since)) or "nothing"
