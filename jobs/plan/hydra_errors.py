"""What Hydra and OmegaConf raise becomes a ConfigError: the place in a file, the key, and what to set."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import get_origin

import yaml
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf.errors import OmegaConfBaseException

from jobs.errors import ConfigError
from jobs.files import YAML_BYTES, read_bytes
from jobs.plan.choices import chosen, place_of, set_one_of, site_file
from jobs.plan.keys import GROUPS, did_you_mean, is_text, keys_of, known_key, nearest_keys, section_of
from jobs.plan.synonyms import meant, nearest_names
from jobs.visible import HIDDEN, visible


@contextmanager
def hydra_refusals(overrides: list[str]) -> Iterator[None]:
    """Turn what Hydra and OmegaConf raise on these overrides into a ConfigError with a remedy."""
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(explain(error, overrides)) from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError, OSError) as error:
        quotes = "Texts with a colon, #, {, [ or a backslash need single quotes. " * isinstance(error, yaml.YAMLError)
        raise ConfigError(
            f"A configuration file cannot be used: {place_of_text(error, overrides)}{' '.join(str(error).split())}. "
            f"{quotes}Correct it; your own files are in SLURMSCALE_SITE="
            f"{os.environ.get('SLURMSCALE_SITE', '(not set)')}, and cluster/generic_slurm.yaml is a pattern."
        ) from error


def explain(error: Exception, overrides: list[str]) -> str:
    """Return the innermost message, where it is, and what to set."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options:
        missing = str(error.missing_cfg_file)
        # A name with a slash is no group below: model=meta-llama/Llama-2-7b.
        group = max((each for each in GROUPS if missing.startswith(f"{each}/")), key=len, default=missing)
        name = missing[len(group) + 1 :]
        near = meant(f"{group}={name}") or nearest_names(name.rpartition("/")[2], error.options)
        return f"{group}={name}: there is no such choice.{did_you_mean(near)} {set_one_of(group, error.options)}"
    if isinstance(error, OverrideParseException):
        return unreadable(error)
    file = re.match(r"In '([^']+)': \w+ raised while composing config:\n", str(error))
    # Hydra wraps OmegaConf's error, whose own text and full_key are more exact.
    cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
    text = str(error)[file.end() :] if file else str(cause)
    if twice := re.search(r"Multiple values for (\w+)\.", text):
        return f"{twice[1]} is chosen already. A file chooses another one in its defaults{as_default(twice[1])}."
    if not file and not isinstance(cause, OmegaConfBaseException):
        return text.strip().removeprefix("In 'config': ")
    named = re.search(r"^\s*full_key: (.*)$", text, flags=re.MULTILINE)
    # Another key is read from the one that is missing.
    unset = re.search(r"Missing mandatory value: ([\w.]+)", text)
    key = unset[1] if unset else getattr(cause, "full_key", None) or (named[1] if named else "")
    config = file[1] if file else chosen(key.partition(".")[0], overrides)
    place = place_of(config, key)
    if config.partition("/")[0] == "experiment" and key.partition(".")[0] == "experiment":
        return (
            f"{place}an experiment sets keys of the whole run, so its first line must be `# @package _global_`; its "
            "keys are then model, job, nodes and so on."
        )
    if unset:
        return f"{place}{key} is not set{what_to_set(key)}"
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
    if re.search(r"Interpolation key '[^']*' not found|Unsupported interpolation type|token recognition error", text):
        return (
            f"{place}{text.splitlines()[0]} (key: {key}). ${{KEY}} is the value of a configuration key; write "
            "\\${NAME} for text that a shell replaces."
        )
    if not key:
        return f"{place}{text.splitlines()[0].rstrip('.')}. A configuration file holds lines `key: value`."
    given = next((line.partition("=")[2] for line in overrides if line.lstrip("+").partition("=")[0] == key), "")
    return f"{place}{text.splitlines()[0]} (key: {key}){what_to_set(key, given)}"


def unreadable(error: OverrideParseException) -> str:
    """Return why Hydra's grammar cannot read an override, and its quoted spelling."""
    key, equals, value = error.override.partition("=")
    if hidden := HIDDEN.search(error.override):
        return (
            f"'{visible(error.override)}' cannot be read: it contains the character {visible(hidden[0])}, which is not "
            "seen. Leave it out."
        )
    if plain := slip(key, equals, value):
        return f"{error.override!r} cannot be read: {plain}"
    reason = next(line for line in error.message.splitlines() if not line.startswith("Error parsing override"))
    if "LexerNoViableAltException" in reason:
        # A line of the message points at the character; line breaks in the override shift it to another line.
        pointer = next((line for line in error.message.splitlines() if line.strip() == "^"), "")
        at = error.override[max(0, pointer.find("^") - len("LexerNoViableAltException: ")) :][:1]
        reason = f"{at!r} has to stand in quotes" if at else "it ends early"
    quotes = "'\"" if '"' not in value else "\"'"
    can = equals and not set(value) & set("'\"[]{}")
    quoted = f"{quotes[0]}{key}={quotes[1]}{value}{quotes[::-1]}" if can else "'KEY=\"a b\"'"
    return (
        f"{error.override!r} cannot be read: {reason}. Write KEY=VALUE; a value with = ( ) [ ] {{ }} , # ~ or letters "
        f"with accents needs two kinds of quotes: {quoted}."
    )


def slip(key: str, equals: str, value: str) -> str:
    """Return what is wrong with an override that is no value to be quoted, and what to write; empty for another one."""
    name, colon, rest = key.partition(":")
    if not equals and colon and not set(key) & set("{['\""):
        return f"a key and its value are joined by an equals sign. Write {name}={rest.strip()}."
    if not equals:
        return f"it has no value. Write {key.strip() or 'KEY'}=VALUE."
    if value.startswith("=") and not set(value) & set("{['\""):
        return f"it has two equals signs. Write {key}={value.lstrip('= ')}."
    if (bare := value.strip()) and bare.strip(",") and bare != bare.strip(","):
        return f"a comma stands between two values. Write {key}={bare.strip(',')}."
    return ""


def as_default(group: str) -> str:
    """Return how the defaults of a file choose a file of another group."""
    return f": `defaults: [{{override /{group}@_global_.{group}: NAME}}, _self_]`"


def what_to_set(key: str, given: str = "") -> str:
    """Return a sentence on what a key takes; empty if OmegaConf's own text lists it, as the names of a choice.

    For a usual name of a value, as in job.precision=fp8, or a time with its unit it has the value to set.
    """
    if usual := meant(f"{key}={given}"):
        return f". Set {' '.join(usual)}."
    if (kind := section_of(key)) is not None:
        names = [each.name for each in keys_of(kind) if "." not in each.name]
        return f". It is a section: set {key}.KEY=VALUE with one of {', '.join(names)}."
    known = known_key(key)
    if known is None:
        return f". {null_in_quotes(key)}" if is_text(key.partition("[")[0]) else ""
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
    elif found := re.fullmatch(r"(\d+(?:\.\d+)?) ?(s|m|h|d)(?:ecs?|econds?|ins?|inutes?|rs?|ours?|ays?)?", given):
        seconds = float(found[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[found[2]]
    else:
        return None
    return math.ceil(seconds / (60 if unit == "minutes" else 1))


def null_in_quotes(key: str) -> str:
    """Return a sentence on text in a mapping or list, which cannot be null."""
    return f"Its texts cannot be null: leave it out, or write the word in two kinds of quotes: \"{key}='null'\"."


def place_of_text(error: Exception, overrides: list[str]) -> str:
    """Return "FILE, line N: " of an invalid site file, if the error message does not already name it."""
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
