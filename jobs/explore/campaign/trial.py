"""Submit trials of a campaign: one configuration against its baseline, repeated in turns with it.

`slurmscale attempt NAME` submits one, `slurmscale campaign FILE` all that a file lists. The repeats of a trial
alternate with their own repeats of the baseline, so that a drift of the machine affects both of a pair. Every second
pair begins with the trial: on a machine that becomes faster, the second of a pair always looks better.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from jobs.console import shell_line
from jobs.errors import ConfigError, RunDirError
from jobs.expectation import checked
from jobs.explore.campaign.campaign import (
    Campaign,
    is_preview,
    located,
    opened,
    order_of,
    recorded,
    repeat_name,
    repeats_on_disk,
)
from jobs.explore.campaign.campaign_file import read_trials
from jobs.explore.campaign.code_snapshot import refuse_mixture
from jobs.explore.campaign.proxies import record_of, refuse_other_length, refuse_proxy, refuse_same_length
from jobs.explore.campaign.tiers import tier_of
from jobs.explore.campaign.trial_checks import (
    is_shared,
    refuse_another_task,
    refuse_changed_code,
    refuse_changes,
    refuse_expectation,
    refuse_name,
    refuse_other_expectation,
    refuse_other_overrides,
    refuse_other_terms,
    refuse_over_budget,
    refuse_repeats,
)
from jobs.plan.compose import Point, compose
from jobs.rundir import BASELINE, SweepDir
from jobs.schema import Run
from jobs.submit.commands import submit_points
from jobs.submit.preparation.preview import only_previewed


def submit_trial(
    name: str,
    overrides: list[str],
    *,
    campaign: Path | None,
    repeats: int,
    changed_code: bool,
    wait: bool | None,
    expect: str | None = None,
    proxy: Sequence[str] = (),
) -> tuple[int, Path | None]:
    """Compose, check and submit the repeats of a trial, all or none; return what `submitted` does.

    The result that is expected (jobs.expectation) is stored in the record of each run. `proxy` shortens both runs of a
    pair. With `changed_code` the paired baseline runs the code that the campaign began with. Raises, before anything is
    prepared, ConfigError for a name or override that a trial cannot have and for a task that is not the baseline's,
    RunDirError if there is no campaign, or several.
    """
    refuse_name(name)
    refuse_repeats(repeats)
    if expect is not None:
        refuse_expectation(name)
    if proxy:
        refuse_proxy(name, proxy, overrides)
    if name != BASELINE:
        overrides, campaign = located(overrides, campaign)
    points = campaign_points(
        {name: overrides}, [], campaign, repeats, changed_code=changed_code, expect=expect, proxy=proxy
    )
    return submitted(points, wait=wait)


def submit_trials(
    file: Path,
    overrides: list[str],
    *,
    campaign: Path | None,
    repeats: int,
    changed_code: bool,
    wait: bool | None,
    proxy: Sequence[str] = (),
) -> tuple[int, Path | None]:
    """Compose, check and submit the repeats of all trials of a file, all or none, as `submit_trial` does.

    The overrides set the launcher and the budget, and nothing else. `proxy` shortens the pairs of all trials, and not
    the baseline of the file.
    """
    named = read_trials(file)
    for name, changes in named.items():
        refuse_name(name)
        if proxy and name != BASELINE:
            refuse_proxy(name, proxy, changes)
        if name != BASELINE and (started := [each for each in changes if is_shared(each)]):
            raise ConfigError(
                f"{file}: {started[0]} of {name} belongs to the whole campaign, not to one attempt of a file. "
                f"Pass it on the command line: slurmscale campaign {shell_line([str(file), started[0]])}"
            )
    refuse_repeats(repeats)
    if task := [each for each in overrides if not is_shared(each)]:
        raise ConfigError(
            f"{task[0]} belongs to an attempt: write it into {file}. The command line accepts only settings of the "
            "whole campaign: launcher=..., launcher.KEY=..., budget.KEY=..., campaign.KEY=..."
        )
    points = campaign_points(named, overrides, campaign, repeats, changed_code=changed_code, proxy=proxy)
    return submitted(points, wait=wait)


def submitted(points: list[Point], *, wait: bool | None) -> tuple[int, Path | None]:
    """Submit all points of one campaign; return the exit code, and its directory if runs of it were started."""
    code = submit_points(points, wait=wait)
    run = points[0].run
    return code, Path(run.runs_dir) / str(run.sweep) if run.launcher.kind.starts_runs else None


# --- the points ----------------------------------------------------------------------------------------------


def campaign_points(
    named: Mapping[str, list[str]],
    where: list[str],
    folder: Path | None,
    repeats: int,
    *,
    changed_code: bool = False,
    expect: str | None = None,
    proxy: Sequence[str] = (),
) -> list[Point]:
    """Return the baseline, if it is named, then the first pair of every trial, then the second, ...

    A machine that becomes slower within an hour then affects all trials alike.
    """
    points = []
    if BASELINE in named:
        refuse_changed_code(changed_code=changed_code)
        points = baseline_points(named[BASELINE], folder, repeats, where)
        campaign = Campaign(sweep_of(points[0].run, folder), named[BASELINE], begins=True)
    else:
        campaign = opened(folder, changed_code=changed_code)
    tried = [
        trial_points(name, [*where, *changes], campaign, repeats, expect=expect, proxy=proxy)
        for name, changes in named.items()
        if name != BASELINE
    ]
    turns = range(0, 2 * repeats, 2)
    points += [point for turn in turns for each in tried for point in each[turn : turn + 2]]
    refuse_over_budget(campaign.sweep, points)
    return points


def sweep_of(run: Run, folder: Path | None) -> SweepDir:
    """Return the directory of a new campaign: the named one, or that of its baseline's sweep."""
    return SweepDir(folder.expanduser().absolute() if folder else Path(run.runs_dir) / str(run.sweep))


def baseline_points(overrides: list[str], folder: Path | None, repeats: int, where: Sequence[str] = ()) -> list[Point]:
    """Return the repeats of a new campaign's baseline, or more of them; `where` sets the launcher."""
    point = compose_one([*overrides, *where], BASELINE)
    sweep = sweep_of(point.run, folder)
    replaced = Campaign(sweep, overrides, begins=True).is_replaced_by(point.run.launcher.kind)
    known = recorded(sweep.run(repeat_name(BASELINE, 1)))
    if not replaced and known is not None and known["changes"] != overrides:
        if is_preview(sweep) and not point.run.launcher.kind.is_preview:
            raise RunDirError(only_previewed(sweep))
        raise RunDirError(
            f"{sweep.path} has a baseline of other overrides ({' '.join(known['changes'])}), and a baseline cannot "
            "change. For another campaign, add --campaign DIRECTORY; for an attempt against this baseline, run "
            "slurmscale attempt NAME OVERRIDES with only the overrides that differ."
        )
    done = 0 if replaced else repeats_on_disk(sweep, BASELINE)
    return [
        placed(point, sweep, BASELINE, repeat, name=BASELINE, role=BASELINE, repeat=repeat, changes=overrides)
        for repeat in range(done + 1, done + repeats + 1)
    ]


def trial_points(
    name: str,
    overrides: list[str],
    campaign: Campaign,
    repeats: int,
    *,
    until_verdict: bool = False,
    expect: str | None = None,
    proxy: Sequence[str] = (),
) -> list[Point]:
    """Return the repeats of baseline and trial in the order in which they run: baseline, trial; trial, baseline; ...

    With `until_verdict`, or if that was asked for before, they record the terms of their verdict. They record the
    expectation of the first one, and the overrides and bias of a `proxy`.
    """
    changes = [each for each in overrides if not is_shared(each)]
    where = [each for each in overrides if is_shared(each)]
    refuse_changes(changes)
    received = campaign.is_received
    baseline = compose_one([*campaign.base, *where], BASELINE, received=received)
    if proxy:
        full, baseline = baseline.run, compose_one([*campaign.base, *where, *proxy], BASELINE, received=received)
        refuse_same_length(proxy, baseline.run, full)
    tiers = baseline.run.contest.tiers if baseline.run.contest else {}
    tier = tier_of(changes, tiers, changed_code=campaign.code is not None)
    facts: dict[str, Any] = {"name": name, "changes": changes} | ({} if tier is None else {"tier": tier})
    # The baseline's overrides contain its global batch, which would otherwise follow a change of the micro-batch.
    tried = compose_one([*baseline.overrides, *changes], name, received=received)
    refuse_another_task(name, tried.run, baseline.run)
    beside = campaign.first(f"{name}-{BASELINE}")
    replaced = campaign.is_replaced_by(tried.run.launcher.kind)
    if not replaced:
        refuse_other_overrides(name, changes, campaign)
        refuse_mixture(name, campaign.first(name), beside, changed_code=campaign.code is not None)
    if campaign.code is not None:
        baseline = replace(baseline, code=campaign.code.path, facts=campaign.code.facts)
    done = 0 if replaced else repeats_on_disk(campaign.sweep, name)
    known = (recorded(campaign.first(name)) or {}) if done else None
    declared = tried.run.program.metrics if tried.run.program else ()
    wanted = None if expect is None else checked(expect, declared, in_campaign=True)
    if known is not None and wanted is not None:
        refuse_other_expectation(name, known.get("expect"), wanted)
    if wanted := wanted if known is None else known.get("expect"):
        facts["expect"] = wanted
    if known is not None:
        refuse_other_length(name, known.get("proxy"), proxy)
    if proxy:
        facts["proxy"] = record_of(campaign, proxy) if known is None else known["proxy"]
    terms = (known or {}).get("until")
    if until_verdict and terms is not None:
        refuse_other_terms(name, terms, tried.run.campaign.minimum_effect)
    elif until_verdict:
        terms = {"order": order_of(campaign.sweep, name), "minimum_effect": tried.run.campaign.minimum_effect}
    if terms is not None:
        facts["until"] = terms
    pair = ((baseline, f"{name}-{BASELINE}", BASELINE), (tried, name, "attempt"))
    return [
        placed(point, campaign.sweep, run_name, repeat, role=role, repeat=repeat, **facts)
        for repeat in range(done + 1, done + repeats + 1)
        for point, run_name, role in (pair if repeat % 2 else reversed(pair))
    ]


def compose_one(overrides: list[str], name: str, *, received: bool = False) -> Point:
    """Return the one point of these overrides; a ConfigError contains the name of the trial."""
    try:
        return compose(overrides, multirun=False, received=received)[0]
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error


def placed(point: Point, sweep: SweepDir, run_name: str, number: int, **facts: Any) -> Point:
    """Return a repeat of a point in the campaign's directory, one run at a time, with `facts` in its provenance."""
    run = point.run
    return replace(
        point,
        run=replace(
            run,
            runs_dir=str(sweep.path.parent),
            sweep=sweep.path.name,
            name=repeat_name(run_name, number),
            repeat=number,
            # Runs side by side would disturb each other's measurement.
            launcher=replace(run.launcher, max_running=1)
            if run.launcher.kind.in_queue or run.launcher.kind.in_own_job
            else run.launcher,
        ),
        facts={**point.facts, "attempt": facts},
    )
