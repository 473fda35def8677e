"""The sweep at a path that a user gave: a sweep directory, or a run directory, which means this run only.

Every command on a sweep finds it here, so they all take the same paths and answer a wrong one with the same words.
"""

from __future__ import annotations

import difflib
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from jobs.errors import RunDirError
from jobs.files import exists, is_directory
from jobs.plan.rules.rule import counted, some
from jobs.rundir import RunDir, SweepDir
from jobs.submit.sweeps.submissions import shell_clusters, submissions_on_record
from jobs.submit.trust.own_sweeps import is_own

# Sweeps are looked for so deep: sweep=a/b makes runs/a/b, and a folder of `slurmscale tune` holds two.
DEEPEST = 2


def open_sweep(path: Path) -> SweepDir:
    """Return the sweep, or the run of a sweep, at a path, for a command that asks the launcher about it.

    Raises RunDirError if there is neither, SubmitError if its jobs are in another cluster than this shell asks.
    """
    sweep = sweep_at(path)
    shell_clusters(sweep)
    return sweep


def sweep_at(path: Path) -> SweepDir:
    """Return the sweep at a path, or the run of a sweep; raise RunDirError for anything else, and for links out."""
    here = path.expanduser().absolute()
    refuse_links_on_the_way(here)
    if ".." in here.parts:
        # The directory above a link is not the one above its name.
        here = Path(os.path.realpath(here))
    if (run := run_at(here)) is not None:
        return run
    refuse_link_out(here)
    sweep = SweepDir(here)
    if is_directory(here):
        os.scandir(here).close()  # raises PermissionError, which glob hides
        if is_sweep(sweep):
            return sweep
    raise RunDirError(f"{path} {what_it_is(here)}")


def open_run(path: Path) -> RunDir:
    """Return the run at a path: a run directory, or a sweep of one run."""
    sweep = sweep_at(path)
    if sweep.only is not None:
        return sweep.run(sweep.only)
    runs = sweep.runs()
    if len(runs) != 1:
        raise RunDirError(
            f"{path} is a sweep of {counted(len(runs))}. Pass the directory of one of them: "
            f"{some([run.name for run in runs])}."
        )
    return runs[0]


def run_at(path: Path) -> SweepDir | None:
    """Return the run at a path, in its sweep; None if the path is not a run.

    A link to a run is that run, unless it lies in a sweep itself: then it is a run of that one, as in `status` of it.
    """
    if not is_run(path) and path.name not in submissions_on_record(SweepDir(path.parent)):
        return None
    if inside := enclosing_run(path):
        raise RunDirError(f"{path} is inside the run {inside}. Pass {inside}.")
    refuse_link_out(path.parent)
    if path.is_symlink() and not os.path.lexists(SweepDir(path.parent).submissions):
        refuse_link_out(path)
        path = Path(os.path.realpath(path))
    return SweepDir(path.parent, path.name)


def refuse_links_on_the_way(path: Path) -> None:
    """Raise RunDirError for a link out in a sweep on the way to a path, and for one whose directory above is meant.

    Other links on the way are those of the user and the system: runs may be a link to a larger disk.
    """
    for link, following in zip([*path.parents][-2::-1], path.parts[2:], strict=True):
        if following == ".." or (link.is_symlink() and holds_sweep(SweepDir(link.parent))):
            refuse_link_out(link)


def refuse_link_out(path: Path) -> None:
    """Raise RunDirError for a link out of its folder, unless this user made it; follow that one by one.

    Whoever made the folder may otherwise choose what a command ends.
    """
    if not (path.is_symlink() and exists(path)):
        return
    target, folder = Path(os.path.realpath(path)), Path(os.path.realpath(path.parent))
    if target.is_relative_to(folder):
        return
    if not is_own_link(path):
        raise RunDirError(
            f"{path} is a link out of its folder, which somebody else may have made, and leads to {target}. "
            f"Pass {shlex.quote(str(target))} if you mean that."
        )
    following = folder / path.readlink()
    refuse_links_on_the_way(following)
    refuse_link_out(following)


def is_own_link(path: Path) -> bool:
    """Return True for a link of this user in the home directory, or in a folder where this user has sweeps.

    An unpacked folder belongs to this user, too, with all links in it; but nothing was submitted in it.
    """
    if path.lstat().st_uid != os.geteuid():
        return False
    if os.path.realpath(path.parent) == os.path.realpath(os.path.expanduser("~")):  # noqa: PTH111 (no error without one)
        return True
    return any(is_own(sweep) for sweep in listed(path.parent))


def is_run(path: Path) -> bool:
    """Return True for the directory of a run, also of one that lost a file; other programs have a config.yaml, too."""
    run = RunDir(path)
    return exists(run.status) or (exists(run.config) and exists(run.plan))


def is_sweep(sweep: SweepDir) -> bool:
    """Return True for a directory with runs, or with a ledger that names some."""
    return has_own_runs(sweep) or bool(submissions_on_record(sweep))


def enclosing_run(path: Path) -> Path | None:
    """Return the run directory that a path lies in; None if it lies in no run."""
    return next((each for each in reversed(path.parents) if is_run(each)), None)


def enclosing_sweep(path: Path) -> SweepDir | None:
    """Return the sweep that a path lies in, by its ledger; None if it lies in no sweep."""
    return next((sweep for sweep in map(SweepDir, path.parents) if exists(sweep.submissions)), None)


def what_it_is(path: Path) -> str:
    """Return what is at a path that is neither a sweep nor a run, and what to pass instead."""
    if (run := enclosing_run(path)) is not None:
        return f"is inside the run {run}. Pass {shlex.quote(str(run))}."
    if path.is_symlink() and not exists(path):
        return f"is a link to {path.readlink()}, which leads nowhere."
    if not exists(path):
        return f"does not exist. {instead_of_missing(path)}"
    found = list(listed(path))
    if not found and (sweep := enclosing_sweep(path)) is not None:
        return f"is not a run of the sweep {sweep.path}. Pass {sweep.quoted}, or a run directory in it."
    if not is_directory(path):
        return "is a file. Pass the directory of a sweep or of a run, for instance runs/demo."
    if not found:
        return (
            "is not a sweep directory: it contains no run with a config.yaml, and no sweep. Pass the directory that "
            "`slurmscale submit` printed, for instance runs/demo."
        )
    names = [str(each.path.relative_to(path)) for each in found]
    return (
        f"is not a sweep directory, but contains the {'sweep' if len(found) == 1 else 'sweeps'} {some(names)}. "
        f"`slurmscale list {shlex.quote(str(path))}` shows them. Pass one of them, such as {found[0].quoted}."
    )


def instead_of_missing(path: Path) -> str:
    """Return what to pass instead of a path that does not exist: the most similar name, or where sweeps are listed."""
    above = SweepDir(path.parent)
    is_run_of_it = holds_sweep(above)
    here: Sequence[RunDir | SweepDir] = above.runs() if is_run_of_it else list(listed(path.parent))
    names = {each.path.name: each.path for each in here}
    if near := difflib.get_close_matches(path.name, names, n=1):
        return f"Did you mean {shlex.quote(str(names[near[0]]))}?"
    if is_run_of_it:
        return f"The sweep {above.path} has the runs {some(list(names))}."
    if names:
        return f"`slurmscale list {shlex.quote(str(path.parent))}` shows the sweeps there."
    if Path("runs").is_dir():
        return "`slurmscale list` shows the sweeps in runs."
    return "Pass the directory that `slurmscale submit` printed; `slurmscale list DIR` shows the sweeps in a directory."


def listed(path: Path, deepest: int = DEEPEST) -> Iterator[SweepDir]:
    """Yield the sweeps in a directory, none if it cannot be read."""
    with suppress(OSError):
        yield from sweeps_in(path, deepest)


def sweeps_in(path: Path, deepest: int = DEEPEST) -> Iterator[SweepDir]:
    """Yield the sweeps in a directory, by name; those of a directory that is not a sweep are looked for in it.

    No link below the directory is followed. A directory that cannot be read may be a sweep.
    """
    with os.scandir(path) as entries:
        found = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    for name in found:
        sweep = SweepDir(path / name)
        if name.startswith("."):
            continue
        if holds_sweep(sweep) or not os.access(sweep.path, os.R_OK | os.X_OK):
            yield sweep
        elif deepest > 1 and not is_run(sweep.path):
            yield from listed(sweep.path, deepest - 1)


def holds_sweep(sweep: SweepDir) -> bool:
    """Return True if a directory has a ledger or a run, readable or not."""
    return os.path.lexists(sweep.submissions) or has_own_runs(sweep)


def has_own_runs(sweep: SweepDir) -> bool:
    """Return True if a run lies in a directory; a link to one may lie anywhere."""
    return any(is_run(run.path) and not run.path.is_symlink() for run in sweep.runs())
