"""`slurmscale explain`: type, choices, default, unit and meaning of a key, from the schema and the files of conf/."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

from hydra import compose as hydra_compose
from omegaconf import DictConfig, OmegaConf

from jobs.errors import ConfigError
from jobs.files import YAML_BYTES, read_text
from jobs.plan.configuration_files import composing
from jobs.plan.keys import GROUPS, Key, did_you_mean, in_section, is_enum, keys, meanings, nearest_keys
from jobs.plan.overrides import single
from jobs.plan.refusals import choices, file_of
from jobs.plan.synonyms import meant, nearest_names

WIDTH = 110
MOST_FOUND = 40


def explain(name: str | None, overrides: list[str]) -> int:
    """Print type, choices, default, unit and meaning of a key; without a name, list the keys of the first level.

    Another word is searched in names, meanings and choices. Raises ConfigError for a word that is found nowhere.
    """
    if name is None:
        rows([(key.name, key.meaning) for key in keys().values() if "." not in key.name], indent=0)
        print(
            "\n`slurmscale explain KEY` prints one of them, such as job or job.steps; `slurmscale explain WORD` lists "
            "the keys and choices with a word, such as checkpoint."
        )
        return 0
    name = name.partition("=")[0]
    if name not in keys() and name not in GROUPS:
        near = nearest_keys(name) or nearest_names(name, GROUPS)
        if entries := with_word(name):
            if usual := meant(name):
                print(f"{name} is called {' or '.join(usual)} here.\n")
            rows(entries, indent=0)
            return 0
        raise ConfigError(
            f"{name} is not a configuration key.{did_you_mean(near)} `slurmscale explain` lists all keys."
        )
    with composing(overrides):
        files = choices(name) if name in GROUPS else []
        config = hydra_compose("config", overrides=single(overrides))
    print(name)
    for title, text in facts(name, config):
        print(textwrap.fill(text, WIDTH, initial_indent=f"  {title:9}", subsequent_indent=" " * 11))
    listed("choices", [(each, first_comment(f"{name}/{each}")) for each in files] or members(keys().get(name)))
    inner = [key for key in keys().values() if in_section(key.name, name)]
    listed("keys", [(key.name, key.meaning) for key in inner])
    return 0


def with_word(word: str) -> list[tuple[str, str]]:
    """Return the keys that a word may mean, then keys and choices with it: in names first, then in meanings."""
    if "." in word:
        return []
    with composing([]):
        names = [f"{group}={each}" for group in sorted(GROUPS) for each in choices(group)]
    # The settings of the server after training are those of a server, once more.
    known = [key for key in keys().values() if not key.name.startswith("stages.serve.")]
    texts = {key.name: key.meaning for key in known}
    texts |= {name: first_comment(name.replace("=", "/")) for name in names}
    texts |= {f"{key.name}={value}": text for key in known if is_enum(key.element) for value, text in members(key)}
    sought = word.lower()
    usual = [name for name in meant(word) if name in texts]
    in_names = [name for name in texts if sought in name.lower().rpartition(".")[2]]
    in_meanings = [name for name, text in texts.items() if re.search(rf"\b{re.escape(sought)}", text.lower())]
    return [(name, texts[name]) for name in dict.fromkeys([*usual, *in_names, *in_meanings])][:MOST_FOUND]


def facts(name: str, config: DictConfig) -> Iterator[tuple[str, str]]:
    """Yield title and text of each line about a key; the default is its value in this composition."""
    key = keys().get(name)
    if key is None:
        yield "meaning", "A file that combines choices and values of any group, and may declare a sweep."
        yield "default", "null"
        return
    yield "meaning", key.meaning
    yield "type", key.type_name if name not in GROUPS else "group; each choice is a file"
    if key.unit:
        yield "unit", key.unit
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


def members(key: Key | None) -> list[tuple[str, str]]:
    """Return the values of a choice, or of the elements of a list, with their meanings."""
    if key is None:
        return []
    texts = meanings().get(getattr(key.element, "__name__", ""), {})
    names = [member.name for member in key.element] if is_enum(key.element) else key.choices
    return [(name, texts.get(name, "")) for name in names]


def first_comment(config: str) -> str:
    """Return the first comment line of a choice GROUP/NAME; an empty text where it has none."""
    file = file_of(config)
    lines = read_text(file, YAML_BYTES).splitlines() if file else []
    return next((line[2:] for line in lines if line.startswith("# ") and not line.startswith("# @package")), "")


def listed(title: str, entries: list[tuple[str, str]]) -> None:
    """Print a list with its title, if there is any entry."""
    if entries:
        print(f"  {title}")
        rows(entries, indent=4)


def rows(entries: list[tuple[str, str]], *, indent: int) -> None:
    """Print names with their meanings in two columns."""
    width = max(len(name) for name, _ in entries) + 2
    for name, text in entries:
        lead = " " * indent + f"{name:{width}}"
        print(
            textwrap.fill(text, WIDTH, initial_indent=lead, subsequent_indent=" " * len(lead)).rstrip() or lead.rstrip()
        )
