"""Suggestions of a refusal: read from its text as a user reads it, and typed behind the refused overrides."""

from __future__ import annotations

import re
from collections.abc import Iterator
from copy import deepcopy
from functools import cache, reduce
from typing import Any, cast

import yaml

from jobs.plan.compose import compose
from jobs.plan.keys import GROUPS, is_enum, keys
from jobs.schema import Run, ScalingMode

Overrides = dict[str, str]
REMEDY = re.compile(r"(?:^|[.;,] |or )(?:Set|set|Use) (.*?)(?:\.(?= |$)|;|$)")
ASSIGNMENT = re.compile(r"([a-z][a-z0-9_.]*)(?:=| to one of )('[^']*'|\[[^]]*\]|[^\s,;)]+)")
# A further value of the key before it.
BARE = re.compile(r"\d+|null|none|[a-z]+_[a-z0-9]+|[A-Z0-9][A-Za-z0-9]+")
# The value that a user types for a word that stands for one.
PLACEHOLDERS = {"NUMBER": "16", "DIRECTORY": "/weights", "NODES": "4", "MINUTES": "120", "SOMETHING": "some"}
# Values that the files of these choices leave to the user.
FILL_IN = {"gadi_gpuvolta": "cluster.account=ab12", "alpaca": "data.path=a.json", "dolly": "data.path=a.json",
           "pubmedqa": "data.path=a.json", "apac_hpc_ai_2024": "data.path=a.json"}  # fmt: skip
BATCH = "scaling.global_batch_size"


def suggestions(refusal: str) -> list[Overrides]:
    """Every alternative of a refusal: `Set a=1 b=2, or c=3 or 4.` has three."""
    return [found for remedy in REMEDY.findall(refusal) for found in alternatives(remedy, refusal.partition("=")[0])]


def alternatives(remedy: str, key: str) -> Iterator[Overrides]:
    """The alternatives of one sentence; a bare value is one more of the key before it, else of the key refused."""
    for part in re.split(r", or |, | or ", remedy):
        # The shell takes the quotes away.
        given = {name: PLACEHOLDERS.get(value, value).strip("'") for name, value in ASSIGNMENT.findall(part)}
        if given:
            *_, key = given
            yield given
        elif BARE.fullmatch(value := part.split(" ")[0]):
            yield {key: value}


@cache
def composed(*overrides: str) -> Run:
    """A run that nobody has judged."""
    return compose(list(overrides), multirun=False, judge=lambda _: [])[0].run


def run_of(overrides: Overrides) -> Run:
    """The run of some overrides, as composition makes it, but without reading each file again."""
    chosen = {key: name for key, name in overrides.items() if key in GROUPS}
    run = deepcopy(choice("experiment", chosen.pop("experiment", "")))
    # A cluster brings a GPU and a launcher, which other choices replace.
    for group in sorted(chosen, key=lambda group: group != "cluster"):
        whole = deepcopy(choice(group, chosen[group]))
        setattr(run, group, getattr(whole, group))
        if group == "cluster":
            run.gpu, run.launcher.kind = whole.gpu, whole.launcher.kind
            run.ranks_per_node = (run.contest and run.contest.ranks_per_node) or whole.ranks_per_node
        if group == "job":
            run.serving, run.storage, run.images = whole.serving, whole.storage, whole.images
    if run.scaling.mode is ScalingMode.strong and run.scaling.global_batch_size is None:
        run.scaling.global_batch_size = 16
    for key, text in overrides.items():
        section, _, name = key.rpartition(".")
        owner = reduce(lambda at, part: getattr(at, part, None), filter(None, section.split(".")), cast(Any, run))
        # Composition refuses the keys of a section that another choice leaves unset.
        if key not in GROUPS and owner is not None:
            setattr(owner, name, converted(key, text))
    return run


def choice(group: str, name: str) -> Run:
    """The run with one choice; the default one without a name."""
    return composed(*([f"{group}={name}"] if name else []), *([FILL_IN[name]] if name in FILL_IN else []))


def converted(key: str, text: str) -> Any:
    """A value as OmegaConf converts it to the type of its key."""
    kind, value = keys()[key].kind, yaml.safe_load(text)
    if value is None:
        return None
    if isinstance(value, list) and is_enum(keys()[key].element):
        return [keys()[key].element[name] for name in value]
    return kind[str(text)] if is_enum(kind) else kind(value) if kind in {int, float, str} else value
