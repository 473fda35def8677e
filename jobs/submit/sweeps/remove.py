"""`slurmscale remove`: delete sweeps, or runs of them, that have ended and that belong to this user.

Only what slurmscale has written is deleted: other files of a sweep directory stay, and no link is followed. The runs
are moved out of sight first, so that nothing starts them; what an interruption leaves, the same command deletes.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from rich.filesize import decimal

from jobs.answers import RemovedAnswer
from jobs.errors import RunDirError, SubmitError, SuiteError
from jobs.files import exists, is_directory
from jobs.output import own_directory
from jobs.plan.rules.rule import counted, some
from jobs.rundir import BASELINE, RESERVED, SweepDir, append_record, code_store, event_record, load_run, provenance_of
from jobs.submit.commands import per_state
from jobs.submit.preparation.code_store import remove_unused_code
from jobs.submit.preparation.preview import CODE
from jobs.submit.stage_states import StageState, stage_states
from jobs.submit.states import RunState, State, states_of
from jobs.submit.sweeps.ledger import held
from jobs.submit.sweeps.sweep_at import is_run, refuse_link_out, sweep_at
from jobs.submit.sweeps.sweep_list import BLOCK_BYTES, entries_of, files_below
from jobs.submit.trust.own_sweeps import records_of

# The directory of a removal in a sweep directory: it proves after an interruption that the rest is to be deleted.
REMOVAL = ".slurmscale-removal"
# Leftovers of a preparation or of a file that was being written, and the lock.
HIDDEN = re.compile(r"\.(lock|(code|preparing)-.*|.*\.[0-9a-f]{16})")


@dataclass(frozen=True)
class Target:
    """A sweep or run to remove, and the states of its runs and stages."""

    sweep: SweepDir
    found: list[RunState]
    stages: list[StageState]

    @property
    def path(self) -> Path:
        """The directory of the sweep or of the run."""
        return self.sweep.path / (self.sweep.only or "")

    @property
    def entries(self) -> list[Path]:
        """The files and directories that are deleted."""
        if self.sweep.only is None:
            return list(own_entries(self.sweep))
        return [path for path in (self.path, self.sweep.path / REMOVAL) if path.exists()]

    @property
    def size_bytes(self) -> int:
        """Their size on disk."""
        return sum(map(size_of, self.entries))

    def described(self) -> str:
        """Return what it is and contains, for the question."""
        runs = [self.sweep.run(self.sweep.only)] if self.sweep.only is not None else self.sweep.runs()
        what = per_state(Counter(item.state for item in self.found)) or "the rest of a removal"
        parts = [f"{self.path}: {counted(len(runs))} ({what}), {decimal(self.size_bytes)}"]
        for name, noun in (("checkpoints", "checkpoints"), ("export", "an exported model")):
            having = [run.name for run in runs if is_directory(run.path / name) and not (run.path / name).is_symlink()]
            parts += [f"with {noun} of {some(having)}"] if having else []
        linked = [run.checkpoints for run in runs if run.checkpoints.is_symlink()]
        parts += [f"without {os.path.realpath(linked[0])}, to which a link leads"] if linked else []
        left = [] if self.sweep.only is not None else foreign_entries(self.sweep)
        parts += [f"without {some(left)}, which slurmscale did not write"] if left else []
        return "; ".join(parts)


def remove(paths: Sequence[Path], *, yes: bool) -> RemovedAnswer | None:
    """Delete sweeps and runs, all or none of those that are given; return None if the user does not confirm it."""
    sweeps = list(dict.fromkeys(target_at(path) for path in paths))
    sweeps = [each for each in sweeps if each.only is None or each.whole not in sweeps]
    with ExitStack() as locks:
        # Whoever resumes a sweep meanwhile waits for the lock, and finds no run.
        for place in sorted({each.path for each in sweeps}):
            locks.enter_context(held(SweepDir(place)))
        targets = targets_of(sweeps)
        for target in targets:
            refuse_alive(target)
        if not yes and not confirmed(targets):
            return None
        freed_bytes = sum(map(delete, targets))
    for runs_dir in sorted({each.path.parent for each in sweeps}):
        with suppress(OSError):  # a sweep there that cannot be read keeps all code
            remove_unused_code(runs_dir)
    return RemovedAnswer([str(target.path) for target in targets], freed_bytes)


# --- what is refused -------------------------------------------------------------------------------------------


def target_at(path: Path) -> SweepDir:
    """Return the sweep or run at a path; raise RunDirError for a link and for what is not the user's own."""
    here = path.expanduser().absolute()
    if here.is_symlink():
        raise RunDirError(f"{path} is a link to {here.readlink()}, and links are not followed here. Pass that path.")
    if is_rest(here):
        sweep = SweepDir(here)
    elif is_rest(here.parent) and not exists(here):
        sweep = SweepDir(here.parent, here.name)
    else:
        sweep = sweep_at(path)
        refuse_unproven(sweep)
    refuse_link_out(sweep.path)
    for each in (sweep.path, sweep.path / (sweep.only or "")):
        if exists(each) and (owner := each.lstat().st_uid) != os.getuid():
            raise RunDirError(f"{each} belongs to user {owner}, and only its owner removes it.")
    refuse_baseline(sweep)
    return sweep


def is_rest(path: Path) -> bool:
    """Return True for a sweep directory whose removal was interrupted."""
    return is_directory(path / REMOVAL) and not (path / REMOVAL).is_symlink()


def refuse_unproven(sweep: SweepDir) -> None:
    """Raise RunDirError for a directory that others than slurmscale made, also where it has runs of it."""
    if sweep.only is not None and not is_run(sweep.path / sweep.only):
        raise RunDirError(f"{sweep.path / sweep.only} has none of the files of a run, so it is not removed.")
    has_code = any(CODE.fullmatch(entry.name) for entry in sweep.path.iterdir())  # a preview of an earlier version
    made = os.path.lexists(sweep.submissions) or has_code or is_named_by_its_runs(sweep)
    if sweep.only is None and not made:
        raise RunDirError(
            f"{sweep.path} contains runs, but slurmscale submit did not make it. Pass the run directories in it: "
            f"{some([run.name for run in sweep.runs()])}."
        )


def is_named_by_its_runs(sweep: SweepDir) -> bool:
    """Return True if the directory is the sweep of all runs in it by their configurations, as that of a preview is."""
    try:
        return all(load_run(run.config).sweep == sweep.path.name for run in sweep.runs())
    except (SuiteError, OSError):
        return False


def refuse_baseline(sweep: SweepDir) -> None:
    """Raise RunDirError for a run of the baseline with which other attempts of its campaign are compared."""
    if sweep.only is None:
        return
    attempts = {run.name: provenance_of(run).get("attempt") for run in sweep.whole.runs()}
    named = {name: each.get("name") for name, each in attempts.items() if isinstance(each, dict)}
    others = {name for name in named.values() if name not in {None, BASELINE}}
    if named.get(sweep.only) == BASELINE and others:
        raise RunDirError(
            f"{sweep.only} is of the baseline of a campaign, whose attempts ({some(sorted(map(str, others)))}) are "
            f"compared with it. Remove the whole campaign: slurmscale remove {sweep.whole.quoted}"
        )


def targets_of(sweeps: Sequence[SweepDir]) -> list[Target]:
    """Return what is removed with its states; each scheduler is asked once, however many runs are given."""
    given = Counter(sweep.path for sweep in sweeps)
    looked_at = list(dict.fromkeys(sweep if given[sweep.path] == 1 else sweep.whole for sweep in sweeps))
    runs = {sweep.path: found for sweep, found in zip(looked_at, states_of(looked_at), strict=True)}
    stages = {sweep.path: stage_states(sweep) for sweep in looked_at}
    return [
        Target(
            sweep,
            [each for each in runs[sweep.path] if sweep.has(each.run.name)],
            [each for each in stages[sweep.path] if sweep.has(each.run)],
        )
        for sweep in sweeps
    ]


def refuse_alive(target: Target) -> None:
    """Raise SubmitError while a run or stage of what is removed waits or runs."""
    sweep, found = target.sweep, target.found
    alive = [f"{item.run.name} ({item.state.value})" for item in found if item.state.is_open or item.doubt]
    alive += [f"stage {each.stage} ({each.state.value})" for each in target.stages if each.state.is_open]
    if alive:
        unsure = [item.doubt or item.detail for item in found if item.doubt or (item.state.is_open and item.detail)]
        why = f" ({unsure[0]})" if unsure else ""
        end = (
            "Wait a minute, then repeat the command."
            if only_ended(found)
            else (f"Run `slurmscale cancel {sweep.quoted}` first.")
        )
        raise SubmitError(f"{sweep.quoted} is not over: {some(alive)}{why}. Nothing was removed. {end}")


def only_ended(found: Iterable[RunState]) -> bool:
    """Return True if runs have ended and only their records are still on the way."""
    return all(item.state is State.ended for item in found if item.state.is_open)


def confirmed(targets: Collection[Target]) -> bool:
    """Ask the user at a terminal; raise SubmitError if nobody can answer."""
    for target in targets:
        print(target.described())
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise SubmitError("nobody can be asked here: the above was not removed. Add --yes.")
    sys.stdout.flush()
    try:
        answer = input("Remove? [y/N] ")
    except EOFError:
        answer = ""
    if answer.strip().lower() in {"y", "yes"}:
        return True
    print("Nothing was removed.")
    return False


# --- what is deleted -------------------------------------------------------------------------------------------


def own_entries(sweep: SweepDir) -> Iterator[Path]:
    """Yield what slurmscale has written into a sweep directory: runs, code, logs, records and reports."""
    for entry in sorted(sweep.path.iterdir()):
        is_link, name = entry.is_symlink(), entry.name
        # A store of code in it is of other sweeps, whose runs_dir it is.
        if name == code_store(sweep.path).name:
            continue
        of_sweep = name in {*RESERVED, "logs", REMOVAL} or CODE.fullmatch(name) or HIDDEN.fullmatch(name)
        if of_sweep or (is_run(entry) and not is_link):
            yield entry


def foreign_entries(sweep: SweepDir) -> list[str]:
    """Return the names of the files in a sweep directory that slurmscale did not write."""
    own = set(own_entries(sweep))
    return sorted(entry.name for entry in sweep.path.iterdir() if entry not in own)


def size_of(path: Path) -> int:
    """Return the bytes on disk of a file, or of a directory with all in it; no link is followed."""
    return path.lstat().st_blocks * BLOCK_BYTES + (
        0
        if path.is_symlink()
        else sum(
            file.stat(follow_symlinks=False).st_blocks * BLOCK_BYTES
            for entry in entries_of(path)
            for file in files_below(entry)
        )
    )


def delete(target: Target) -> int:
    """Delete a sweep or run, print what was freed, and return its bytes; the caller holds the lock of the sweep."""
    sweep, size, entries = target.sweep, target.size_bytes, target.entries
    number = counted(sum(map(is_run, entries)))
    # Looked up first: a record is found by the ledger, which is deleted too.
    records: list[Path] = []
    if sweep.only is None:
        with suppress(SubmitError):
            records += records_of(sweep)
    removal = own_directory(sweep.path / REMOVAL, mode=0o700)
    if sweep.only is not None and exists(sweep.submissions):
        # Its jobs on record are not those of a later run of this name.
        append_record(sweep.submissions, event_record("removed", run=sweep.only))
    try:
        for entry in entries:
            if is_run(entry):
                open_to_owner(entry)
                entry.rename(free_name(removal, entry.name))
        for entry in (*(each for each in entries if each not in {removal, sweep.lock}), removal):
            delete_entry(entry)
        if sweep.only is None:
            for record in records:
                record.unlink(missing_ok=True)
            sweep.lock.unlink(missing_ok=True)
    except OSError as error:
        raise RunDirError(
            f"{error.filename or sweep.path} could not be removed: {error.strerror or error}. Repeat the command to "
            f"remove the rest of {target.path}."
        ) from error
    left = [] if sweep.only is not None else [entry.name for entry in sweep.path.iterdir()]
    if sweep.only is None and not left:
        sweep.path.rmdir()
    kept = f"; {some(sorted(left))} stays in {sweep.path}" if left else ""
    print(f"removed {target.path}: {number}, {decimal(size)} freed{kept}")
    return size


def open_to_owner(path: Path) -> None:
    """Make a directory, and those in it, writable by their owner: received ones may be read-only."""
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        path.chmod(0o700)
    for entry in entries_of(path):
        if entry.is_dir(follow_symlinks=False):
            open_to_owner(Path(entry.path))


def free_name(directory: Path, name: str) -> Path:
    """Return a path in a directory that nothing has, after an interruption too."""
    numbers = (directory / f"{name}.{number}" for number in range(1_000_000))
    return next(path for path in numbers if not os.path.lexists(path))


def delete_entry(entry: Path) -> None:
    """Delete a file, a link or a directory with all in it; pass over what is not there."""
    if is_directory(entry) and not entry.is_symlink():
        open_to_owner(entry)
        shutil.rmtree(entry)
    else:
        entry.unlink(missing_ok=True)
