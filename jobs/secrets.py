"""Detect passwords, tokens and keys, and keep them out of every file and message.

A configuration that contains one is refused, because config.yaml and the batch script would contain it too. In text
from other sources (command lines, error messages, tracebacks) REDACTED replaces it.

secret_shapes.csv lists what tokens look like: a prefix, the characters after it, and the least number of these. The
prefixes and character sets are those of gitleaks' default rules (github.com/gitleaks/gitleaks, config/gitleaks.toml),
where it has none of trufflehog's or detect-secrets', and else of tokens as the issuers give them; the least numbers are
lower, so that the beginning of a token is found too. tests/README.md compares with the package detect-secrets.
"""

from __future__ import annotations

import csv
import functools
import json
import os
import re
import traceback
from collections import defaultdict
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jobs.schema import Run

REDACTED = "[redacted]"
# HF_TOKEN and hf.token, but not tokenizer; API_KEY, but not sort_key; DB_PASS, but not forward_pass; HF_TOKEN_PATH is a
# path and not a secret.
NAME = (
    r"[\w.-]*(?:(?i:token|secret|passwo?r?d|passphrase|credentials?"
    r"|(?:api|access|auth|private|secret|account|signing|encryption)[_-]?key)"
    r"|_KEY|[A-Z0-9]_?PASS|[A-Z0-9]_PWD?|(?i:db|user|admin|root|mail|smtp|proxy|ssh|sql|redis)_pass)"
    r"(?![A-Za-z]|[\w-]*(?i:path|file|dir|stdin)\b)[\w-]*"
)
SECRET_NAME = re.compile(NAME)
QUOTE = r"""\\*["']"""
# NAME=value, "name": "value", --name value, and a printed list that has one after the other. Shell expansions ($TOKEN,
# $(cat file)) and paths to credentials are kept.
ASSIGNED = re.compile(
    rf"""(?<![\w.-])(?P<before>--?pass[ =]|(?P<dashes>--)?(?:{NAME}|PASS)"""
    rf"""(?:(?:{QUOTE})?\s*(?:\+?=|(?P<colon>:))\s*[bf]?|{QUOTE},\s*b?(?={QUOTE})|(?(dashes)[ ]+|(?!))))"""
    # Shells continue a quoted value after '"'"' and '\''. A comma ends a value of YAML, and not a word of a shell.
    r"""(?P<value>\\*"[^"$`][^"]*"|\$?\\*'[^']+'(?:"'"'[^']*'|\\''[^']*')*"""
    r"""|(?![$`"'\\]|\[redacted)(?:[^\s"',;}\]\)\\]|(?(colon)(?!)|,(?=[^\s"'}\]\)])))+)"""
)
# Limited, or the time of the search would grow with the square of the text.
BETWEEN = r"[^\n;|&]{0,500}?"
# Commands that take a password or key without naming it.
COMMAND = re.compile(
    rf"""(?P<before>\b(?:setenv|set[ ]+-\w*x\w*|aws[ ]+configure[ ]+set)[ ]+{NAME}[ ]+
    | (?i:\bauthorization:[ ]*(?:token|api-?key)[ ]+) | (?i:\bcookie:[ ]*) | [?&](?i:sig|signature|x-amz-signature)=
    | \bmachine\s+\S+\s+login\s+\S+\s+password\s+
    | \bwandb\s+login\s+(?:--?[\w-]+(?:=\S+)?\s+)*--key[ =]
    | \bwandb\s+login\s+(?:--?[\w-]+(?:=\S+)?\s+)*(?=["']?[\w-]*\d)
    | \b(?:docker|podman|apptainer|singularity|helm)\b(?>{BETWEEN}\slogin\b){BETWEEN}\s-p[ ]*
    | \bsshpass\s+-p[ ]*
    | \b(?:mysql|mariadb)[\w-]*\b{BETWEEN}[\s"']-p(?=\S)
    | \bcurl\b{BETWEEN}\s(?:-u|--user)[ =]*["']?[^\s:"'$]+:
    )(?P<value>"[^"$`][^"]*"|'[^']+'|(?![$`"'\\-]|\[redacted)[^\s"',;}}\]\)\\]+)""",
    re.VERBOSE,
)
SWITCHES = {"0", "1", "true", "false", "yes", "no", "on", "off", "none", "null"}
# A shorter value also occurs in ordinary words.
SHORTEST_KNOWN = 8


@functools.cache
def shapes() -> re.Pattern[str]:
    """Return the pattern of all tokens in secret_shapes.csv, and of keys and passwords that are no tokens."""
    prefixes: dict[tuple[str, str], list[str]] = defaultdict(list)
    with Path(__file__).with_name("secret_shapes.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            prefixes[row["characters"], row["least"]].append(row["prefix"])
    tokens = "|".join(f"(?:{'|'.join(p)})[{characters}]{{{least},}}" for (characters, least), p in prefixes.items())
    return re.compile(
        rf"""(?<![A-Za-z0-9])(?:{tokens})
        | (?i:\bbearer[ ]+)[\w.~+/-]{{12,}}=*
        | (?i:\bauthorization:[ ]*basic[ ]+)[A-Za-z0-9+/]{{8,}}=*
        # A block of keys, also one without its end.
        | -----BEGIN[ ][A-Z0-9 ]*PRIVATE[ ]KEY(?:[ ]BLOCK)?-----
          (?:[\s\S]{{0,16000}}?-----END[^-]*-----|[A-Za-z0-9+/=\s\\]*)
        # The same of PuTTY.
        | (?<=Private-Lines:[ ])\d+[A-Za-z0-9+/=\s\\]*
        # A token, or user:password, in a URL, in which a path has one slash: https:/user:password@host
        | (?<=://)(?=[^\s/:@]*\d)[^\s/:@]{{20,}}(?=@)
        | (?:(?<=://)|(?<=[A-Za-z]:/)(?!/))[^\s/:@]*:[^\s/]+(?=@)
        """,
        re.VERBOSE,
    )


def redact(text: str, known: Sequence[str] | None = None) -> str:
    """Return the text with every secret replaced; `known` are the secrets of the environment, if already collected."""
    for value in known_values() if known is None else known:
        text = text.replace(value, REDACTED)
    text = shapes().sub(REDACTED, text)
    text = COMMAND.sub(rf"\g<before>{REDACTED}", text)
    return ASSIGNED.sub(lambda found: found[0] if is_harmless(found["value"], found["before"]) else
                        found["before"] + REDACTED, text)  # fmt: skip


def redacted(value: Any, known: list[str] | None = None) -> Any:
    """Return JSON data with every secret replaced, in keys too; `known` as for redact."""
    known = known_values() if known is None else known
    match value:
        case str():
            return redact(value, known)
        case dict():
            return {
                redact(key, known) if isinstance(key, str) else key: REDACTED
                if isinstance(item, str) and names_secret(str(key), item)
                else redacted(item, known)
                for key, item in value.items()
            }
        case list() | tuple():
            return [redacted(item, known) for item in value]
    return value


def redacted_traceback(error: BaseException) -> str:
    """Return the traceback of an error as Python prints it, without secrets.

    The text is redacted and not the exceptions in it: a secret may be in a file name, a command, a note, the key of a
    dictionary, a cause or a group.
    """
    return redact("".join(traceback.format_exception(error)))


def config_holds_no_secret(run: Run) -> str | None:
    """Return the error for a configuration that contains a secret, else None: configurations are shared."""
    return secret_in(run)


def secret_in(values: Any) -> str | None:
    """Return the error for the first secret among the values of a configuration, settled or not, else None."""
    known = tuple(known_values())
    for key, value in strings(values):
        if (shown := secret_of(key, value, known)) is not None:
            found = f" It was found in: {shown}" if shown != value else ""
            return (
                f"{key} contains a password, token or key, and would be written to config.yaml and the batch script. "
                "Remove it: Slurm's jobs inherit the environment of the shell that submits. Or keep it in a file "
                f"that only you can read, and set cluster.setup='[source ~/.secrets]'.{found}"
            )
    return None


# The points of a sweep have most values in common.
@functools.lru_cache(maxsize=4096)
def secret_of(key: str, value: str, known: tuple[str, ...]) -> str | None:
    """Return a value without its secrets if it has any, or is one by the name of its key; else None."""
    shown = redact(value, known)
    return shown if names_secret(key, value) or reads_secret(value) or shown != value else None


def names_secret(key: str, value: str) -> bool:
    """Return True if the value of this key is a secret, by the key's name."""
    return bool(value) and is_secret_name(key) and not is_harmless(value, key)


@functools.cache
def is_secret_name(key: str) -> bool:
    """Return whether a key of this name holds a secret."""
    return bool(SECRET_NAME.fullmatch(key))


def reads_secret(value: str) -> bool:
    """Return True if an interpolation takes the value of a secret's variable: ${oc.env:HF_TOKEN}."""
    return "${oc." in value and any(SECRET_NAME.fullmatch(name) for name in re.findall(r"oc\.env:\s*([\w.-]+)", value))


def is_harmless(value: str, name: str) -> bool:
    """Return True for a switch, such as 1 or false, and if the value of a CREDENTIALS, PWD or SSH_KEY is a path."""
    bare = value.strip("\"'")
    is_a_place = any(word in name.upper() for word in ("CREDENTIAL", "PWD", "SSH_KEY")) and bare.startswith(("/", "~"))
    return is_a_place or bare.lower() in SWITCHES


def known_values() -> list[str]:
    """Return the secrets of this process's environment, as they are and as JSON, Python and URLs write them."""
    found: dict[str, None] = {}
    for key, value in os.environ.items():
        if len(value) >= SHORTEST_KNOWN and names_secret(key, value):
            found |= dict.fromkeys((value, json.dumps(value)[1:-1], repr(value)[1:-1], quote(value, safe="")))
    # The longest first: a password may be a part of another one.
    return sorted(found, key=len, reverse=True)


def strings(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield every string within a value, with its dotted key."""
    match value:
        case None | bool() | int() | float() | Enum():
            return
        case str():
            yield key, value
        case dict():
            for name, item in value.items():
                yield from strings(item, f"{key}.{name}" if key else str(name))
        case list():
            for item in value:
                yield from strings(item, key)
        case _ if hasattr(value, "__dataclass_fields__"):
            yield from strings(vars(value), key)
