"""`slurmscale leaderboard DIR`: the trials of a campaign by rank, why some do not count, and the ledger of their time.

The terminal, the page of a report and the spreadsheet show the same tables, in which a trial is called an attempt, as
in the command that submits it. Imports no torch.
"""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from rich.console import Console

from analysis.compare.campaign import (
    Entry,
    Leaderboard,
    Trial,
    Verdict,
    changes,
    leaderboards,
    part_of,
    previews,
)
from analysis.compare.campaign_budget import accounts
from analysis.compare.expectations import Expected, of_entry
from analysis.compare.score import score_of
from analysis.compare.waterfall import Stage, stages
from analysis.formatting import ABSENT, csv_cell, percent, shown, significant, title, without_unit
from analysis.intervals import CONFIDENCE
from analysis.load.discover import read_runs
from analysis.metrics.programs import step_time_name
from analysis.report.figures.leaderboard import leaderboard_figure
from analysis.report.figures.style import Section
from analysis.report.figures.waterfall import waterfall_figure
from analysis.report.leaderboard_text import RATIO_DIGITS, answer, lead, notes, reasons, verdict_words
from analysis.run import RunResult
from jobs import metrics as m
from jobs.answers import AttemptAnswer, BudgetAnswer, CampaignAnswer, LeaderboardAnswer
from jobs.console import console, plain
from jobs.errors import ReportError
from jobs.fitted_table import FittedTable
from jobs.metrics import Metric
from jobs.rundir import SweepDir
from jobs.submit.preparation.preview import only_previewed

FILE_NAME = "leaderboard.csv"
LEDGER = dict(
    zip(("Start-up", "First step", "Warm-up", "Steady", "Checkpoint", "Other", "Total"), m.ATTEMPT_METRICS, strict=True)
)
WORK = (m.SAMPLES_PER_STEP, m.SAMPLES_TRAINED, m.TOKENS_TRAINED)


def found_in(path: Path) -> tuple[list[Leaderboard], dict[Path, list[str]]]:
    """Return the leaderboards in a directory, and `previews` of its runs; raise ReportError without a leaderboard."""
    if not path.is_dir():
        raise ReportError(
            f"There is no directory {path}. Pass the directory of a campaign, such as runs/apac_hpc_ai_2024."
        )
    runs = read_runs([path])
    found, only_shown = leaderboards(runs), previews(runs)
    if not found:
        if only_shown:
            raise ReportError("\n".join(only_previewed(SweepDir(each)) for each in only_shown))
        raise ReportError(
            f"{path} is not a campaign: no run in it was started by slurmscale attempt. To begin one, run: "
            "slurmscale attempt baseline OVERRIDES"
        )
    return found, only_shown


def show(path: Path) -> int:
    """Print the leaderboard of a campaign and return the exit code; raise ReportError if there is none."""
    found, only_shown = found_in(path)
    out = console()
    for board in found:
        print_board(board, out)
        if names := only_shown.get(board.path):
            out.print(plain(f"Only previewed (launcher=dry), and left out: repeats of {', '.join(names)}."))
    return 0


def leaderboard_answer(path: Path) -> LeaderboardAnswer:
    """Return the leaderboards in the directory of a campaign; raise ReportError if there is none."""
    return LeaderboardAnswer([campaign_answer(board) for board in found_in(path)[0]])


def campaign_answer(board: Leaderboard) -> CampaignAnswer:
    """Return a judged campaign."""
    attempts = []
    for entry, values in zip(board.entries, records(board), strict=True):
        own = {field.name: values.pop(field.name) for field in fields(AttemptAnswer) if field.name in values}
        attempts.append(AttemptAnswer(**own | {"verdict": entry.verdict.name}, values=values))
    budget = [BudgetAnswer(each.key, each.limit, each.used, each.of_a_run) for each in accounts(board.runs)]
    compared_metric = (board.rules.counted or board.rules.metric).name
    return CampaignAnswer(str(board.path), answer(board), compared_metric, attempts, budget)


def print_board(board: Leaderboard, out: Console) -> None:
    """Print the leaderboard, the trials that do not count, and the ledger, for a terminal of 80 columns or more."""
    out.print(lead(board))
    rows, below = leader_rows(board), [entry for entry in board.entries if entry.verdict is Verdict.invalid]
    out.print(rich_table(headings(board), rows[: len(rows) - len(below)]))
    if below:
        out.print("\nNot ranked, because they do not count:")
    for entry in below:
        out.print(f"  {entry.trial.name}: {reasons(entry)}")
    out.print("\nLedger: seconds per repeat, medians")
    titles, ledger = ledger_table(board)
    out.print(rich_table(titles[:-1], [row[:-1] for row in ledger]))
    out.print("\nChanges of each attempt against the one before:")
    for row in ledger[1:]:
        out.print(f"  {row[0]}: {row[-1]}")
    out.print()
    for note in notes(board):
        out.print(note)


def rich_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> FittedTable:
    """Return a table of names, numbers and, under that heading, a verdict as text."""
    table = FittedTable()
    for heading in headings:
        {"Attempt": table.whole, "Verdict": table.text}.get(heading, table.number)(heading)
    for row in rows:
        table.add_row(*(plain(cell) for cell in row))
    return table


# --- tables ----------------------------------------------------------------------------------------------------


def headings(board: Leaderboard) -> list[str]:
    """Return the headings of the leaderboard: with what is compared, and with the loss where one was reported."""
    compared = "Time (s)" if board.rules.counted is not None else title(board.rules.metric)
    tier, loss = ["Tier"] if has_tiers(board) else [], ["Loss"] if has_loss(board) else []
    score = ["Score"] if board.rules.runs is not None else []
    return ["Attempt", *tier, "Rank", compared, *score, "Ratio", "95 % interval", "n", *loss, "Verdict"]


def has_tiers(board: Leaderboard) -> bool:
    """Return True if the contest of a campaign has tiers."""
    return any(tier_of(trial) for trial in board.trials)


def tier_of(trial: Trial) -> str:
    """Return the tier of a trial in its contest; empty without one."""
    return str((part_of(trial.first) or {}).get("tier", ""))


def has_loss(board: Leaderboard) -> bool:
    """Return True if a run of a campaign reported losses."""
    return any(run.losses for run in board.runs)


def leader_rows(board: Leaderboard) -> list[list[str]]:
    """Return one row per trial, those that do not count last; the baseline stands before those that tie with it."""
    rows = [leader_row(board, entry) for entry in board.entries]
    faster = sum(entry.verdict is Verdict.faster for entry in board.entries)
    if board.baseline is None:
        return rows
    runs = board.baseline.runs
    loss = [median_words(map(board.rules.loss, runs))] if has_loss(board) else []
    tier = [""] if has_tiers(board) else []
    times = [compared(board, runs), *score_cell(board, None)]
    baseline = ["baseline", *tier, str(faster + 1), *times, "1", "", str(len(runs)), *loss, ""]
    return [*rows[:faster], baseline, *rows[faster:]]


def leader_row(board: Leaderboard, entry: Entry) -> list[str]:
    """Return the cells of a trial under the headings."""
    used = entry.trial.used
    counts = entry.verdict is not Verdict.invalid
    return [
        entry.trial.name,
        *([tier_of(entry.trial)] if has_tiers(board) else []),
        ABSENT if entry.rank is None else str(entry.rank),
        compared(board, used),
        *score_cell(board, entry),
        f"{entry.ratio.middle:.3f}" if entry.ratio is not None and counts else ABSENT,
        interval_words(entry.interval if counts else None),
        str(len(entry.ratios)),
        *([median_words(map(board.rules.loss, used))] if has_loss(board) else []),
        verdict_words(entry, floor=board.rules.floor),
    ]


def interval_words(interval: tuple[float, float] | None) -> str:
    """Return the ends of an interval, if any."""
    return ABSENT if interval is None else " to ".join(f"{value:.3f}" for value in interval)


def compared(board: Leaderboard, runs: Iterable[RunResult]) -> str:
    """Return the median of what is compared, in the unit of the heading."""
    return in_unit(board, middle(map(board.rules.value, runs)))


def score_cell(board: Leaderboard, entry: Entry | None) -> list[str]:
    """Return the official score of a trial, or of the baseline for None; empty if the contest has none."""
    found = score_of(board, entry)
    return [] if found is None else [in_unit(board, found.value)]


def in_unit(board: Leaderboard, value: float | None) -> str:
    """Return a value of what is compared, in the unit of the heading."""
    return ABSENT if value is None else significant(value / board.rules.metric.display.size, RATIO_DIGITS)


def median_words(values: Iterable[float | None]) -> str:
    """Return the median of the known values as text."""
    value = middle(values)
    return ABSENT if value is None else significant(value, RATIO_DIGITS)


def ledger_table(board: Leaderboard) -> tuple[list[str], list[list[str]]]:
    """Return the headings and one row per trial in order of submission: the parts of its time, and its changes.

    A part that no trial has is left out.
    """
    rows, parts = [], ledger_parts(board)
    before = board.baseline.run if board.baseline else None
    if board.baseline is not None:
        rows.append(["baseline", *split(board.baseline.runs, parts.values()), ""])
    for trial in board.trials:
        rows.append([trial.name, *split(trial.used, parts.values()), changed(trial.first, before) or ABSENT])
        before = trial.first
    titles = ["Attempt", *parts, "Changed"]
    kept = [i for i in range(len(titles)) if any(row[i] != ABSENT for row in rows)]
    return [titles[i] for i in kept], [[row[i] for i in kept] for row in rows]


def ledger_parts(board: Leaderboard) -> dict[str, Metric]:
    """Return the parts of a run's time and their sum, by heading; of a program its steps."""
    if board.rules.counted is not None:
        return LEDGER
    known = dict.fromkeys(metric for run in board.runs for metric in run.values)
    steps = {without_unit(metric): metric for metric in known if metric.name in step_names(board.first)}
    return {"Server start": m.SERVER_STARTUP_TIME, **steps, "Total": m.PROGRAM_TIME}


def step_names(run: RunResult) -> set[str]:
    """Return the names of the metrics of a program's steps."""
    return {step_time_name(step) for step in run.setting("program.steps") or ()}


def split(runs: Sequence[RunResult], parts: Iterable[Metric]) -> list[str]:
    """Return the medians of the parts of a run's time and of their sum."""
    return [shown(metric, median(runs, metric)) for metric in parts]


def median(runs: Iterable[RunResult], metric: Metric) -> float | None:
    """Return the median of a metric over the runs that have it."""
    return middle(run.values.get(metric) for run in runs)


def middle(values: Iterable[float | None]) -> float | None:
    """Return the median of the known values, if any."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def sections(boards: Iterable[Leaderboard]) -> list[Section]:
    """Return the tables of each campaign: the leaderboard, the way to the best attempt, if any, and the ledger."""
    found = []
    for number, board in enumerate(boards, start=1):
        note, figure = " ".join([lead(board), *notes(board)]), leaderboard_figure(board, number)
        words = "Seconds per repeat, medians; the last column shows the changes against the attempt before."
        found.append(
            Section(f"Leaderboard of {board.path.name}", note, headings(board), leader_rows(board), figure),
        )
        if way := stages(board):
            found.append(waterfall(board, way, number))
        found.append(Section(f"Ledger of {board.path.name}", words, *ledger_table(board)))
    return found


def waterfall(board: Leaderboard, way: list[Stage], number: int) -> Section:
    """Return the way from the baseline to the best attempt, one row per change."""
    rows = [
        [
            stage.entry.trial.name,
            f"{stage.gain:.3f}",
            interval_words(stage.interval),
            str(len(stage.entry.ratios)),
            f"{stage.total:.3f}",
            "; ".join(stage.changes),
        ]
        for stage in way
    ]
    note = (
        "The attempts whose changes are all among those of the best, each with what its own change gained over the one "
        f"before; {percent(CONFIDENCE)} intervals of this gain (Student's t of the first, Welch's of the others)."
    )
    titles = ("Attempt", "Gain", "95 % interval", "n", "In all", "Changed")
    name = f"From the baseline to {way[-1].entry.trial.name}"
    return Section(name, note, titles, rows, waterfall_figure(board, way, number))


# --- the spreadsheet -------------------------------------------------------------------------------------------


def to_csv(boards: Iterable[Leaderboard]) -> str | None:
    """Return one row per trial of each campaign, in full precision and SI units; None if there is no campaign."""
    rows = [row for board in boards for row in records(board)]
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
            "tier": tier_of(entry.trial) or None,
            "rank": entry.rank,
            "verdict": entry.verdict.name,
            "holds_after_bonferroni": entry.holds,
            "does_not_count_because": reasons(entry) or None,
            "pairs": len(entry.ratios),
            "ratio": entry.ratio.middle if entry.ratio else None,
            "ratio_low": entry.interval[0] if entry.interval else None,
            "ratio_high": entry.interval[1] if entry.interval else None,
            "minimum_effect": entry.trial.sequence.minimum_effect if entry.trial.sequence else None,
            **proxy_columns(entry),
            **expected_columns(of_entry(entry, board.rules)),
            "counted": board.rules.counted.name if board.rules.counted else board.rules.metric.name,
            "counted_time_s": middle(map(board.rules.value, entry.trial.used)) if board.rules.counted else None,
            "counted_value": middle(map(board.rules.value, entry.trial.used)),
            "official_score": score.value if (score := score_of(board, entry)) else None,
            "judged_loss": middle(board.rules.loss(run) for run in entry.trial.used),
            **{metric.name: median(entry.trial.used, metric) for metric in (*m.ATTEMPT_METRICS, *WORK)},
            "changed_against_baseline": changed(entry.trial.first, baseline),
            "changed_against_attempt_before": changed(entry.trial.first, before[entry.trial.name]),
        }
        for entry in board.entries
    ]


def proxy_columns(entry: Entry) -> dict[str, Any]:
    """Return the overrides that shortened the runs of a trial, and their bias, by column; None in each without one."""
    return {
        "proxy": entry.trial.proxy.name if entry.trial.proxy else None,
        "proxy_configurations": len(entry.trial.proxy.biases) if entry.trial.proxy else None,
        "bias": entry.bias.middle if entry.bias else None,
        "bias_low": entry.bias.low if entry.bias else None,
        "bias_high": entry.bias.high if entry.bias else None,
    }


def expected_columns(found: Expected | None) -> dict[str, Any]:
    """Return the outcome of an expectation, by column; None in each without one."""
    low, high = (found and found.interval) or (None, None)
    return {
        "expected": found.expectation.text if found else None,
        "expected_state": found.state.name if found else None,
        "expected_low": low,
        "expected_high": high,
    }


def changed(run: RunResult, since: RunResult | None) -> str | None:
    """Return the differences from another run as text; None if there is none."""
    return None if since is None else "; ".join(changes(run, since)) or "nothing"
