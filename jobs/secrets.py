"""Detect passwords, tokens and keys, and keep them out of every file and message.

A configuration that contains one is refused, because config.yaml and the batch script would contain it too. In text
from other sources (command lines, error messages) REDACTED replaces it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from jobs.schema import Run

REDACTED = "[redacted]"
# HF_TOKEN and hf.token, but not tokenizer; API_KEY, but not sort_key; HF_TOKEN_PATH is a path and not a secret.
NAME = (
    r"[\w.-]*(?i:token|secret|passwo?r?d|passphrase|credentials?"
    r"|(?:api|access|auth|private|secret|account|signing|encryption)[_-]?key|(?-i:_KEY))"
    r"(?![A-Za-z]|[\w-]*(?i:path|file|dir)\b)[\w-]*"
)
SECRET_NAME = re.compile(NAME)
# Shell expansions ($TOKEN, $(cat file)) and paths to credentials are kept.
ASSIGNED = re.compile(
    rf"""(?<![\w.-])(?P<before>--{NAME}[ ]+|{NAME}\\?["']?\s*[=:]\s*)"""
    r"""(?P<value>"[^"$`][^"]*"|'[^']+'|(?![$`"'\\]|\[redacted)[^\s"',;}\]\\]+)"""
)
SHAPES = re.compile(
    r"""hf_[A-Za-z0-9]{16,}                                # Hugging Face
    | \bsk-[A-Za-z0-9_-]{16,}                              # OpenAI, Anthropic
    | \b(?:AKIA|ASIA)[A-Z0-9]{16}\b                        # AWS
    | \bgh[pousr]_[A-Za-z0-9]{16,} | github_pat_\w{16,}    # GitHub
    | \bglpat-[\w-]{16,}                                   # GitLab
    | \bxox[abeprs]-[\w-]{10,}                             # Slack
    | \bnvapi-[\w-]{16,}                                   # NVIDIA
    | \bAIza[\w-]{35}                                      # Google
    | \beyJ[\w-]{8,}\.eyJ[\w-]{8,}(?:\.[\w-]*)?            # JSON web tokens
    | (?i:\bbearer[ ]+)[\w.~+/-]{12,}=*                    # HTTP
    | -----BEGIN[ ][A-Z ]*PRIVATE[ ]KEY-----(?:[^-]*-----END[ ][A-Z ]*PRIVATE[ ]KEY-----)?
    | (?<=://)[^\s/:@]*:[^\s/@]+(?=@)                      # user:password in a URL
    """,
    re.VERBOSE,
)
# A shorter value also occurs in ordinary words.
SHORTEST_KNOWN = 8


def redact(text: str, known: list[str] | None = None) -> str:
    """Return the text with every secret replaced; `known` are the secrets of the environment, if already collected."""
    for value in known_values() if known is None else known:
        text = text.replace(value, REDACTED)
    text = SHAPES.sub(REDACTED, text)
    return ASSIGNED.sub(lambda found: found[0] if is_a_place(found["value"], found["before"]) else
                        found["before"] + REDACTED, text)  # fmt: skip


def redacted(value: Any, known: list[str] | None = None) -> Any:
    """Return JSON data with every secret replaced; `known` as for redact."""
    known = known_values() if known is None else known
    match value:
        case str():
            return redact(value, known)
        case dict():
            return {
                key: REDACTED if isinstance(item, str) and names_secret(key, item) else redacted(item, known)
                for key, item in value.items()
            }
        case list() | tuple():
            return [redacted(item, known) for item in value]
    return value


def redact_exception(error: BaseException) -> None:
    """Replace the secrets in an exception and its causes, before a traceback is printed."""
    chain: BaseException | None = error
    while chain is not None:
        chain.args = tuple(redact(arg) if isinstance(arg, str) else arg for arg in chain.args)
        chain = chain.__cause__ or chain.__context__


def config_holds_no_secret(run: Run) -> str | None:
    """Return the error for a configuration that contains a secret, else None: configurations are shared."""
    known = known_values()
    for key, value in strings(asdict(run)):
        if names_secret(key, value) or redact(value, known) != value:
            return (
                f"{key} contains a password, token or key, and would be written to config.yaml and the batch script. "
                "Remove it: Slurm's jobs inherit the environment of the shell that submits. Or keep it in a file "
                "that only you can read, and set cluster.setup='[source ~/.secrets]'."
            )
    return None


def names_secret(key: str, value: str) -> bool:
    """Return True if the value of this key is a secret, by the key's name."""
    return bool(value) and bool(SECRET_NAME.fullmatch(key)) and not is_a_place(value, key)


def is_a_place(value: str, name: str) -> bool:
    """Return True if the value of a CREDENTIALS variable is a path."""
    return "CREDENTIAL" in name.upper() and value.strip("\"'").startswith(("/", "~"))


def known_values() -> list[str]:
    """Return the secrets of this process's environment, which an error message may quote."""
    return [value for key, value in os.environ.items() if len(value) >= SHORTEST_KNOWN and names_secret(key, value)]


def strings(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield every string within a value, with its dotted key."""
    match value:
        case str():
            yield key, value
        case dict():
            for name, item in value.items():
                yield from strings(item, f"{key}.{name}" if key else str(name))
        case list():
            for item in value:
                yield from strings(item, key)
