"""Suggestions of a refusal, typed behind the refused overrides."""

from __future__ import annotations

from copy import deepcopy
from functools import cache, reduce
from typing import Any, cast

import yaml

from jobs.plan.compose import compose
from jobs.plan.keys import GROUPS, is_enum, keys
from jobs.plan.remedies import remedies
from jobs.schema import Run, ScalingMode

Overrides = dict[str, str]
# The value that a user types for a word that stands for one.
PLACEHOLDERS = {"NUMBER": "16", "DIRECTORY": "/weights", "NODES": "4", "MINUTES": "120", "SOMETHING": "some"}
# Values that the files of these choices leave to the user.
FILL_IN = {"gadi_gpuvolta": "cluster.account=ab12", "alpaca": "data.path=a.json", "dolly": "data.path=a.json",
           "pubmedqa": "data.path=a.json", "apac_hpc_ai_2024": "data.path=a.json"}  # fmt: skip
BATCH = "scaling.global_batch_size"


def suggestions(refusal: str) -> list[Overrides]:
    """Every alternative of a refusal, with values in place of the words that stand for them."""
    return [{key: PLACEHOLDERS.get(value, value) for key, value in each.items()} for each in remedies(refusal)]


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
        if key not in GROUPS and isinstance(owner, dict):
            owner[name] = text
        elif key not in GROUPS and owner is not None:
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
