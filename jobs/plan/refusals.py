"""Refusals of overrides before composition."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from hydra.core.override_parser.types import Override

from jobs.errors import ConfigError
from jobs.plan.choices import choices, set_one_of
from jobs.plan.keys import GROUPS

PATH = re.compile(r"[/~]|\.\.?/|.*\.(?:ya?ml|json|jsonl|parquet)$")
# The remedy of an override of Hydra's own settings, by the first beginning that fits; empty if it has an effect.
HYDRA_SETTINGS = {
    "hydra.searchpath": "",
    "hydra.sweeper.params": "",
    "hydra.run": "A run directory is runs_dir/sweep/name: set runs_dir=, sweep= and name=.",
    "hydra.sweep.": "A run directory is runs_dir/sweep/name: set runs_dir=, sweep= and name=.",
    "hydra.output_subdir": "A run directory is runs_dir/sweep/name: set runs_dir=, sweep= and name=.",
    "hydra.launcher": "The launcher of this program starts jobs: set launcher=NAME.",
    "hydra.sweeper": "A sweep is the product of all values: use -m with lists such as nodes=1,2,4.",
    "hydra.mode": "-m makes a sweep.",
    "hydra.job.chdir": "A job never changes its directory, and paths are made absolute: leave it out.",
    "hydra": "Hydra only composes the configuration here: leave it out.",
}


def refuse_odd_bytes(overrides: Iterable[str]) -> None:
    """Raise ConfigError for bytes that are not UTF-8, which Python keeps as halves of surrogate pairs."""
    for line in overrides:
        try:
            line.encode()
        except UnicodeEncodeError:
            shown = line.encode(errors="surrogateescape").decode(errors="backslashreplace")
            raise ConfigError(
                f"{shown}: this is not UTF-8. Write it in UTF-8; a file of such a name needs another name."
            ) from None


def refuse_key_or_choice(override: Override) -> None:
    """Raise ConfigError for an override that Hydra would ignore, or answer with a traceback."""
    group, line, value = override.key_or_group, typed(override), cast(Any, override.value())
    if not group:
        raise ConfigError(f"{line!r} has no key. Write KEY=VALUE.")
    if override.package is not None:
        raise ConfigError(f"{line}: each group has one place, so @ has no meaning here. Set {group}={value}.")
    setting = group.replace("/", ".")
    if setting.partition(".")[0] == "hydra":
        reason = next(text for beginning, text in HYDRA_SETTINGS.items() if setting.startswith(beginning))
        if reason:
            raise ConfigError(f"{line} has no effect. {reason}")
    if group not in GROUPS or isinstance(value, dict):
        return
    if override.is_add() or override.is_force_add():
        raise ConfigError(f"{line}: {group} is chosen already. Set {line.lstrip('+')} to choose another one.")
    if override.is_delete() or not isinstance(value, str):
        raise ConfigError(f"{line}: {set_one_of(group, choices(group))}")
    if PATH.match(value):
        raise ConfigError(f"{line}: a choice is a name, not a path. {site_for(group, Path(value))}")


def site_for(group: str, file: Path) -> str:
    """Return a sentence on how a file becomes a choice of a group."""
    if group == "data" and file.suffix not in {".yaml", ".yml"}:
        return f"Set data=alpaca, or the choice that describes its records, and data.path={file}."
    if group == "model" and file.suffix != ".yaml":
        return f"Run `slurmscale model {file} --output DIR/model/NAME.yaml`, set SLURMSCALE_SITE=DIR and model=NAME."
    if file.parent.name == group:
        return f"Set SLURMSCALE_SITE={file.expanduser().absolute().parent.parent} and {group}={file.stem}."
    return f"Move the file to DIR/{group}/{file.stem}.yaml, set SLURMSCALE_SITE=DIR and {group}={file.stem}."


def typed(override: Override) -> str:
    """Return an override as the user wrote it."""
    assert override.input_line is not None
    return override.input_line
