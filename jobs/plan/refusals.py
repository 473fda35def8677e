"""Refusals of overrides and configuration files before composition, and the files of choices."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import yaml
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override

import conf
from jobs.errors import ConfigError
from jobs.files import YAML_BYTES, YAML_LOADER, flat, parse_yaml, read_bytes, read_yaml, reason
from jobs.plan.keys import GROUPS

PATH = re.compile(r"[/~]|\.\.?/|.*/.*\.ya?ml$")
# The remedy of an override of Hydra's own settings, by the first beginning that fits; none where it has an effect.
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


# --- before composition ----------------------------------------------------------------------------------------


def refuse_odd_bytes(overrides: Iterable[str]) -> None:
    """Raise ConfigError for a byte that is no text in UTF-8, which Python keeps as half of a surrogate pair."""
    for line in overrides:
        try:
            line.encode()
        except UnicodeEncodeError:
            shown = line.encode(errors="surrogateescape").decode(errors="backslashreplace")
            raise ConfigError(
                f"{shown}: this is not UTF-8. Write it in UTF-8; a file of such a name needs another name."
            ) from None


def refuse_missing_site() -> None:
    """Raise ConfigError where SLURMSCALE_SITE names no directory."""
    site = os.environ.get("SLURMSCALE_SITE")
    if site and "://" not in site and not Path(site).is_dir():
        raise ConfigError(
            f"SLURMSCALE_SITE={site} is not a directory. Set it to the directory that holds your cluster/NAME.yaml, "
            "or unset it."
        )
    if site and Path(site).name in GROUPS and not any((Path(site) / group).is_dir() for group in GROUPS):
        raise ConfigError(
            f"SLURMSCALE_SITE={site} is the directory of one group. Set it to the directory above, which holds "
            f"{Path(site).name}/NAME.yaml: SLURMSCALE_SITE={Path(site).absolute().parent}"
        )
    for file in sorted(Path(site).glob("*/*.yaml")) if site else ():
        if file.parent.name in GROUPS:
            refuse_unbounded(file)


def refuse_unbounded(file: Path) -> None:
    """Raise ConfigError for a site's file that Hydra, which reads without limits, would not finish reading."""
    try:
        read_yaml(file)
    except (OSError, ValueError) as error:
        if isinstance(error.__cause__, yaml.YAMLError):
            # No YAML: Hydra reports the line, where the file is chosen.
            return
        raise ConfigError(
            f"{file} cannot be used as a configuration file: {reason(error)}. Correct it, or remove it from "
            f"SLURMSCALE_SITE={os.environ['SLURMSCALE_SITE']}."
        ) from error


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
    if group == "model" and file.suffix != ".yaml":
        return f"Run `slurmscale model {file} --output DIR/model/NAME.yaml`, set SLURMSCALE_SITE=DIR and model=NAME."
    if file.parent.name == group:
        return f"Set SLURMSCALE_SITE={file.expanduser().absolute().parent.parent} and {group}={file.stem}."
    return f"Move the file to DIR/{group}/{file.stem}.yaml, set SLURMSCALE_SITE=DIR and {group}={file.stem}."


def choices(group: str) -> list[str]:
    """Return the choices of a group, a site's own among them; needs an initialized Hydra."""
    return GlobalHydra.instance().config_loader().get_group_options(group, config_name="config")


def set_one_of(group: str, options: Iterable[str]) -> str:
    """Return a sentence with the choices of a group."""
    return f"Set {group}=NAME with one of {', '.join(sorted(options))}."


def typed(override: Override) -> str:
    """Return an override as the user wrote it."""
    assert override.input_line is not None
    return override.input_line


# --- files -----------------------------------------------------------------------------------------------------


def chosen(group: str, overrides: list[str]) -> str:
    """Return GROUP/NAME of the choice that overrides name, or nothing."""
    names = [line.partition("=")[2] for line in overrides if line.partition("=")[0] == group]
    return f"{group}/{names[-1]}" if group in GROUPS and names else ""


def site_file(config: str) -> Path | None:
    """Return a site's own file of a choice GROUP/NAME; None where it has none."""
    site = os.environ.get("SLURMSCALE_SITE")
    file = Path(site or "", f"{config.removesuffix('.yaml')}.yaml")
    return file if site and config and file.is_file() else None


def left_to_user(choices: dict[str, str | None]) -> list[str]:
    """Return the keys that the files of some choices leave to the user by ???, and no later file sets.

    `choices` has the names by their groups, the last file first, as Hydra lists them.
    """
    values: dict[str, Any] = {}
    for file in filter(None, (file_of(f"{group}/{name}") for group, name in reversed(choices.items()))):
        content = read_bytes(file, YAML_BYTES)
        section = "" if b"# @package _global_" in content else f"{file.parent.name}."
        values |= {section + key: value for key, value in flat(parse_yaml(content) or {}).items()}
    return [key for key, value in values.items() if value == "???"]


def file_of(config: str) -> Path | None:
    """Return the file of a choice GROUP/NAME, a site's own first; None for one of another search path."""
    packaged = Path(str(conf.__file__)).parent / f"{config}.yaml"
    return site_file(config) or (packaged if packaged.is_file() else None)


def place_of(config: str, key: str) -> str:
    """Return "FILE, line N: " of a key in a site's own file, "FILE: " where it does not set it, else nothing."""
    file = site_file(config)
    if file is None:
        return ""
    try:
        composed = yaml.compose(read_bytes(file, YAML_BYTES), YAML_LOADER)
    except yaml.YAMLError:  # libyaml refuses some files that Hydra's loader, in Python, reads: "\ud800"
        return f"{file}: "
    lines = {name: line for name, line in key_lines(composed) if f".{key}".endswith(f".{name}")}
    return f"{file}, line {lines[max(lines, key=len)]}: " if lines else f"{file}: "


def key_lines(node: yaml.Node | None, prefix: str = "") -> Iterator[tuple[str, int]]:
    """Yield every dotted key of a YAML file with its line, counted from 1."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield f"{prefix}{key.value}", key.start_mark.line + 1
            yield from key_lines(value, f"{prefix}{key.value}.")
