"""`slurmscale package CAMPAIGN ATTEMPT`: a directory of texts by which somebody else can check and repeat an attempt.

README.md        what changed, why it is the same task, the evidence, the speed-up over the baseline
ARTIFACT.md      with --layout sc the same as an artifact description and evaluation
campaign.yaml    baseline and attempt as overrides, for `slurmscale rerun`
claim.json       the ratios of the pairs, and what they are ratios of
site/            the choices of the site's own directory (SLURMSCALE_SITE) that the overrides may name
runs/            configuration, provenance, events and output of every run
SHA256SUMS       of all files, for sha256sum -c
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from analysis.compare.campaign import Entry, Leaderboard, Verdict, changes, leaderboards, part_of
from analysis.formatting import significant
from analysis.load.discover import read_runs
from analysis.report.leaderboard import headings, leader_row
from analysis.report.leaderboard_text import RATIO_DIGITS, counted_words, verdict_words
from analysis.run import RunResult, hardware
from jobs.answers import PackageAnswer
from jobs.errors import ConfigError, RunDirError
from jobs.explore.campaign.artifact import appendix
from jobs.explore.campaign.campaign import recorded
from jobs.files import file_names, read_tail, read_text, reason
from jobs.output import own_directory, write_file
from jobs.plan.choices import site
from jobs.plan.keys import GROUPS
from jobs.rundir import BASELINE, RunDir, SweepDir
from jobs.secrets import redact

LONGEST_FILE_BYTES = 64 << 20
LONGEST_LOG_BYTES = 1 << 20
"""Size of the end of a log that is packed."""
CLAIM, ATTEMPTS, SUMS = "claim.json", "campaign.yaml", "SHA256SUMS"


def package(campaign: Path, name: str, output: Path | None, layout: str | None = None) -> PackageAnswer:
    """Write the package of an attempt, print its path, and return what was written; with layout `sc` an appendix, too.

    Raise RunDirError for an attempt that the campaign lacks or that does not count, ConfigError for a directory that
    exists.
    """
    board = board_of(campaign)
    entry = next((each for each in board.entries if each.trial.name == name), None)
    if entry is None or board.baseline is None:
        known = ", ".join(each.trial.name for each in board.entries)
        others = f"Its attempts are {known}" if known else "It has none yet: run slurmscale attempt NAME OVERRIDES"
        raise RunDirError(f"{campaign} has no attempt {name} with a finished baseline. {others}.")
    if entry.verdict in {Verdict.invalid, Verdict.too_few, Verdict.undecided}:
        raise RunDirError(f"{name} cannot be claimed: {verdict_words(entry)}. Repeat it, or package another attempt.")
    if entry.trial.proxy is not None:
        raise RunDirError(
            f"{name} cannot be claimed: its runs are short (--proxy {entry.trial.proxy.name}). Run it at full length "
            "under another name, or package another attempt."
        )
    place = output or Path(f"package-{board.path.name}-{name}")
    if place.exists():
        raise ConfigError(f"{place} exists. Remove it, or choose another directory: --output DIR")
    texts = dict(contents(board, entry))
    if layout is not None:
        changed = changes(entry.trial.first, board.baseline.run) or ["nothing"]
        texts["ARTIFACT.md"] = appendix(board, entry, claim_in_words(board, entry), sameness(board, entry), changed)
    hidden = {path: redact(text) for path, text in texts.items()}
    sums = {path: hashlib.sha256(text.encode()).hexdigest() for path, text in hidden.items()}
    hidden[SUMS] = "".join(f"{digest}  {path}\n" for path, digest in sums.items())
    try:
        own_directory(place)
        for path, text in hidden.items():
            (place / path).parent.mkdir(parents=True, exist_ok=True)
            write_file(place / path, text)
    except OSError as error:
        # Half a package would be refused where it is read.
        shutil.rmtree(place, ignore_errors=True)
        raise ConfigError(
            f"{place} cannot be written: {reason(error)}. Free some space, or choose another directory: --output DIR"
        ) from error
    replaced = [path for path, text in texts.items() if hidden[path] != text]
    if replaced:
        print(f"Secrets were replaced in {', '.join(replaced)}.")
    print(f"{place}: {len(hidden)} files. Somebody else repeats it by: slurmscale rerun {place}")
    return PackageAnswer(str(place), list(hidden), replaced)


def board_of(campaign: Path) -> Leaderboard:
    """Return the leaderboard of a campaign's directory; raise RunDirError if it is none."""
    found = leaderboards(read_runs([campaign])) if campaign.is_dir() else []
    if len(found) != 1:
        raise RunDirError(f"{campaign} is not the directory of one campaign. Pass one, such as runs/mine.")
    return found[0]


def contents(board: Leaderboard, entry: Entry) -> Iterator[tuple[str, str]]:
    """Yield path and text of each file of the package, but the checksums."""
    assert board.baseline is not None
    # The repeats of the baseline that are paired with a trial record the changes of that trial.
    own = next((run for run in board.baseline_runs if (part_of(run) or {}).get("name") == BASELINE), None)
    if own is None or recorded(RunDir(own.path)) is None or recorded(RunDir(entry.trial.first.path)) is None:
        raise RunDirError(f"{board.path} has no record of its attempts' overrides, so nobody could repeat them.")
    overrides = {BASELINE: changes_of(own), entry.trial.name: changes_of(entry.trial.first)}
    yield "README.md", readme(board, entry)
    yield ATTEMPTS, yaml.safe_dump(overrides, sort_keys=False, allow_unicode=True, width=10_000)
    yield CLAIM, json.dumps(claim_of(board, entry), indent=1) + "\n"
    place = site()
    for file in sorted(place.glob("*/*.yaml")) if place is not None else ():
        if file.parent.name in GROUPS:
            yield f"site/{file.parent.name}/{file.name}", read_text(file)
    for run in (*board.baseline_runs, *entry.trial.runs.values()):
        yield from files_of(run)


def changes_of(run: RunResult) -> list[str]:
    """Return the overrides that a run of a campaign records."""
    return list((recorded(RunDir(run.path)) or {})["changes"])


def files_of(run: RunResult) -> Iterator[tuple[str, str]]:
    """Yield path and text of the files of a run."""
    directory = RunDir(run.path)
    for file in (directory.config, directory.plan, directory.provenance, directory.status, directory.metrics):
        if file.exists():
            yield f"runs/{run.name}/{file.name}", read_text(file, LONGEST_FILE_BYTES)
    if directory.program.is_dir():
        for name in sorted(file_names(directory.program)):
            if name.endswith(".log"):
                yield f"runs/{run.name}/program/{name}", read_tail(directory.program / name, LONGEST_LOG_BYTES)


def claim_of(board: Leaderboard, entry: Entry) -> dict[str, Any]:
    """Return what the attempt claims, as data: the ratios of its pairs, and their interval."""
    assert entry.ratio is not None
    return {
        "attempt": entry.trial.name,
        "verdict": entry.verdict.name,
        "compared": board.rules.ratio_in_words,
        "ratio": entry.ratio.middle,
        "interval": list(entry.interval) if entry.interval else None,
        "ratios": list(entry.ratios),
        "hardware": hardware([run for run in board.runs if run.started]),
        "contest": board.first.setting("contest.name"),
    }


def readme(board: Leaderboard, entry: Entry) -> str:
    """Return the four answers of an attempt: what changed, why it is the same task, evidence, speed-up."""
    assert board.baseline is not None
    baseline, name = board.baseline.run, entry.trial.name
    rows = [headings(board), leader_row(board, entry)]
    note = SweepDir(board.path).note
    lines = [
        f"# {name} of {board.path.name}",
        "",
        f"{hardware([run for run in board.runs if run.started])}. Compared: {counted_words(board.rules)}.",
        "",
        "## What was changed",
        "",
        *(f"* `{each}`" for each in changes(entry.trial.first, baseline) or ["nothing"]),
        "",
        "## Why it is the same task",
        "",
        *(f"* {each}" for each in sameness(board, entry)),
        *([f"* {read_text(note).strip()}"] if note.exists() else []),
        "",
        "## Evidence",
        "",
        *markdown(rows),
        "",
        *markdown([["Pair", "Baseline", "Attempt"], *pairs_of(board, entry)]),
        "",
        "## Speed-up over the baseline",
        "",
        claim_in_words(board, entry),
        "",
        "## Check and repeat it",
        "",
        "    sha256sum -c SHA256SUMS",
        "    slurmscale rerun .",
        "",
    ]
    return "\n".join(lines)


def claim_in_words(board: Leaderboard, entry: Entry) -> str:
    """Return the speed-up of an attempt over the baseline as a sentence."""
    assert entry.ratio is not None
    interval = f", 95 % interval {entry.interval[0]:.3f} to {entry.interval[1]:.3f}" if entry.interval else ""
    return (
        f"{entry.ratio.middle:.3f} ({board.rules.ratio_in_words}{interval}, n = {len(entry.ratios)} pairs that ran in "
        f"turns): {verdict_words(entry, floor=board.rules.floor)}."
    )


def pairs_of(board: Leaderboard, entry: Entry) -> Iterator[list[str]]:
    """Yield number and both compared values of each pair."""
    size = board.rules.metric.display.size
    for number, sides in sorted(entry.trial.repeats.items()):
        values = [board.rules.value(side[-1]) for side in sides if side]
        if len(values) == 2 and None not in values:
            yield [str(number), *(significant(value / size, RATIO_DIGITS) for value in values if value is not None)]


def sameness(board: Leaderboard, entry: Entry) -> Iterator[str]:
    """Yield what the campaign has checked of every run of the attempt."""
    run = entry.trial.first
    yield "Model, data, ranks and contest rules are those of the baseline."
    if board.baseline is not None and (band := board.baseline.band) is not None:
        yield f"Every loss is within the band of the baseline's repeats, {band[0]:.4g} to {band[1]:.4g}."
    gates = run.setting("program.gates")
    if gates:
        yield f"Every run kept the gates {', '.join(gates)}; inputs, metrics and gates are those of the baseline."


def markdown(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table of Markdown; the first row has its headings."""
    first, *others = rows
    return [f"| {' | '.join(each)} |" for each in (first, ["---"] * len(first), *others)]
