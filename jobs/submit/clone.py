"""`slurmscale clone`: submit a run again with changes, as a new sweep, from the overrides in its provenance.json."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, count
from pathlib import Path

from jobs.errors import ConfigError, RunDirError, SubmitError
from jobs.files import flat, parse_yaml
from jobs.frozen import dump_run
from jobs.plan.compose import Point, compose
from jobs.plan.keys import key_of
from jobs.rundir import RunDir, SweepDir, load_run, provenance_of
from jobs.schema import LauncherKind, Run
from jobs.submit.preparation.container import rank_python
from jobs.submit.sweeps.sweep_at import open_run, refuse_link_out
from jobs.submit.trust.own_sweeps import is_own
from jobs.submit.trust.received import executed_as_set

# Where a run is, and not what it is.
PLACE = {"sweep", "name", "runs_dir"}
PREVIEW = f"launcher={LauncherKind.dry.name}"


def point_of(path: Path, overrides: list[str], *, trust: bool) -> Point:
    """Return a run with its own overrides and these, to be submitted, and print what differs.

    A run of a sweep that this user did not submit needs `trust`, unless it is only previewed.
    """
    original = open_run(path)
    refuse_link_out(original.path)
    before = load_run(original.config)
    sweep = SweepDir(original.path.parent)
    received = sweep.path.exists() and not is_own(sweep)
    point = composed(original, overrides, received=received)
    point = replace(point, run=placed(point.run, before, overrides, received=received))
    if received and not point.run.launcher.kind.is_preview and not trust:
        for line in (f"command: {rank_python(point.run)} -u -m jobs.run", *executed_as_set(point.run)):
            print(line)
        raise SubmitError(
            f"{sweep.path} was not submitted by you, and a clone of {original.name} would execute the above as you. If "
            "you trust it, add --trust; to preview it, launcher=dry."
        )
    lines = list(differences(before, point.run))
    print(f"{'differs from' if lines else 'has the settings of'} {original.path}", *lines, sep="\n    ")
    return point


def composed(original: RunDir, overrides: list[str], *, received: bool) -> Point:
    """Return the point of a run's own overrides and of changes; raise ConfigError if they cannot be composed today."""
    recorded = provenance_of(original).get("overrides")
    if not isinstance(recorded, list) or not all(isinstance(each, str) for each in recorded):
        raise RunDirError(f"{original.provenance} has no overrides, so there is nothing to clone {original.name} from.")
    changed = {*map(key_of, overrides), *PLACE}
    # A run that was only previewed is cloned to be started.
    kept = [each for each in recorded if key_of(each) not in changed and each != PREVIEW]
    try:
        return compose([*kept, *overrides], multirun=False, received=received)[0]
    except ConfigError as error:
        raise ConfigError(f"{original.path} was submitted with {' '.join(recorded)}, and now: {error}") from error


def placed(run: Run, before: Run, overrides: list[str], *, received: bool) -> Run:
    """Return a run in a new sweep next to that of the original, unless the user set another place."""
    given = set(map(key_of, overrides))
    runs_dir = run.runs_dir if received or "runs_dir" in given else before.runs_dir
    if "sweep" in given:
        return replace(run, runs_dir=runs_dir)
    names = chain([f"{before.sweep}-clone"], (f"{before.sweep}-clone{number}" for number in count(2)))
    return replace(
        run, runs_dir=runs_dir, sweep=next(name for name in names if not os.path.lexists(Path(runs_dir, name)))
    )


def differences(before: Run, now: Run) -> Iterator[str]:
    """Yield a line for each key that differs, without names and places."""
    old, new = (flat(parse_yaml(dump_run(run))) for run in (before, now))
    for key in sorted((old.keys() | new.keys()) - PLACE):
        if old.get(key) != new.get(key):
            yield f"{key}: {old.get(key, 'unset')} -> {new.get(key, 'unset')}"
