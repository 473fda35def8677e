"""`slurmscale logs`: the output of a rank of a run, from its latest attempt or from an earlier one.

launcher     output of an attempt
local        logs/ID_RANK_log.out with an id for each start
pilot        the same
slurm        logs/JOB_RANK_log.out: a job that is requeued appends to it, and the batch script, whose output rank 0
shares, prints a line at each start
"""

from __future__ import annotations

import codecs
import io
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from jobs.answers import LogsAnswer
from jobs.errors import RunDirError
from jobs.event_fields import NO_JOB
from jobs.files import exists, opened
from jobs.output import unguarded
from jobs.plan.rules.rule import either
from jobs.rundir import BATCH_STARTED, RunDir, SweepDir, load_run
from jobs.submit.commands import look, pause_s
from jobs.submit.sweeps.submissions import Submission, entries, kind_of, latest_submissions
from jobs.submit.sweeps.sweep_at import open_run
from jobs.visible import coloured

# A log may have any size. Attempts that nobody asked for are only counted in files up to the second one.
PART_BYTES = 1 << 20
COUNTED_BYTES = 64 << 20
MOST_LINES = 200
START = f"{BATCH_STARTED}, restart ".encode()


@dataclass(frozen=True)
class Attempt:
    """The output of one start of a run, a part of a file."""

    log_id: str
    begin: int = 0
    end: int | None = None
    """The byte at which the next start begins in the same file; None: none does."""


@dataclass(frozen=True)
class Output:
    """The output of a rank of a run, and all attempts that have one."""

    sweep: SweepDir
    file: Path
    chosen: Attempt
    found: list[Attempt]


def logs(path: Path, *, rank: int, follow: bool, attempt: int | None = None) -> int:
    """Print the output of a rank of a run, of its latest submission or of one of its attempts, counted from 1."""
    output = output_of(path, rank, attempt)
    if hint := hint_at_others(output.found, output.chosen, attempt):
        print(hint, file=sys.stderr, flush=True)
    goes_on = follow and output.chosen == (output.found[-1] if attempt is not None and output.found else output.chosen)
    with opened(output.file) as source:
        show(source, output.chosen, output.sweep if goes_on else None)
    return 0


def logs_answer(path: Path, *, rank: int, attempt: int | None = None) -> LogsAnswer:
    """Return the end of what `logs` prints."""
    output = output_of(path, rank, attempt)
    with opened(output.file) as source:
        end = output.chosen.end or os.fstat(source.fileno()).st_size
        begin = max(output.chosen.begin, end - PART_BYTES)
        source.seek(begin)
        lines = source.read(end - begin).decode("utf-8", "replace").splitlines()
    return LogsAnswer(
        run=str(output.sweep.only),
        rank=rank,
        attempts=len(output.found),
        file=str(output.file),
        size_bytes=end - output.chosen.begin,
        last_lines=lines[-MOST_LINES:],
    )


def output_of(path: Path, rank: int, attempt: int | None) -> Output:
    """Return where the output of a rank is; raise RunDirError if there is none."""
    run = open_run(path)
    ranks = load_run(run.config).ranks
    sweep = SweepDir(run.path.parent, run.name)
    submission = latest_submissions(sweep).get(run.name)
    if submission is None:
        raise RunDirError(f"{run.path} was never submitted. Run `slurmscale resume {sweep.quoted}`.")
    if submission.launcher == "hand":
        raise RunDirError(f"{run.name} was started by hand, outside Slurm: its output is in the shell that started it.")
    found = attempts(sweep, submission, most_bytes=COUNTED_BYTES if attempt is None else None)
    chosen = latest(run, submission) if attempt is None else the_one(run, found, attempt, rank)
    file = sweep.output(chosen.log_id, rank)
    if not exists(file) and not file.is_symlink():
        raise RunDirError(
            f"{file} does not exist: rank {rank} has not started (ranks are 0 to {ranks - 1}). "
            f"Run `slurmscale status {sweep.whole.quoted}` to see its state."
        )
    return Output(sweep, file, chosen, found)


def latest(run: RunDir, submission: Submission) -> Attempt:
    """Return the whole output of a submission."""
    if submission.log_id is None:
        raise RunDirError(f"{run.name} waits for its turn and has not printed anything yet.")
    return Attempt(submission.log_id)


def the_one(run: RunDir, found: Sequence[Attempt], number: int, rank: int) -> Attempt:
    """Return an attempt by its number; raise RunDirError if it does not exist, or its output is not apart."""
    if not found:
        raise RunDirError(f"{run.name} has not started yet, so it has no attempt {number}.")
    if not 1 <= number <= len(found):
        allowed = f"1 to {len(found)}" if len(found) > 1 else "1"
        raise RunDirError(f"{run.name} has no attempt {number}: set --attempt to {allowed}.")
    chosen = found[number - 1]
    if rank and sum(each.log_id == chosen.log_id for each in found) > 1:
        raise RunDirError(
            f"Rank {rank} of job {chosen.log_id} printed all its attempts into one file without a mark between them. "
            "Leave --attempt out, or set --rank 0."
        )
    return chosen


def attempts(sweep: SweepDir, submission: Submission, *, most_bytes: int | None) -> list[Attempt]:
    """Return the attempts of a run in their order, as far as they have an output; those of a larger file as one."""
    name, ids = submission.run, dict[str, bool]()
    for entry in entries(sweep):
        if entry.get("run") != name:
            continue
        kind = kind_of(entry.get("launcher"))
        if entry["event"] == "removed":
            ids.clear()
        elif entry["event"] == "launched":
            ids[entry["log_id"]] = False
        elif entry["event"] == "submitted" and entry["job_id"] != NO_JOB and kind is not None and kind.job_per_run:
            ids[entry["job_id"]] = True
    if not ids and submission.log_id is not None:
        ids[submission.log_id] = True
    return [
        attempt
        for log_id, several in ids.items()
        # Each start of a local queue or a pilot has a file of its own.
        for attempt in attempts_in(sweep.output(log_id), log_id, most_bytes if several else 0)
    ]


def attempts_in(file: Path, log_id: str, most_bytes: int | None) -> Iterator[Attempt]:
    """Yield the attempts whose output is in a file; of a larger one all of it as one attempt."""
    if not exists(file):
        return
    with opened(file) as source:
        if most_bytes is not None and os.fstat(source.fileno()).st_size > most_bytes:
            yield Attempt(log_id)
            return
        begins = [place for place, line in placed_lines(source) if line.startswith(START)]
    # A script that a person started prints no such line.
    begins[:1] = [0]
    for begin, end in zip(begins, [*begins[1:], None], strict=True):
        yield Attempt(log_id, begin, end)


def placed_lines(source: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file of any size with their places; of a very long line only its parts."""
    place, starts_line = 0, True
    while line := source.readline(PART_BYTES):
        if starts_line:
            yield place, line
        place += len(line)
        starts_line = line.endswith(b"\n")


def hint_at_others(found: Sequence[Attempt], chosen: Attempt, attempt: int | None) -> str:
    """Return which attempts of several are printed, and the option that prints another one."""
    if len(found) < 2:
        return ""
    shown = [
        n for n, each in enumerate(found, 1) if (each.log_id == chosen.log_id if attempt is None else n == attempt)
    ]
    others = [n for n in range(1, len(found) + 1) if n not in shown]
    if not shown:
        return ""
    if not others:
        return f"attempts 1 to {len(found)}, in one file; --attempt {either(shown)} prints one of them"
    what = "the earlier one" if others == [1] else "another one"
    here = f"attempt {shown[0]}" if len(shown) == 1 else f"attempts {shown[0]} to {shown[-1]}"
    listed = either(others) if len(others) <= 5 else f"1 to {others[-1]}"
    return f"{here} of {len(found)}; --attempt {listed} prints {what}"


def show(source: BinaryIO, what: Attempt, followed: SweepDir | None) -> None:
    """Print an attempt; with `followed` also what is added, until the run ends."""
    out = unguarded(sys.stdout)
    text = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")("replace"), translate=True)
    source.seek(what.begin)
    while True:
        # The state first, so that the last output of a run that ends meanwhile is read too.
        found = look(followed) if followed else []
        is_open = any(item.state.is_open for item in found)
        while part := lines_before(source, what.end):
            out.write(coloured(text.decode(part)))
        out.flush()
        if not is_open:
            return
        time.sleep(pause_s(found))


def lines_before(source: BinaryIO, end: int | None) -> bytes:
    """Return the next part of a file, which ends neither within a line nor within a colour, unless a line is longer."""

    def left() -> int:
        return PART_BYTES if end is None else max(0, min(PART_BYTES, end - source.tell()))

    # Another attempt begins with a line of its own.
    return source.read(left()) + source.readline(left())
