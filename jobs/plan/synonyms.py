"""Names that a user may mean: usual names of keys and values (synonyms.csv), beginnings, and similar spellings."""

from __future__ import annotations

import csv
import difflib
from collections.abc import Collection
from functools import cache
from importlib import resources

MOST = 4
"""Names in a proposal."""


@cache
def usual_names() -> dict[str, list[str]]:
    """Return the keys, or the overrides, by the usual name of a key or an override that is usual elsewhere."""
    with resources.files("jobs.plan").joinpath("synonyms.csv").open(encoding="utf-8") as file:
        return {row["word"]: row["here"].split() for row in csv.DictReader(file)}


def meant(word: str) -> list[str]:
    """Return what a usual name is called here; an empty list for any other word."""
    return usual_names().get(word.lower().replace("-", "_"), [])


def nearest_names(name: str, names: Collection[str]) -> list[str]:
    """Return the names that a misspelt one may mean: those that begin with it or contain it, else similar ones."""
    word = name.lower()
    beginning = sorted(each for each in names if word and each.lower().startswith(word))
    within = sorted(each for each in names if len(word) > 2 and word in each.lower() and each not in beginning)
    return (beginning + within)[:MOST] or difflib.get_close_matches(name, names, n=3)
