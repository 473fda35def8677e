"""Find and read everything to report on: our run directories, and every other file that may be a log; each once.

A directory is a run if it contains at least two of the files that jobs/rundir.py names, so that a broken run is still
listed. Other files in a sweep of ours are not logs.
"""

from __future__ import annotations

import functools
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from analysis.failures.sacct import accounted
from analysis.load.account import FileUse, Use, use_of
from analysis.load.paths import require
from analysis.load.read import Task, results
from analysis.load.run_files import FILES
from analysis.logs.facts import Facts, read_facts
from analysis.logs.file import LogFile, read_log_file
from analysis.logs.runs import log_runs, name_below
from analysis.logs.streams import job_name, with_errors
from analysis.metrics.cold_starts import cold_values
from analysis.metrics.cost import cost_values
from analysis.metrics.epochs import epoch_values
from analysis.metrics.mfu import utilization
from analysis.parsers.benchmarks import genai_perf
from analysis.parsers.cluster import sacct
from analysis.parsers.detect import document
from analysis.progress import with_progress
from analysis.run import FACTS_FILE, RunResult
from analysis.untrusted import canonical
from jobs.errors import ReportError, SuiteError
from jobs.files import DEEPEST, confine, reason
from jobs.rundir import FIGURES, TABLES, TUNING, WRITTEN, RunDir, SweepDir, read_records
from jobs.submit.trust.own_sweeps import is_own


@dataclass(frozen=True)
class Found:
    """Everything at and below the paths of a report."""

    runs: Sequence[RunResult]
    """Our run directories, then the trainings in logs."""
    logs: Sequence[LogFile]
    """Every file of a known format, with those of trainings."""
    unknown: Sequence[str]
    """Files of no known format, by their paths below those given."""
    uses: Sequence[FileUse]
    """The use of each run directory and file that was given."""


def read(paths: Iterable[Path], *, may_spawn: bool = False, follow: bool = False) -> Found:
    """Read every run and log at and below these paths, each once, in the order of their paths.

    Links out of these directories are read only in sweeps that the user submitted or trusted, or with `follow`.

    Without `may_spawn` this process reads all of them: a spawned process would execute the lines of a caller's script
    again. Raise ReportError if a path does not exist or if there is neither a run nor a log.
    """
    paths = list(paths)
    directories: set[Path] = set()
    files: dict[Path, Path] = {}
    for path in paths:
        runs, others = files_below(path)
        root = path.resolve()
        directories |= runs
        files |= {below(root, other): root for other in others}
    confined = [] if follow else strange(map(Path.resolve, paths), directories)
    confine(confined)
    # A link out of its folder, to a file of another folder of this report.
    files = {path: root for path, root in files.items() if path.resolve() == path or path.resolve() not in files}
    ledger = functools.cache(submissions)
    tasks = [
        Task(path, ledger(path.parent).get(path.name, []), confined)
        # Equal to the order of paths, which would split their parts at each comparison.
        for path in sorted(directories, key=lambda path: path.parts)
    ]
    own = list(with_progress(results(tasks, may_spawn=may_spawn), len(tasks), "Reading runs"))
    facts, wrong = facts_in(path for path in sorted(files) if path.name == FACTS_FILE)
    paths_of_logs = [path for path in sorted(files) if path.name != FACTS_FILE]
    read_files = {
        path: read_or_refuse(path) for path in with_progress(paths_of_logs, len(paths_of_logs), "Reading logs")
    }
    logs = with_accounting(with_errors(read_files))
    recognized = [log for log in logs.values() if log.recognized]
    roots = sorted({files[log.path] for log in recognized})
    trainings = [
        run for root in roots for run in log_runs([log for log in recognized if files[log.path] == root], root, facts)
    ]
    trainings = [without_facts(run, wrong) for run in trainings]
    if not own and not recognized:
        given = ", ".join(str(path) for path in paths) or "nothing"
        raise ReportError(
            f"{given}: no run in it, and no log of a known format. A run is a directory with at least two of "
            f"{', '.join(FILES)}; the README lists the known formats. Pass sweeps, runs, logs or directories of them, "
            "for example: slurmscale report runs/demo"
        )
    unknown = [
        name_below(files[path], path) + (f" ({log.unread})" if log.unread else "")
        for path, log in logs.items()
        if not log.recognized
    ]
    ran = {run.path for run in trainings}
    jobs = {job_name(path) for path in ran}
    uses = [
        *(FileUse(run.name, Use.run) for run in own),
        *(FileUse(name_below(files[path], path), Use.description) for path in sorted(files) if path.name == FACTS_FILE),
        *(use_of(log, name_below(files[path], path), ran, jobs) for path, log in logs.items()),
    ]
    return Found(with_derived([*without_copies(own), *trainings]), recognized, unknown, uses)


def strange(roots: Iterable[Path], runs: Iterable[Path]) -> list[Path]:
    """Return the directories given, and those of sweeps of runs, unless all are the user's own by record."""
    places = {root if root.is_dir() else root.parent for root in roots} | {run.parent for run in runs}
    own = {place for place in places if is_recorded(place)}
    return [] if own == places else sorted(places)


def is_recorded(place: Path) -> bool:
    """Return True if a directory is a sweep of the user's own record, or a run in one."""
    with suppress(SuiteError, OSError):
        return is_own(SweepDir(place)) or is_own(SweepDir(place.parent))
    return False


def facts_in(paths: Iterable[Path]) -> tuple[dict[Path, Facts], dict[Path, str]]:
    """Return the facts by their directories, and the reasons of those that are wrong."""
    facts, wrong = {}, {}
    for path in paths:
        try:
            facts[path.parent] = read_facts(path)
        except ReportError as error:
            wrong[path.parent] = str(error)
    return facts, wrong


def without_facts(run: RunResult, wrong: Mapping[Path, str]) -> RunResult:
    """Return a training of a log, unused if a facts.yaml next to or above it is wrong: its numbers may be others."""
    for place, why in wrong.items():
        if run.path.is_relative_to(place):
            return replace(run, state="unreadable", reason=why)
    return run


def below(root: Path, path: Path) -> Path:
    """Return the resolved path of a file at or below a root; of a link to a file elsewhere that of the link."""
    resolved = path.resolve()
    return resolved if resolved.is_relative_to(root) else path


def read_or_refuse(path: Path) -> LogFile:
    """Return the content of a log; of one that cannot be read the reason."""
    try:
        return read_log_file(path)
    except OSError as error:
        return LogFile(path, unread=f"not read: {reason(error)}")


def with_derived(runs: Iterable[RunResult]) -> list[RunResult]:
    """Return the runs, the used ones with cold starts, MFU, time of an epoch and cost; logs are treated alike."""
    runs = list(runs)
    cold = cold_values(runs)

    def derived(run: RunResult) -> RunResult:
        found = utilization(run)
        values = {**run.values, **cold.get(run.path, {}), **found.values, **epoch_values(run)}
        run = replace(run, values=values, utilization=found)
        return replace(run, values={**run.values, **cost_values(run)})

    return [derived(run) if run.used else run for run in runs]


def with_accounting(logs: Mapping[Path, LogFile]) -> dict[Path, LogFile]:
    """Return the logs with the verdicts that tables of sacct among them add."""
    tables = [path for path, log in logs.items() if sacct.FORMAT.name in log.formats]
    verdicts = {path: log.verdict for path, log in logs.items() if log.verdict and path not in tables}
    updated = accounted(verdicts, tables)
    return {path: replace(log, verdict=updated.get(path, log.verdict)) for path, log in logs.items()}


def read_runs(paths: Iterable[Path], *, may_spawn: bool = False) -> list[RunResult]:
    """Read only the runs, ours and those of logs; errors as for `read`."""
    return list(read(paths, may_spawn=may_spawn).runs)


def submissions(sweep: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the submissions of a sweep by run name; empty if its ledger is missing or cannot be read."""
    records: dict[str, list[dict[str, Any]]] = defaultdict(list)
    with suppress(OSError):
        for record in read_records(SweepDir(sweep).submissions):
            if record.get("event") == "submitted":
                records[str(record.get("run"))].append(record)
    return records


def files_below(path: Path) -> tuple[set[Path], list[Path]]:
    """Return our run directories at or below a path, resolved, and other files.

    Omit files inside a run or a sweep, and the parts of a benchmark result whose manifest is present.
    """
    require(path)
    if path.is_file():
        return set(), [path]
    runs: set[Path] = set()
    others: list[Path] = []
    parts: set[Path] = set()

    def unreadable(error: OSError) -> None:
        # Reading it reports the error.
        runs.add(Path(error.filename))

    of_a_run = frozenset(FILES)
    root = str(path.resolve())
    for directory, folders, files in os.walk(root, onerror=unreadable):
        # One such file is not enough: conf/config.yaml of a checkout is not a run.
        if len(of_a_run.intersection(files)) > 1:
            runs.add(Path(directory))
            # A run next to it: the load on its model (stages.serve).
            folders[:] = [name for name in folders if name == RunDir(Path()).served.name]
        elif SweepDir(Path(directory)).submissions.name in files:
            folders[:] = [name for name in folders if name != SweepDir(Path()).logs.name]
        elif TUNING in files:
            folders[:] = [name for name in folders if name != "experiment"]
        else:
            others += [Path(directory) / name for name in files if name not in WRITTEN and not name.startswith(".")]
        if genai_perf.MANIFEST in files:
            with suppress(OSError):
                named = map(Path, genai_perf.parts(document(Path(directory) / genai_perf.MANIFEST)))
                parts |= {Path(directory) / part for part in named if part.name in files and not part.is_absolute()}
        if "report.html" in files:
            folders[:] = [name for name in folders if name not in {FIGURES, TABLES}]
        folders[:] = [name for name in folders if not name.startswith((".", "code-"))]
        if directory.count(os.sep) - root.count(os.sep) >= DEEPEST:
            folders.clear()
    return runs, [other for other in others if other not in parts and other.exists()]


def without_copies(runs: list[RunResult]) -> list[RunResult]:
    """Return the runs, with a copied run directory unused: it is not a second measurement."""

    def name(run: RunResult) -> tuple[str, str]:
        return str(run.config.get("sweep")), str(run.config.get("name"))

    namesakes = Counter(map(name, runs))
    originals: dict[bytes, RunResult] = {}
    kept = []
    for run in runs:
        # Serializing is slow, and nearly every name is unique.
        if not run.used or namesakes[name(run)] == 1:
            kept.append(run)
            continue
        original = originals.setdefault(canonical([run.config, run.events]), run)
        reason = None if original is run else f"a copy of {original.path}"
        kept.append(run if reason is None else replace(run, state="copy", reason=reason))
    return kept
