"""The tiers of a contest: the keys that an attempt may set, the plainest tier first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jobs.errors import ConfigError
from jobs.plan.keys import is_among, key_of

CODE = "code"
"""Stands for changed code among the keys of a tier."""


def tier_of(changes: Sequence[str], tiers: Mapping[str, Sequence[str]], *, changed_code: bool) -> str | None:
    """Return the plainest tier that allows every change of an attempt; None without tiers.

    Raise ConfigError for a key that no tier allows.
    """
    if not tiers:
        return None
    keys = [*map(key_of, changes), *([CODE] if changed_code else [])]
    names = list(tiers)
    reached = 0
    for key in keys:
        found = next((place for place, name in enumerate(names) if is_among(key, tiers[name])), None)
        if found is None:
            allowed = "; ".join(f"{name}: {', '.join(tiers[name]) or 'nothing'}" for name in names)
            what = "--changed-code" if key == CODE else key
            raise ConfigError(
                f"{what} is prohibited: no tier of the contest allows it ({allowed}; each tier also allows what stands "
                f"before it). Leave {what} out."
            )
        reached = max(reached, found)
    return names[reached]
