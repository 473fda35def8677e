"""`slurmscale explain`: type, choices, default, unit and meaning of a key, from the schema and the files of conf/."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterable, Sequence

from jobs.answers import ExplainAnswer, ExplainedKey
from jobs.errors import ConfigError
from jobs.plan.choices import choices, first_comment, refuse_missing_site
from jobs.plan.keys import (
    GROUPS,
    Key,
    did_you_mean,
    in_section,
    is_enum,
    keys,
    keys_of,
    known_key,
    meanings,
    nearest_keys,
)
from jobs.plan.synonyms import meant, nearest_names

NARROWEST, WIDEST = 60, 110
MOST_FOUND = 40
PARAMETER = "program.params."
"""Beginning of the keys that the file of a program declares."""


def explain(name: str | None, overrides: list[str]) -> int:
    """Print what `explained` returns."""
    found = explained(name, overrides)
    if found.facts:
        print(found.name)
        for title, text in found.facts.items():
            print(textwrap.fill(text, columns(), initial_indent=f"  {title:9}", subsequent_indent=" " * 11))
        listed("choices", found.choices)
        listed("keys", found.keys)
        return 0
    if name is not None and (usual := meant(name)):
        print(f"{name} is called {' or '.join(usual)} here.\n")
    rows(found.keys, indent=0)
    if name is None:
        hint = (
            "`slurmscale explain KEY` prints one of them, such as job or job.steps; `slurmscale explain WORD` lists "
            "the keys and choices with a word, such as checkpoint."
        )
        print(f"\n{textwrap.fill(hint, columns())}")
    return 0


def explained(name: str | None, overrides: list[str]) -> ExplainAnswer:
    """Return type, choices, default, unit and meaning of a key; without a name, the keys of the first level.

    Another word is searched in names, meanings and choices. Raises ConfigError for a word that is found nowhere.
    """
    if name is None:
        first = [(key.name, key.meaning) for key in keys().values() if "." not in key.name]
        return ExplainAnswer(None, {}, [], entries(first))
    name = name.partition("=")[0]
    if name.startswith(PARAMETER):
        from jobs.plan.key_facts import parameter_facts

        return ExplainAnswer(name, dict(parameter_facts(name.removeprefix(PARAMETER), overrides)), [], [])
    if known_key(name) is None and name not in GROUPS:
        near = nearest_keys(name) or nearest_names(name, GROUPS)
        if found := with_word(name):
            return ExplainAnswer(name, {}, [], entries(found))
        raise ConfigError(
            f"{name} is not a configuration key.{did_you_mean(near)} `slurmscale explain` lists all keys."
        )
    from jobs.plan.key_facts import facts

    files = choices(name) if name in GROUPS else []
    inner = [key for key in keys().values() if in_section(key.name, name)]
    if (key := known_key(name)) is not None and key.entry is not None:
        inner = list(keys_of(key.entry, f"{name}.NAME."))
    elif key is not None and key.is_section and not inner:
        inner = list(keys_of(key.kind, f"{name}."))
    return ExplainAnswer(
        name,
        dict(facts(name, overrides)),
        entries([(each, first_comment(f"{name}/{each}")) for each in files] or members(known_key(name))),
        entries([(key.name, key.meaning) for key in inner]),
    )


def entries(found: Iterable[tuple[str, str]]) -> list[ExplainedKey]:
    """Return names with their meanings."""
    return [ExplainedKey(name, meaning) for name, meaning in found]


def with_word(word: str) -> list[tuple[str, str]]:
    """Return the keys that a word may mean, then keys and choices with it: in names first, then in meanings."""
    if "." in word:
        return []
    refuse_missing_site()
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


def members(key: Key | None) -> list[tuple[str, str]]:
    """Return the values of a choice, or of the elements of a list, with their meanings."""
    if key is None:
        return []
    texts = meanings().get(key.element, {})
    names = [member.name for member in key.element] if is_enum(key.element) else key.choices
    return [(name, texts.get(name, "")) for name in names]


def listed(title: str, found: Sequence[ExplainedKey]) -> None:
    """Print a list with its title, if it has any entry."""
    if found:
        print(f"  {title}")
        rows(found, indent=4)


def columns() -> int:
    """Return the width of the text: the terminal's, within limits; the widest in a pipe."""
    return max(NARROWEST, min(WIDEST, shutil.get_terminal_size((WIDEST, 0)).columns))


def rows(found: Sequence[ExplainedKey], *, indent: int) -> None:
    """Print names with their meanings in two columns."""
    width = max(len(each.name) for each in found) + 2
    for each in found:
        lead = " " * indent + f"{each.name:{width}}"
        print(
            textwrap.fill(each.meaning, columns(), initial_indent=lead, subsequent_indent=" " * len(lead)).rstrip()
            or lead.rstrip()
        )
