"""The lines of `slurmscale explain KEY`: meaning, type, unit, and the value of the key in a composition."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, fields

from hydra import compose as hydra_compose
from omegaconf import DictConfig, OmegaConf

from jobs.errors import ConfigError
from jobs.plan.configuration_files import composing
from jobs.plan.keys import GROUPS, keys, known_key
from jobs.plan.overrides import single
from jobs.ranges import ranges_of
from jobs.settings.program import Limits, Parameter


def facts(name: str, overrides: list[str]) -> list[tuple[str, str]]:
    """Return title and text of each line about a key; the default is its value with these overrides."""
    with composing(overrides):
        config = hydra_compose("config", overrides=single(overrides))
    return list(described(name, config))


def parameter_facts(name: str, overrides: list[str]) -> list[tuple[str, str]]:
    """Return title and text of each line about a parameter of the chosen program.

    Raise ConfigError without a program, or for one that has no such parameter.
    """
    with composing(overrides):
        program = hydra_compose("config", overrides=single(overrides)).program
    if program is None or program.get("params", {}).get(name) is None:
        known = "" if program is None else f" program={program.name} has {', '.join(program.params) or 'none'}."
        raise ConfigError(f"program.params.{name} is a key of some programs.{known} Set program=NAME after the key.")
    about = program.parameters.get(name) or Parameter(meaning="The file of the program does not describe it.")
    found = {
        "meaning": about.meaning,
        "type": about.type.name,
        "range": Limits(at_least=about.at_least, at_most=about.at_most).in_words,
        "choices": ", ".join(about.one_of),
        "unit": about.unit or "",
        "default": program.params[name] or "(empty)",
    }
    return [(title, text) for title, text in found.items() if text]


def described(name: str, config: DictConfig) -> Iterator[tuple[str, str]]:
    """Yield title and text of each line about a key of a composition."""
    key = known_key(name)
    if key is None:
        yield "meaning", "A file that combines choices and values of any group, and may declare a sweep."
        yield "default", "null"
        return
    yield "meaning", key.meaning
    yield "type", key.type_name if name not in GROUPS else "group; each choice is a file"
    if (found := ranges_of(key.owner).get(name.rpartition(".")[2])) is not None:
        yield "range", found.in_words
    if key.unit:
        yield "unit", key.unit
    section = name.rpartition(".")[0]
    if name not in keys() or (section and OmegaConf.select(config, section) is None):
        # A key in a section by name, or in one that nothing has set, has the default of its field.
        default = next(each.default for each in fields(key.owner) if each.name == name.rpartition(".")[2])
        if default is not MISSING and not key.is_section:
            yield "default", "null" if default is None else str(getattr(default, "name", default))
        return
    value = "(no value)" if OmegaConf.is_missing(*parent_of(name, config)) else OmegaConf.select(config, name)
    if OmegaConf.is_list(value):
        yield "default", f"[{', '.join(str(getattr(each, 'name', each)) for each in value)}]"
    elif not key.is_section:
        yield "default", OmegaConf.to_yaml(OmegaConf.create([value]))[2:].strip()
    elif value is None:
        yield "default", "null"


def parent_of(name: str, config: DictConfig) -> tuple[DictConfig, str]:
    """Return the section of a composition that holds a key, and the key's name in it; an unset section as empty."""
    section, _, last = name.rpartition(".")
    return (OmegaConf.select(config, section) if section else config) or OmegaConf.create({}), last
