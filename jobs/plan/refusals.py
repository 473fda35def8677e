"""Refusals of overrides and configuration files: what Hydra and OmegaConf raise becomes a ConfigError with a remedy."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast, get_origin

import yaml
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf.errors import OmegaConfBaseException

import conf
from jobs.errors import ConfigError
from jobs.files import YAML_BYTES, YAML_LOADER, flat, parse_yaml, read_bytes, read_yaml, reason
from jobs.plan.keys import GROUPS, did_you_mean, is_text, keys, nearest_keys
from jobs.plan.synonyms import meant, nearest_names

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


@contextmanager
def hydra_refusals(overrides: list[str]) -> Iterator[None]:
    """Turn what Hydra and OmegaConf raise on these overrides into a ConfigError with a remedy."""
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(explain(error, overrides)) from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError, OSError) as error:
        raise ConfigError(
            f"A configuration file cannot be used: {place_of_text(error, overrides)}{' '.join(str(error).split())}. "
            f"Correct it; your own files are in SLURMSCALE_SITE={os.environ.get('SLURMSCALE_SITE', '(not set)')}, and "
            "cluster/generic_slurm.yaml is a pattern."
        ) from error


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


# --- what composition raised -----------------------------------------------------------------------------------


def explain(error: Exception, overrides: list[str]) -> str:
    """Return the innermost message, where it is, and what to set."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options:
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        near = meant(f"{group}={name}") or nearest_names(name, error.options)
        return f"{group}={name}: there is no such choice.{did_you_mean(near)} {set_one_of(group, error.options)}"
    if isinstance(error, OverrideParseException):
        return unreadable(error)
    file = re.match(r"In '([^']+)': \w+ raised while composing config:\n", str(error))
    cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
    text = str(error)[file.end() :] if file else str(cause)
    if twice := re.search(r"Multiple values for (\w+)\.", text):
        return f"{twice[1]} is chosen already. A file chooses another one in its defaults{as_default(twice[1])}."
    if not file and not isinstance(cause, OmegaConfBaseException):
        return text.strip().removeprefix("In 'config': ")
    named = re.search(r"^\s*full_key: (.*)$", text, flags=re.MULTILINE)
    key = getattr(cause, "full_key", None) or (named[1] if named else "")
    config = file[1] if file else chosen(key.partition(".")[0], overrides)
    place = place_of(config, key)
    if config.partition("/")[0] == "experiment" and key.partition(".")[0] == "experiment":
        return (
            f"{place}an experiment sets keys of the whole run, so its first line must be `# @package _global_`; its "
            "keys are then model, job, nodes and so on."
        )
    unknown = re.search(r"Key '([^']+)' (?:is not in struct|not in '(\w+)')", text)
    if unknown:
        full = key or unknown[1]
        full = full if full.endswith(unknown[1]) else f"{full}.{unknown[1]}"
        near = nearest_keys(full)
        value = next((line.partition("=")[2] for line in overrides if line.partition("=")[0] == full), "")
        remedy = f" Set {near[0]}={value}." if value and near[:1] == [f"engine.{full}"] else did_you_mean(near)
        if place and (group := full.rpartition(".")[2]) in GROUPS:
            remedy = f" A file chooses {group} in its defaults{as_default(group)}."
        return f"{place}{full} is not a configuration key.{remedy} `slurmscale explain` lists all keys."
    if variable := re.search(r"Environment variable '([^']*)' not found", text):
        return (
            f"{place}{key or 'a value'} is read from the environment variable {variable[1]}, which is not set. Set it, "
            f"or give a default: ${{oc.env:{variable[1]},DEFAULT}}."
        )
    if not key:
        return f"{place}{text.splitlines()[0]} A configuration file holds lines `key: value`."
    given = next((line.partition("=")[2] for line in overrides if line.lstrip("+").partition("=")[0] == key), "")
    return f"{place}{text.splitlines()[0]} (key: {key}){what_to_set(key, given)}"


def unreadable(error: OverrideParseException) -> str:
    """Return why Hydra's grammar cannot read an override, and its quoted spelling."""
    key, equals, value = error.override.partition("=")
    reason = next(line for line in error.message.splitlines() if not line.startswith("Error parsing override"))
    if "LexerNoViableAltException" in reason:
        # The second line of the message points at the character.
        place = error.message.splitlines()[1].index("^") - len("LexerNoViableAltException: ")
        reason = f"{error.override[place]!r} has to stand in quotes" if place < len(error.override) else "it ends early"
    quotes = "'\"" if '"' not in value else "\"'"
    can = equals and not set(value) & set("'\"[]{}")
    quoted = f"{quotes[0]}{key}={quotes[1]}{value}{quotes[::-1]}" if can else "'KEY=\"a b\"'"
    return (
        f"{error.override!r} cannot be read: {reason}. Write KEY=VALUE; a value with = ( ) [ ] {{ }} , # ~ or letters "
        f"with accents needs two kinds of quotes: {quoted}."
    )


def as_default(group: str) -> str:
    """Return how the defaults of a file choose a file of another group."""
    return f": `defaults: [{{override /{group}@_global_.{group}: NAME}}, _self_]`"


def what_to_set(key: str, given: str = "") -> str:
    """Return a sentence on what a key takes; empty where OmegaConf's own text lists it, as the names of a choice.

    For a usual name of a value, as in job.precision=fp8, or a time with its unit it has the value to set.
    """
    if usual := meant(f"{key}={given}"):
        return f". Set {' '.join(usual)}."
    known = keys().get(key)
    if known is None:
        return f". {null_in_quotes(key)}" if is_text(key.partition("[")[0]) else ""
    if known.is_section:
        names = [name.removeprefix(f"{key}.") for name in keys() if name.startswith(f"{key}.")]
        return f". It is a section: set {key}.KEY=VALUE with one of {', '.join(n for n in names if '.' not in n)}."
    if get_origin(known.kind) is list:
        return f". It is a list: set {key}=[A,B]."
    if get_origin(known.kind) is dict:
        return f". It is a mapping: set {key}.NAME=VALUE, or '{key}={{NAME: VALUE}}'."
    if (number := in_unit(given, known.unit)) is not None:
        return f". Set {key}={number} ({known.unit})."
    whole = f"{key}=NUMBER, a whole {f'number of {known.unit}' if known.unit else 'one'}"
    values = {int: whole, float: f"{key}=NUMBER", bool: f"{key}=true or {key}=false", str: f"{key}=TEXT"}
    return f". Set {values[known.kind]}{', or null' if known.optional else ''}." if known.kind in values else ""


def in_unit(given: str, unit: str | None) -> int | None:
    """Return a time such as 2h, 90min or 1:30:00 as a whole number of minutes or seconds; None for anything else."""
    if unit not in {"minutes", "seconds"}:
        return None
    if clock := re.fullmatch(r"(\d+):(\d\d):(\d\d)", given):
        seconds = 3600.0 * int(clock[1]) + 60 * int(clock[2]) + int(clock[3])
    elif found := re.fullmatch(r"(\d+(?:\.\d+)?) ?(s|m|h|d)\w*", given):
        seconds = float(found[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[found[2]]
    else:
        return None
    return math.ceil(seconds / (60 if unit == "minutes" else 1))


def null_in_quotes(key: str) -> str:
    """Return a sentence on text in a mapping or list, which cannot be null."""
    return f"Its texts cannot be null: leave it out, or write the word in two kinds of quotes: \"{key}='null'\"."


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


def place_of_text(error: Exception, overrides: list[str]) -> str:
    """Return "FILE, line N: " of a site's file that is no configuration, where the error does not name it itself."""
    if isinstance(error, yaml.YAMLError):
        return ""
    names = [line.replace("=", "/", 1) for line in overrides if line.partition("=")[0] in GROUPS]
    for file in filter(None, map(site_file, names)):
        content = read_bytes(file, YAML_BYTES)
        if not isinstance(error, UnicodeDecodeError):
            return place_of(str(file.relative_to(os.environ["SLURMSCALE_SITE"])), "defaults")
        if error.object in content:
            before = content[: content.index(error.object) + error.start]
            return f"{file}, line {len(before.splitlines()) or 1}: "
    return ""
