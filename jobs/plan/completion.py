"""Completion of overrides and keys on the command line, for `slurmscale completion bash|zsh|fish`."""

from __future__ import annotations

from typing import Any

from jobs.plan.choices import choices, refuse_missing_site
from jobs.plan.keys import GROUPS, keys


def complete_key(prefix: str, **_: Any) -> list[str]:
    """Return the keys, sections and groups that begin with a prefix; of the first level only while it is empty."""
    names = [name for name in (*keys(), *GROUPS) if prefix or "." not in name]
    return sorted({name for name in names if name.startswith(prefix)})


def complete_override(prefix: str, **_: Any) -> list[str]:
    """Return the overrides that begin with a prefix: KEY=, or KEY=VALUE where the values of a key can be listed."""
    key, equals, value = prefix.partition("=")
    if not equals:
        return [f"{name}=" for name in complete_key(prefix) if name in GROUPS or not keys()[name].is_section]
    # The last value of a list is completed, those before it stay: engine=native,li<TAB>.
    before = value[: value.rfind(",") + 1]
    return [f"{key}={before}{name}" for name in values_of(key) if name.startswith(value[len(before) :])]


def values_of(key: str) -> list[str]:
    """Return the values that a key or group takes, as far as these can be listed."""
    if key in GROUPS:
        refuse_missing_site()
        return choices(key)
    return keys()[key].choices if key in keys() else []
