"""Labels of lines in a campaign: the names of its attempts, which a reader knows from the leaderboard."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from analysis.compare.campaign import part_of
from analysis.scaling.groups import Group
from jobs.rundir import BASELINE


def labelled_by_attempt(groups: Sequence[Group]) -> list[Group]:
    """Return the groups by label; a line of attempts alone has their names as its label.

    Attempts of equal settings are one line, and so are those that differ in ranks only: `baseline, again`.
    """
    names = [attempts_of(group) for group in groups]
    campaigns = {run.path.parent for group, known in zip(groups, names, strict=True) if known for run in group.runs}
    labels = [
        known
        if known and len(campaigns) == 1
        else f"{group.runs[0].path.parent.name} {known}"
        if known
        else group.label
        for group, known in zip(groups, names, strict=True)
    ]
    counts = Counter(labels)
    # Repeats of one attempt whose settings differ are several lines.
    unique = [
        label if counts[label] == 1 or label == group.label else f"{label} {group.label}"
        for label, group in zip(labels, groups, strict=True)
    ]
    named = [replace(group, label=label) for group, label in zip(groups, unique, strict=True)]
    return sorted(named, key=lambda group: group.label)


def attempts_of(group: Group) -> str | None:
    """Return the names of the attempts of a line, the baseline first; None if a run is part of no campaign."""
    names: dict[str, None] = {}
    for run in group.repeats:
        part = part_of(run)
        if part is None:
            return None
        names[BASELINE if part.get("role") == BASELINE else str(part["name"])] = None
    return ", ".join(sorted(names, key=lambda name: (name != BASELINE, name)))
