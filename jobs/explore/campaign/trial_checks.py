"""Checks of a trial before anything is prepared: names, overrides and tasks that it cannot have."""

from __future__ import annotations

import itertools
import re
import shlex
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from jobs.errors import ConfigError, RunDirError
from jobs.explore.campaign.campaign import Campaign, recorded
from jobs.explore.campaign.code_snapshot import Snapshot
from jobs.plan.keys import key_of
from jobs.rundir import BASELINE, is_reserved
from jobs.schema import Run
from jobs.submit.batch_script import shared_resources

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=+-]{0,80}")
# Keys that the campaign sets for its runs.
GIVEN = {"name", "sweep", "runs_dir", "repeat"}
# The section on how runs are started: equal for both runs of a pair, and not a difference between them.
SHARED = "launcher"
KEPT = ("nodes", "ranks_per_node", "model", "data", "contest")
# What a program is judged by; its commands, files and parameters may change.
KEPT_OF_PROGRAM = ("metrics", "merit", "gates", "log", "inputs")


def is_shared(override: str) -> bool:
    """Return whether an override sets how both runs of a pair are started."""
    return key_of(override).partition(".")[0] == SHARED


def refuse_repeats(repeats: int) -> None:
    """Raise ConfigError unless the number of repeats is positive."""
    if repeats < 1:
        raise ConfigError(f"--repeats {repeats} is not a positive number. Use --repeats 3 or more.")


def refuse_name(name: str) -> None:
    """Raise ConfigError for an invalid name, or for an override in the place of a name."""
    if "=" in name or name.startswith(("+", "~")):
        raise ConfigError(f"{name} is an override, but the name comes first: slurmscale attempt NAME {name}")
    if not NAME.fullmatch(name) or is_reserved(name):
        raise ConfigError(
            f"{name!r} cannot be the name of an attempt. Use letters, digits and ._+-, beginning with a letter or "
            "digit, for example mbs2; code-..., logs and the files of a sweep directory are reserved."
        )


def refuse_changes(changes: list[str]) -> None:
    """Raise ConfigError for overrides that a trial cannot have."""
    for each in changes:
        key = key_of(each)
        if key in GIVEN:
            raise ConfigError(f"{each}: the campaign sets {key} for the runs of an attempt. Leave {key} out.")
        if key in {"experiment", "contest"} or key.startswith("contest."):
            raise ConfigError(
                f"{each}: the rules are those of the baseline, and an attempt cannot change them. Leave it out, or "
                f"begin another campaign: slurmscale attempt {BASELINE} OVERRIDES --campaign DIRECTORY"
            )


def refuse_other_overrides(name: str, changes: list[str], campaign: Campaign) -> None:
    """Raise RunDirError if the trial of this name has other overrides."""
    known = recorded(campaign.first(name))
    if known is not None and known["changes"] != changes:
        raise RunDirError(
            f"The attempt {name} of {campaign.sweep.path} has other overrides "
            f"({' '.join(known['changes']) or 'none'}). For more repeats of it, run slurmscale attempt "
            f"{shlex.join([name, *known['changes']])}; for a new attempt, use another name."
        )


def refuse_changed_code(*, changed_code: bool) -> None:
    """Raise ConfigError if a campaign would begin with changed code."""
    if changed_code:
        raise ConfigError(
            "--changed-code compares an attempt with a baseline that ran before, but here the baseline itself is "
            "submitted. Leave --changed-code out, and add it to the attempts after the change of the code."
        )


def refuse_two_arrays(name: str, tried: Run, baseline: Run, code: Snapshot | None) -> None:
    """Raise ConfigError if Slurm would not run a pair in turns: only jobs with equal resources share an array."""
    if not tried.launcher.kind.job_per_run:
        return
    here = Path("code")
    own, beside = shared_resources(tried, here), shared_resources(baseline, code.path if code else here)
    if differing := sorted(key for key in own.keys() | beside.keys() if own.get(key) != beside.get(key)):
        raise ConfigError(
            f"{name} cannot take turns with its baseline in a job array, whose jobs have equal resources: they differ "
            f"in {', '.join(differing)}. Set launcher=pilot launcher.pilot_nodes={tried.nodes}, which runs them one "
            "after the other in one allocation."
        )


def refuse_another_task(name: str, tried: Run, baseline: Run) -> None:
    """Raise ConfigError if the task of a trial differs from that of the baseline."""
    pairs = [(key, getattr(tried, key), getattr(baseline, key)) for key in KEPT]
    if tried.program is not None and baseline.program is not None:
        both = (tried.program, baseline.program)
        pairs += [(f"program.{key}", *(getattr(each, key) for each in both)) for key in KEPT_OF_PROGRAM]
    reasons = [
        f"{key}={own}, the baseline has {wanted}: an attempt keeps {kept_by(tried)}. Leave {key} out."
        for key, own, wanted in itertools.chain.from_iterable(itertools.starmap(first_difference, pairs))
    ]
    if reasons:
        lines = "".join(f"\n    {reason}" for reason in reasons)
        raise ConfigError(f"{name} cannot be compared with the baseline; nothing was prepared or submitted.{lines}")


def kept_by(run: Run) -> str:
    """Return what an attempt shares with its baseline, as text."""
    return "model, data and ranks" if run.program is None else "ranks, inputs, metrics and gates"


def first_difference(key: str, tried: Any, baseline: Any) -> list[tuple[str, Any, Any]]:
    """Return the first difference of two settings or sections, with its key: a section's name stands for the rest."""
    if isinstance(tried, dict) and isinstance(baseline, dict):
        names = dict.fromkeys([*tried, *baseline])
        inner = [(f"{key}.{name}", tried.get(name), baseline.get(name)) for name in names]
        return [found for each in inner for found in first_difference(*each)][:1]
    if not is_dataclass(tried) or not is_dataclass(baseline):
        return [(key, tried, baseline)] if tried != baseline else []
    inner = [(f"{key}.{each.name}", getattr(tried, each.name), getattr(baseline, each.name)) for each in fields(tried)]
    return [found for each in inner for found in first_difference(*each)][:1]
