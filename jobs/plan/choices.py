"""The choices of a group: files of conf/ and of a site; read without Hydra, whose start takes a third of a second."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from jobs.errors import ConfigError
from jobs.files import YAML_BYTES, YAML_LOADER, flat, parse_yaml, read_bytes, read_text, read_yaml, reason
from jobs.plan.keys import GROUPS

CONF = Path(str(resources.files("conf")))


def refuse_missing_site() -> None:
    """Raise ConfigError if SLURMSCALE_SITE names no directory."""
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


def site() -> Path | None:
    """Return the directory of a site's own files, which SLURMSCALE_SITE names as a path or as file:// or pkg://."""
    name = os.environ.get("SLURMSCALE_SITE", "")
    if name.startswith("pkg://"):
        try:
            return Path(str(resources.files(name.removeprefix("pkg://").replace("/", "."))))
        except ModuleNotFoundError as error:
            raise ConfigError(f"SLURMSCALE_SITE={name}: {error}. Set it to a directory, or to a package.") from error
    return Path(name.removeprefix("file://")) if name else None


def choices(group: str) -> list[str]:
    """Return the choices of a group, a site's own among them."""
    places = filter(None, (site(), CONF))
    return sorted({file.stem for place in places for file in (place / group).glob("*.yaml")})


def set_one_of(group: str, options: Iterable[str]) -> str:
    """Return a sentence with the choices of a group."""
    return f"Set {group}=NAME with one of {', '.join(sorted(options))}."


def chosen(group: str, overrides: list[str]) -> str:
    """Return GROUP/NAME of the choice that overrides name, or nothing."""
    names = [line.partition("=")[2] for line in overrides if line.partition("=")[0] == group]
    return f"{group}/{names[-1]}" if group in GROUPS and names else ""


def site_file(config: str) -> Path | None:
    """Return a site's own file of a choice GROUP/NAME; None if it has none."""
    place = site()
    file = (place or Path()) / f"{config.removesuffix('.yaml')}.yaml"
    return file if place and config and file.is_file() else None


def left_to_user(choices: dict[str, str | None]) -> list[str]:
    """Return the keys that the files of some choices leave to the user by ???, and no later file sets.

    `choices` has the names by their groups, the last file first, as Hydra lists them.
    """
    values: dict[str, Any] = {}
    for file in filter(None, (file_of(f"{group}/{name}") for group, name in reversed(choices.items()))):
        content = read_bytes(file, YAML_BYTES)
        # A file sets keys of its group, an experiment keys of the whole run.
        section = "" if b"# @package _global_" in content else f"{file.parent.name}."
        values |= {section + key: value for key, value in flat(parse_yaml(content) or {}).items()}
    return [key for key, value in values.items() if value == "???"]


def file_of(config: str) -> Path | None:
    """Return the file of a choice GROUP/NAME, a site's own first; None for one of another search path."""
    packaged = CONF / f"{config}.yaml"
    return site_file(config) or (packaged if packaged.is_file() else None)


def first_comment(config: str) -> str:
    """Return the first comment line of a choice GROUP/NAME; an empty text where it has none."""
    file = file_of(config)
    lines = read_text(file, YAML_BYTES).splitlines() if file else []
    return next((line[2:] for line in lines if line.startswith("# ") and not line.startswith("# @package")), "")


def place_of(config: str, key: str) -> str:
    """Return "FILE, line N: " of a key in a site's own file, "FILE: " where it does not set it, else nothing."""
    file = site_file(config)
    if file is None:
        return ""
    try:
        composed = yaml.compose(read_bytes(file, YAML_BYTES), YAML_LOADER)
    except yaml.YAMLError:  # libyaml refuses some files that Hydra's loader, in Python, reads: "\ud800"
        return f"{file}: "
    # A file names its keys below its group, so job.steps ends with `steps`. The longest match is the exact one.
    lines = {name: line for name, line in key_lines(composed) if f".{key}".endswith(f".{name}")}
    return f"{file}, line {lines[max(lines, key=len)]}: " if lines else f"{file}: "


def key_lines(node: yaml.Node | None, prefix: str = "") -> Iterator[tuple[str, int]]:
    """Yield every dotted key of a YAML file with its line, counted from 1."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield f"{prefix}{key.value}", key.start_mark.line + 1
            yield from key_lines(value, f"{prefix}{key.value}.")
