"""The reasons of a refusal as data: code, key, value, the allowed values, and the overrides that mend it.

A rule gives its name as the code. Other texts have the key in the place where a reader looks for it, first or in
brackets, and tests hold these texts; what a key allows is read from the schema.
"""

from __future__ import annotations

import argparse
import re
from pathlib import PurePath

from jobs.answers import Reason, Refusal
from jobs.errors import ConfigError, Problem

FIRST = re.compile(r"'?([+~]*)([a-z]\w*(?:[./]\w+)*)(?:=('[^']*'|\[[^]]*\]|\S*?))?(?=[:,;]?(?:\s|$)|[.]$)")
IN_BRACKETS = re.compile(r"\(key: ([\w.]+)\)")
OF_OPTION = re.compile(r"argument ([^:\s]+(?:/[^:\s]+)*): ")
GIVEN = re.compile(r"(?:value|choice): '([^']*)'|there is no command '([^']*)'")
MEANT = re.compile(r"Did you mean ([\w.]+(?: or [\w.]+)*)\?")
CHOICES = re.compile(r"\(choose from (.*?)\)")
WITH_OPTION = re.compile(r"(--[a-z][a-z-]*)(?:[ =]([^:\s]+))?: ")
SHORTEST_NAMED = 3
# The code of a text that comes from no rule, by words that it has.
CODES = (
    ("is not a configuration key", "unknown_key"),
    ("there is no such choice", "unknown_choice"),
    ("could not be converted", "wrong_type"),
    ("is not a valid", "wrong_type"),
    ("is not Optional", "wrong_type"),
    ("(key: ", "wrong_type"),
    ("no value, and this choice needs one", "missing_value"),
    ("has no effect", "unread_key"),
    ("so nothing in it can be changed", "unread_key"),
    ("several values, but this is a single run", "several_values"),
    ("cannot be read: ", "unreadable"),
)


def refusal(
    kind: str, text: str, error: BaseException | None = None, options: argparse.Namespace | None = None
) -> Refusal:
    """Return a refusal of a command with these options, with its reasons."""
    if kind == "usage":
        return Refusal(kind, text, [], [of_usage(text)])
    if not isinstance(error, ConfigError):
        key, value = argument_and_value(text, options)
        return Refusal(kind, text, [], [Reason(snake(kind), None, key, value, None, text, [])])
    found = [of_problem(problem, options) for problem in error.problems or lines_of(text)]
    # The line with the nearest that can run belongs to the whole text.
    return Refusal(kind, text, remedies_in(text), found)


def snake(kind: str) -> str:
    """Return the code of an error: run_dir of RunDirError."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.removesuffix("Error")).lower()


def lines_of(text: str) -> list[Problem]:
    """Return the lines of a text that begin with a key, else the whole, each with the code that its words have."""
    lines = [line.strip() for line in text.splitlines()]
    with_key = [line for line in lines if key_and_value(line, [])[0]] if len(lines) > 1 else []
    return [
        Problem(each, next((code for words, code in CODES if words in each), snake("ConfigError")))
        for each in with_key or [text]
    ]


def of_problem(problem: Problem, options: argparse.Namespace | None) -> Reason:
    """Return a line of a ConfigError as data."""
    key, value = key_and_value(problem, getattr(options, "overrides", None) or [])
    if key is None:
        key, value = argument_and_value(problem, options)
    found = remedies_in(problem) or (meant(problem, key, value) if key and value else [])
    return Reason(problem.code, problem.run, key, value, allowed(key), str(problem), found)


def meant(problem: Problem, key: str, value: str) -> list[dict[str, str]]:
    """Return the overrides that an unknown key or choice probably means."""
    if (near := MEANT.search(problem)) is None:
        return []
    names = near[1].split(" or ")
    if problem.code == "unknown_key":
        return [{name: value} for name in names]
    return [{key: name} for name in names] if problem.code == "unknown_choice" else []


def key_and_value(text: str, overrides: list[str]) -> tuple[str | None, str | None]:
    """Return the key that a text is about, and its value: as it has it, else as it was given; None where unknown."""
    from jobs.plan.keys import GROUPS, key_of, known_key, value_of

    given = {key_of(each): value_of(each) for each in overrides if "=" in each}
    if bracket := IN_BRACKETS.search(text):
        return bracket[1], given.get(bracket[1])
    first = FIRST.match(text)
    if first is None:
        return None, None
    key, value = first[2], first[3]
    if not (value is not None or known_key(key) or key in GROUPS or f"{key} is not a configuration key" in text):
        return None, None
    return key, value.strip("'") if value is not None else given.get(key)


def allowed(key: str | None) -> str | None:
    """Return the values that a key takes, as `slurmscale explain` describes them; None for one that does not exist."""
    from jobs.plan.choices import choices
    from jobs.plan.keys import GROUPS, known_key
    from jobs.ranges import ranges_of

    if key is None:
        return None
    if key in GROUPS:
        return f"one of {', '.join(choices(key))}"
    known = known_key(key)
    if known is None:
        return None
    if known.choices:
        return f"one of {', '.join(known.choices)}{', or null' if known.optional else ''}"
    limits = ranges_of(known.owner).get(key.rpartition(".")[2])
    return f"{known.type_name}{f'; {limits.in_words}' if limits is not None else ''}"


def argument_and_value(text: str, options: argparse.Namespace | None) -> tuple[str | None, str | None]:
    """Return the option that a text begins with, else the argument whose value it names: the longest one."""
    if begins := WITH_OPTION.match(text):
        return begins[1], begins[2]
    given = [
        (name, str(value))
        for name, values in (vars(options) if options else {}).items()
        for value in (values if isinstance(values, list | tuple) else [values])
        if isinstance(value, str | PurePath) and name not in {"command", "overrides"}
    ]
    named = [(name, value) for name, value in given if value and is_named(text, value)]
    return max(named, key=lambda each: len(each[1]), default=(None, None))


def is_named(text: str, value: str) -> bool:
    """Return True if a text has this value as a word; a short one, which may be any word, has to be the first."""
    before = r"(?<!\w)" if len(value) >= SHORTEST_NAMED else "^"
    return re.search(rf"{before}{re.escape(value)}(?!\w)", text) is not None


def of_usage(text: str) -> Reason:
    """Return a refusal of the command line's grammar as data; the key is the option."""
    option, given, listed = (pattern.search(text) for pattern in (OF_OPTION, GIVEN, CHOICES))
    return Reason(
        "usage",
        None,
        option[1] if option else None,
        given[1] or given[2] if given else None,
        f"one of {listed[1]}".replace("'", "") if listed else None,
        text,
        [],
    )


def remedies_in(text: str) -> list[dict[str, str]]:
    """Return the overrides that the lines of a refusal propose."""
    from jobs.plan.remedies import remedies

    return [found for line in text.splitlines() for found in remedies(line.strip())]
