"""`slurmscale attempt NAME`: one configuration against the baseline of a campaign, repeated in turns with it.

`slurmscale campaign FILE` does the same for all attempts that a file names, in one submission.

A campaign is a sweep directory whose runs say in their provenance which attempt they belong to; the first attempt is
called `baseline`, and its overrides are what later ones are composed from. An attempt's repeats alternate with repeats
of the baseline of their own: what a machine does to one of a pair it does to the other.
"""

from __future__ import annotations

import itertools
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from jobs.campaign.campaign_file import read_attempts
from jobs.campaign.code_snapshot import Snapshot, changed_since, refuse_mixture, snapshot_of
from jobs.errors import ConfigError, RunDirError
from jobs.plan.compose import Point, compose
from jobs.rundir import RunDir, SweepDir, is_reserved
from jobs.schema import Launcher, LauncherKind, Run
from jobs.submit.batch_script import resources
from jobs.submit.commands import submit_points

BASELINE = "baseline"
# Where campaigns are looked for when none is named, as conf/config.yaml has it.
DEFAULT_PLACE = Path("runs")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=+-]{0,80}")
# A run of an attempt gets these from the campaign.
GIVEN = {"name", "sweep", "runs_dir", "repeat"}
# Who starts runs, where and how many at once, is no difference between the two of a pair.
SHARED = "launcher"
KEPT = ("nodes", "ranks_per_node", "model", "data", "contest")


@dataclass(frozen=True)
class Campaign:
    """A campaign's directory, and what its baseline was composed from."""

    sweep: SweepDir
    base: list[str]
    """Overrides of the baseline."""
    code: Snapshot | None = None
    """What the baseline of a pair runs; None: what the attempt runs."""

    def first(self, name: str) -> RunDir:
        """The first repeat of an attempt."""
        return self.sweep.run(repeat_name(name, 1))


def attempt(
    name: str, overrides: list[str], *, campaign: Path | None, repeats: int, changed_code: bool, wait: bool
) -> tuple[int, Path]:
    """Compose, check and submit the repeats of an attempt, all or none; returns its exit code and the campaign.

    With `changed_code` the baseline beside it runs the code that the campaign began with. Raises ConfigError, before
    anything is prepared, for a name or override that an attempt cannot have, and for an attempt that does another task
    than the baseline; RunDirError when there is no campaign, or several.
    """
    refuse_name(name)
    refuse_repeats(repeats)
    if name == BASELINE:
        refuse_changed_code(changed_code=changed_code)
        points = baseline_points(overrides, campaign, repeats)
    else:
        points = attempt_points(name, overrides, opened(campaign, changed_code=changed_code), repeats)
    return submitted(points, wait=wait)


def attempts(
    file: Path, overrides: list[str], *, campaign: Path | None, repeats: int, changed_code: bool, wait: bool
) -> tuple[int, Path]:
    """Compose, check and submit the repeats of all attempts of a file, all or none; errors as those of `attempt`.

    The overrides say how runs are started, and nothing else. Returns the exit code and the campaign.
    """
    named = read_attempts(file)
    for name, changes in named.items():
        refuse_name(name)
        if name != BASELINE and (started := [each for each in changes if is_shared(each)]):
            raise ConfigError(
                f"{file}: {started[0]} of {name} says how runs are started, which is the same for all attempts of a "
                f"file. Write it behind the file: slurmscale campaign {shlex.join([str(file), started[0]])}"
            )
    refuse_repeats(repeats)
    if task := [each for each in overrides if not is_shared(each)]:
        raise ConfigError(
            f"{task[0]} belongs to an attempt: write it into {file}. Behind the file stands only how runs are "
            "started: launcher=..., launcher.KEY=..."
        )
    return submitted(campaign_points(named, overrides, campaign, repeats, changed_code=changed_code), wait=wait)


def submitted(points: list[Point], *, wait: bool) -> tuple[int, Path]:
    """Submit all points of one campaign; returns the exit code and its directory."""
    code = submit_points(points, wait=wait)
    run = points[0].run
    return code, Path(run.runs_dir) / str(run.sweep)


# --- the points ----------------------------------------------------------------------------------------------


def campaign_points(
    named: Mapping[str, list[str]], where: list[str], folder: Path | None, repeats: int, *, changed_code: bool = False
) -> list[Point]:
    """The baseline, if it is named, then the first pair of every attempt, then the second, ...

    So a machine that becomes slower in an hour does it to all of them.
    """
    points = []
    if BASELINE in named:
        refuse_changed_code(changed_code=changed_code)
        points = baseline_points(named[BASELINE], folder, repeats, where)
        campaign = Campaign(sweep_of(points[0].run, folder), named[BASELINE])
    else:
        campaign = opened(folder, changed_code=changed_code)
    tried = [
        attempt_points(name, [*where, *changes], campaign, repeats)
        for name, changes in named.items()
        if name != BASELINE
    ]
    turns = range(0, 2 * repeats, 2)
    return points + [point for turn in turns for each in tried for point in each[turn : turn + 2]]


def sweep_of(run: Run, folder: Path | None) -> SweepDir:
    """The directory of a new campaign: the one that was named, else that of its baseline's sweep."""
    return SweepDir(folder.expanduser().absolute() if folder else Path(run.runs_dir) / str(run.sweep))


def baseline_points(overrides: list[str], folder: Path | None, repeats: int, where: Sequence[str] = ()) -> list[Point]:
    """The repeats of a new campaign's baseline, or more of them; `where` says how they are started."""
    point = compose_one([*overrides, *where], BASELINE)
    sweep = sweep_of(point.run, folder)
    known = recorded(sweep.run(repeat_name(BASELINE, 1)))
    if known is not None and known["changes"] != overrides:
        raise RunDirError(
            f"{sweep.path} has a baseline of other overrides ({' '.join(known['changes'])}), and a baseline does not "
            "change. For a campaign of its own type --campaign DIRECTORY; for an attempt against this baseline, "
            "slurmscale attempt NAME OVERRIDES, with no other overrides than those that differ."
        )
    done = repeats_on_disk(sweep, BASELINE)
    return [
        placed(point, sweep, BASELINE, repeat, name=BASELINE, role=BASELINE, repeat=repeat, changes=overrides)
        for repeat in range(done + 1, done + repeats + 1)
    ]


def attempt_points(name: str, overrides: list[str], campaign: Campaign, repeats: int) -> list[Point]:
    """Baseline, attempt, baseline, attempt ...: the repeats of both in the order in which they run."""
    changes = [each for each in overrides if not is_shared(each)]
    where = [each for each in overrides if is_shared(each)]
    refuse_changes(name, changes, campaign)
    baseline = compose_one([*campaign.base, *where], BASELINE)
    # Its overrides hold the global batch too, which would otherwise follow a change of the micro-batch.
    tried = compose_one([*baseline.overrides, *changes], name)
    refuse_another_task(name, tried.run, baseline.run)
    refuse_two_arrays(name, tried.run, baseline.run, campaign.code)
    beside = campaign.first(f"{name}-{BASELINE}")
    refuse_mixture(name, campaign.first(name), beside, changed_code=campaign.code is not None)
    if campaign.code is not None:
        baseline = replace(baseline, code=campaign.code.path, facts=campaign.code.facts)
    done = repeats_on_disk(campaign.sweep, name)
    return [
        placed(point, campaign.sweep, run_name, repeat, name=name, role=role, repeat=repeat, changes=changes)
        for repeat in range(done + 1, done + repeats + 1)
        for point, run_name, role in ((baseline, f"{name}-{BASELINE}", BASELINE), (tried, name, "attempt"))
    ]


def compose_one(overrides: list[str], name: str) -> Point:
    """The one point of these overrides; a ConfigError names the attempt, of which a file has several."""
    try:
        return compose(overrides, multirun=False)[0]
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error


def placed(point: Point, sweep: SweepDir, run_name: str, number: int, **facts: Any) -> Point:
    """A repeat of a point in the campaign's directory, one run at a time, with its part in the attempt on record."""
    run = point.run
    return replace(
        point,
        run=replace(
            run,
            runs_dir=str(sweep.path.parent),
            sweep=sweep.path.name,
            name=repeat_name(run_name, number),
            repeat=number,
            launcher=one_at_a_time(run.launcher),
        ),
        facts={**point.facts, "attempt": facts},
    )


def one_at_a_time(launcher: Launcher) -> Launcher:
    """The launcher, which keeps the order of runs: side by side they would measure each other."""
    in_slurm = launcher.kind in {LauncherKind.slurm, LauncherKind.pilot}
    return replace(launcher, max_running=1) if in_slurm else launcher


def repeat_name(name: str, repeat: int) -> str:
    """The name of a run directory."""
    return f"{name}-r{repeat}"


# --- the campaign --------------------------------------------------------------------------------------------


def opened(folder: Path | None, *, changed_code: bool = False) -> Campaign:
    """The campaign in this folder, or the only one below `runs`; with its baseline's code where that is to run."""
    if folder is None:
        folder = only_campaign(DEFAULT_PLACE)
    sweep = SweepDir(folder.expanduser().absolute())
    first = sweep.run(repeat_name(BASELINE, 1))
    known = recorded(first)
    if known is None:
        raise RunDirError(
            f"{sweep.path} is not a campaign: it has no baseline. Type slurmscale attempt {BASELINE} OVERRIDES "
            f"--campaign {sweep.quoted}, or begin a file of attempts with {BASELINE}: [OVERRIDES]."
        )
    if not changed_code and (codes := changed_since(first)):
        print(
            f"The code has changed since the baseline ({codes[0]}, now {codes[1]}); both of each pair run it as it is "
            "now. To measure the change itself type --changed-code."
        )
    return Campaign(sweep, known["changes"], snapshot_of(first) if changed_code else None)


def only_campaign(place: Path) -> Path:
    """The only campaign in a directory of sweeps; raises RunDirError when there is none, or several."""
    found = sorted({path.parent.parent for path in place.glob(f"*/{repeat_name(BASELINE, 1)}/provenance.json")})
    if len(found) == 1:
        return found[0]
    if not found:
        raise RunDirError(
            f"There is no campaign in {place.absolute()}. Type slurmscale attempt {BASELINE} OVERRIDES to begin one, "
            f"or begin a file of attempts with {BASELINE}: [OVERRIDES]; --campaign DIRECTORY says where yours is."
        )
    raise RunDirError(
        f"There are {len(found)} campaigns in {place.absolute()}. Type which: "
        f"{' or '.join(f'--campaign {shlex.quote(str(path))}' for path in found)}."
    )


def recorded(directory: RunDir) -> dict[str, Any] | None:
    """What a run's provenance says of the attempt it belongs to; None where there is no such run."""
    try:
        known = json.loads(directory.provenance.read_text()).get("attempt")
    except (OSError, ValueError, AttributeError):
        return None
    return known if isinstance(known, dict) and isinstance(known.get("changes"), list) else None


def repeats_on_disk(sweep: SweepDir, name: str) -> int:
    """How many repeats an attempt has."""
    numbers = (re.fullmatch(rf"{re.escape(name)}-r(\d+)", path.name) for path in sweep.path.glob("*-r*"))
    return max((int(found[1]) for found in numbers if found), default=0)


# --- what is refused -----------------------------------------------------------------------------------------


def refuse_repeats(repeats: int) -> None:
    """Raise ConfigError for no repeat, and for fewer."""
    if repeats < 1:
        raise ConfigError(f"--repeats {repeats} is not a positive number. Type --repeats 3 or more.")


def refuse_name(name: str) -> None:
    """Raise ConfigError for a name that is none, or is an override whose name was forgotten."""
    if "=" in name or name.startswith(("+", "~")):
        raise ConfigError(f"{name} is an override; an attempt has a name first: slurmscale attempt NAME {name}")
    if not NAME.fullmatch(name) or is_reserved(name):
        raise ConfigError(
            f"{name!r} cannot be an attempt's name: letters, digits and ._+- only, first a letter or digit; code-..., "
            "logs and the files of a sweep directory are reserved. Type another, such as mbs2."
        )


def refuse_changes(name: str, changes: list[str], campaign: Campaign) -> None:
    """Raise ConfigError for overrides that an attempt cannot have, RunDirError when the name has others."""
    for each in changes:
        key = each.lstrip("+~").partition("=")[0]
        if key in GIVEN:
            raise ConfigError(f"{each}: runs of an attempt are named by the campaign. Leave {key} out.")
        if key in {"experiment", "contest"} or key.startswith("contest."):
            raise ConfigError(
                f"{each}: the rules are the baseline's, and an attempt does not change them. Leave it out, or begin a "
                f"campaign of its own: slurmscale attempt {BASELINE} OVERRIDES --campaign DIRECTORY"
            )
    known = recorded(campaign.first(name))
    if known is not None and known["changes"] != changes:
        raise RunDirError(
            f"The attempt {name} of {campaign.sweep.path} is another one "
            f"({' '.join(known['changes']) or 'no change'}). For more repeats of it type slurmscale attempt "
            f"{shlex.join([name, *known['changes']])}; for a new attempt, another name."
        )


def refuse_changed_code(*, changed_code: bool) -> None:
    """Raise ConfigError where a campaign would begin with changed code."""
    if changed_code:
        raise ConfigError(
            "--changed-code is of an attempt against a baseline that ran before; here the baseline itself is given. "
            "Leave --changed-code out, and type it with the attempts that come after you have changed the code."
        )


def refuse_two_arrays(name: str, tried: Run, baseline: Run, code: Snapshot | None) -> None:
    """Raise ConfigError where Slurm would not run the two of a pair in turns: only equal jobs share an array."""
    if tried.launcher.kind is not LauncherKind.slurm:
        return
    here = Path("code")
    own, beside = resources(tried, here), resources(baseline, code.path if code else here)
    if differing := sorted(key for key in own.keys() | beside.keys() if own.get(key) != beside.get(key)):
        raise ConfigError(
            f"{name} cannot take turns with its baseline in a job array, whose jobs are all alike: they differ in "
            f"{', '.join(differing)}. Type launcher=pilot launcher.pilot_nodes={tried.nodes}, which runs them one by "
            "one in one allocation."
        )


def refuse_another_task(name: str, tried: Run, baseline: Run) -> None:
    """Raise ConfigError where an attempt would not do what the baseline does."""
    pairs = [(key, getattr(tried, key), getattr(baseline, key)) for key in KEPT]
    reasons = [
        f"{key}={own}, the baseline has {wanted}: an attempt keeps model, data and ranks. Leave {key} out."
        for key, own, wanted in itertools.chain.from_iterable(itertools.starmap(first_difference, pairs))
    ]
    if reasons:
        lines = "".join(f"\n    {reason}" for reason in reasons)
        raise ConfigError(f"{name} cannot be compared with the baseline; nothing was prepared or submitted.{lines}")


def first_difference(key: str, tried: Any, baseline: Any) -> list[tuple[str, Any, Any]]:
    """The first value in which two settings or sections differ, with its key; a section's name stands for the rest."""
    if not is_dataclass(tried) or not is_dataclass(baseline):
        return [(key, tried, baseline)] if tried != baseline else []
    inner = [(f"{key}.{each.name}", getattr(tried, each.name), getattr(baseline, each.name)) for each in fields(tried)]
    return [found for each in inner for found in first_difference(*each)][:1]


def is_shared(override: str) -> bool:
    """Whether an override says how the runs of a pair are started, both alike."""
    key = override.lstrip("+~").partition("=")[0]
    return key == SHARED or key.startswith(f"{SHARED}.")
